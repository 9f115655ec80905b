// Strided memory by going over it byte after byte, and a part of a layout compared with that.
#pragma once

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "check.h"
#include "io/layout.h"

namespace deepnvme::test {

using io::Layout;

struct Strided {
    std::vector<int64_t> shape;
    std::vector<int64_t> strides;
    size_t itemsize = 1;
};

// The offset from the first element of every byte, in logical order, one index after the other.
inline std::vector<int64_t> byte_offsets(const Strided& s) {
    std::vector<int64_t> offsets{0};
    for (size_t dimension = 0; dimension < s.shape.size(); ++dimension) {
        std::vector<int64_t> next;
        for (int64_t start : offsets) {
            for (int64_t i = 0; i < s.shape[dimension]; ++i) {
                next.push_back(start + i * s.strides[dimension]);
            }
        }
        offsets = std::move(next);
    }
    std::vector<int64_t> bytes;
    for (int64_t start : offsets) {
        for (size_t i = 0; i < s.itemsize; ++i) {
            bytes.push_back(start + static_cast<int64_t>(i));
        }
    }
    return bytes;
}

inline std::vector<std::byte> noise(size_t nbytes, std::mt19937& random) {
    std::vector<std::byte> bytes(nbytes);
    std::generate(bytes.begin(), bytes.end(), [&] { return std::byte(random() & 0xFF); });
    return bytes;
}

inline void check_part(const Strided& s, const std::vector<int64_t>& offsets, uint64_t position,
                       size_t nbytes, std::mt19937& random) {
    const Layout layout(s.shape, s.strides, s.itemsize);
    const auto [lowest, highest] = std::minmax_element(offsets.begin(), offsets.end());
    // Exactly the memory that the elements span: the address sanitizer guards both ends.
    const std::vector<std::byte> memory =
        noise(static_cast<size_t>(*highest - *lowest) + 1, random);
    const int64_t origin = -*lowest;

    std::vector<std::byte> gathered(nbytes);
    layout.gather(memory.data() + origin, position, gathered.data(), nbytes);
    for (size_t i = 0; i < nbytes; ++i) {
        CHECK(gathered[i] == memory[static_cast<size_t>(origin + offsets[position + i])]);
    }

    const std::vector<std::byte> in = noise(nbytes, random);
    std::vector<std::byte> expected = memory;
    for (size_t i = 0; i < nbytes; ++i) {
        expected[static_cast<size_t>(origin + offsets[position + i])] = in[i];
    }
    std::vector<std::byte> scattered = memory;
    layout.scatter(scattered.data() + origin, position, in.data(), nbytes);
    CHECK(scattered == expected);
}

}  // namespace deepnvme::test
