#include "io/layout.h"

#include <algorithm>
#include <cstring>

namespace deepnvme::io {

Layout::Layout(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides,
               size_t itemsize)
    : run_(itemsize), nbytes_(itemsize) {
    for (size_t i = 0; i < shape.size(); ++i) {
        nbytes_ *= static_cast<uint64_t>(shape[i]);
        if (shape[i] != 1) {
            outer_.push_back({static_cast<uint64_t>(shape[i]), strides[i]});
        }
    }
    while (!outer_.empty() && outer_.back().stride == static_cast<int64_t>(run_)) {
        run_ *= outer_.back().extent;
        outer_.pop_back();
    }
}

template <typename Piece>
void Layout::walk(uint64_t position, size_t nbytes, Piece piece) const {
    // The odometer of the outer dimensions at `position`.
    std::vector<uint64_t> index(outer_.size());
    uint64_t run_number = position / run_;
    int64_t offset = 0;
    for (size_t i = outer_.size(); i-- > 0;) {
        index[i] = run_number % outer_[i].extent;
        run_number /= outer_[i].extent;
        offset += static_cast<int64_t>(index[i]) * outer_[i].stride;
    }
    uint64_t inside = position % run_;
    while (nbytes > 0) {
        const size_t length = std::min<uint64_t>(run_ - inside, nbytes);
        piece(offset + static_cast<int64_t>(inside), length);
        nbytes -= length;
        inside = 0;
        for (size_t i = outer_.size(); i-- > 0;) {
            offset += outer_[i].stride;
            if (++index[i] < outer_[i].extent) {
                break;
            }
            offset -= static_cast<int64_t>(outer_[i].extent) * outer_[i].stride;
            index[i] = 0;
        }
    }
}

void Layout::gather(const std::byte* base, uint64_t position, std::byte* out, size_t nbytes) const {
    walk(position, nbytes, [&](int64_t offset, size_t length) {
        std::memcpy(out, base + offset, length);
        out += length;
    });
}

void Layout::scatter(std::byte* base, uint64_t position, const std::byte* in, size_t nbytes) const {
    walk(position, nbytes, [&](int64_t offset, size_t length) {
        std::memcpy(base + offset, in, length);
        in += length;
    });
}

}  // namespace deepnvme::io
