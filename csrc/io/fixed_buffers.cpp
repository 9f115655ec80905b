#include "io/fixed_buffers.h"

#include <algorithm>

namespace deepnvme::io {

int FixedBuffers::index_of(uint64_t serial, std::byte* base, size_t size, const std::byte* data,
                           size_t nbytes) {
    if (last_ == nullptr || last_serial_ != serial) {
        auto found = pieces_.find(serial);
        if (found == pieces_.end()) {
            found = pieces_.emplace(serial, register_pieces(base, size)).first;
        }
        last_serial_ = serial;
        last_ = &found->second;
    }
    const auto position = static_cast<size_t>(data - base);
    const size_t piece = position / max_registered_bytes;
    const bool inside = (position + nbytes - 1) / max_registered_bytes == piece;
    return inside && piece < last_->size() ? (*last_)[piece] : -1;
}

void FixedBuffers::forget(uint64_t serial) {
    const auto found = pieces_.find(serial);
    if (found == pieces_.end()) {
        return;
    }
    for (int index : found->second) {
        engine_.unregister_buffer(index);
    }
    pieces_.erase(found);
    last_ = nullptr;
}

std::vector<int> FixedBuffers::register_pieces(std::byte* base, size_t size) {
    std::vector<int> indices;
    for (size_t position = 0; position < size; position += max_registered_bytes) {
        const int index = engine_.register_buffer(base + position,
                                                  std::min(max_registered_bytes, size - position));
        if (index < 0) {
            for (int registered : indices) {
                engine_.unregister_buffer(registered);
            }
            return {};
        }
        indices.push_back(index);
    }
    return indices;
}

}  // namespace deepnvme::io
