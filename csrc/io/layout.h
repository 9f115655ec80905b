// Strided memory as a row of bytes: copies any part of a tensor's elements, in their logical order,
// to or from contiguous memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace deepnvme::io {

class Layout {
public:
    // `shape` in elements and `strides` in bytes, outermost first; strides may be negative.
    Layout(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides, size_t itemsize);

    uint64_t nbytes() const { return nbytes_; }

    // Copies bytes [position, position + nbytes) of the elements behind `base` into `out`.
    void gather(const std::byte* base, uint64_t position, std::byte* out, size_t nbytes) const;
    // Copies `in` into bytes [position, position + nbytes) of the elements behind `base`.
    void scatter(std::byte* base, uint64_t position, const std::byte* in, size_t nbytes) const;

private:
    // Calls piece(offset from base, length) for the contiguous pieces of [position, position +
    // nbytes), in order.
    template <typename Piece>
    void walk(uint64_t position, size_t nbytes, Piece piece) const;

    struct Dimension {
        uint64_t extent;  // elements
        int64_t stride;   // bytes
    };
    std::vector<Dimension> outer_;  // outermost first; what lies inside is one contiguous run
    uint64_t run_ = 0;              // bytes of that run
    uint64_t nbytes_ = 0;
};

}  // namespace deepnvme::io
