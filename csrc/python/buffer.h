// A Python object seen as bytes in host memory: torch tensors, the buffer protocol, DLPack.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace deepnvme::python {

namespace py = pybind11;

struct ByteSpan {
    const std::byte* data = nullptr;
    size_t nbytes = 0;
};

struct BufferView {
    std::byte* data = nullptr;  // first element; null is possible when nbytes == 0
    size_t nbytes = 0;          // elements times their size: what a transfer moves
    size_t itemsize = 0;
    ByteSpan span;           // every byte that the strides reach, from the lowest address
    bool contiguous = true;  // row-major and without gaps: [data, data + nbytes) is all there is
    bool writable = true;
    bool may_overlap = false;      // two elements may share bytes
    std::vector<int64_t> shape;    // elements; with `strides` left empty when contiguous
    std::vector<int64_t> strides;  // bytes, negative ones included
    // Keeps the memory where it is, however the object changes: a torch storage (hold_storage), a
    // held Py_buffer, a DLPack tensor. Null of a torch tensor, and when it was not asked for and
    // the object itself is enough.
    py::object owner;
};

// Throws TypeError for what is not bytes in host memory: another device, meta, sparse, nested or
// quantized tensors, tensor subclasses with a __torch_dispatch__ of their own, lazily conjugated or
// negated tensors, arrays of Python objects, objects that are no buffer at all. Needs the GIL.
BufferView view_buffer(py::handle object, bool need_owner);

// The object, or for a torch tensor that is lazily conjugated or negated a new one with its values.
py::object resolve_lazy_views(py::handle object);

// What is_pinned() looks up, at a fraction of the cost. Nothing when `object` has no host memory
// that could be pinned (a fake or meta tensor, another device): it raises only for what is no
// buffer. `worth_a_look` is asked first, with the address of the first element: false ends it
// there.
std::optional<ByteSpan> span_if(py::handle object, bool (*worth_a_look)(const void* address));

}  // namespace deepnvme::python
