// The kinds of object behind view_buffer(), one file each. Internal to csrc/python.
#pragma once

#include "python/buffer.h"

namespace deepnvme::python {

// Interned attribute names and calls through them: a tenth of the cost of py::object::attr("...").
class Name {
public:
    explicit Name(const char* name);
    py::object of(py::handle object) const;        // object.name
    py::object call_on(py::handle object) const;   // object.name()
    bool true_of(py::handle object) const;         // bool(object.name)
    bool called_true_on(py::handle object) const;  // bool(object.name())

private:
    PyObject* name_;
};

// Fills in span and may_overlap from data, itemsize, shape and strides, and nbytes.
void measure(BufferView& view);

// torch tensors, once the program has imported torch.
bool is_torch_tensor(py::handle object);
BufferView view_torch(py::handle tensor);  // without an owner
// Makes the view own the storage. Throws ValueError when the tensor reaches beyond it.
void hold_storage(py::handle tensor, BufferView& view);
std::optional<ByteSpan> torch_span_if(py::handle tensor, bool (*worth_a_look)(const void*));

// Objects with __dlpack__ and __dlpack_device__, in host memory.
bool has_dlpack(py::handle object);
bool dlpack_in_host_memory(py::handle object);
BufferView view_dlpack(py::handle object);

}  // namespace deepnvme::python
