#include "python/buffer.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "python/buffer_sources.h"
#include "python/new_reference.h"

namespace deepnvme::python {
namespace {

struct HeldBuffer {
    Py_buffer view{};
    bool held = false;
    HeldBuffer() = default;
    HeldBuffer(const HeldBuffer&) = delete;
    HeldBuffer& operator=(const HeldBuffer&) = delete;
    ~HeldBuffer() {
        if (held) {
            PyBuffer_Release(&view);
        }
    }
    bool get(py::handle object, int flags) {
        held = PyObject_GetBuffer(object.ptr(), &view, flags) == 0;
        return held;
    }
};

[[noreturn]] void refuse_python_objects(py::handle object) {
    throw py::type_error(std::string("an array of Python objects (") +
                         Py_TYPE(object.ptr())->tp_name + ") has no bytes of its own to transfer");
}

// True for a struct-style format with a Python object in it; names of fields stand between colons.
bool holds_python_objects(const char* format) {
    bool in_name = false;
    for (; format != nullptr && *format != '\0'; ++format) {
        in_name ^= *format == ':';
        if (*format == 'O' && !in_name) {
            return true;
        }
    }
    return false;
}

BufferView view_protocol(py::handle object, bool need_owner) {
    auto held = std::make_unique<HeldBuffer>();
    if (held->get(object, PyBUF_STRIDED_RO | PyBUF_FORMAT)) {
        if (holds_python_objects(held->view.format)) {
            refuse_python_objects(object);
        }
    } else {
        // NumPy has no format for datetime64 and some others, whose bytes are plain all the same.
        PyErr_Clear();
        if (!held->get(object, PyBUF_STRIDED_RO)) {
            py::error_already_set cause;
            const std::string message = std::string("the memory of ") +
                                        Py_TYPE(object.ptr())->tp_name +
                                        " cannot be viewed as strided bytes";
            py::raise_from(cause, PyExc_TypeError, message.c_str());
            throw py::error_already_set();
        }
        if (py::getattr(py::getattr(object, "dtype", py::none()), "hasobject", py::bool_(false))
                .cast<bool>()) {
            refuse_python_objects(object);
        }
    }
    const Py_buffer& buffer = held->view;
    BufferView view;
    view.data = static_cast<std::byte*>(buffer.buf);
    view.nbytes = static_cast<size_t>(buffer.len);
    view.itemsize = static_cast<size_t>(buffer.itemsize);
    view.writable = buffer.readonly == 0;
    view.contiguous = PyBuffer_IsContiguous(&buffer, 'C') != 0;
    if (!view.contiguous) {
        view.shape.assign(buffer.shape, buffer.shape + buffer.ndim);
        view.strides.assign(buffer.strides, buffer.strides + buffer.ndim);
    }
    measure(view);
    if (need_owner) {
        // While it is held, the exporter refuses to resize.
        view.owner =
            py::capsule(held.get(), [](void* buffer) { delete static_cast<HeldBuffer*>(buffer); });
        static_cast<void>(held.release());  // the capsule has it
    }
    return view;
}

}  // namespace

Name::Name(const char* name)
    : name_(new_reference(PyUnicode_InternFromString(name)).release().ptr()) {}

py::object Name::of(py::handle object) const {
    return new_reference(PyObject_GetAttr(object.ptr(), name_));
}

py::object Name::call_on(py::handle object) const {
    PyObject* self = object.ptr();
    return new_reference(
        PyObject_VectorcallMethod(name_, &self, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
}

bool Name::true_of(py::handle object) const { return of(object).ptr() == Py_True; }

bool Name::called_true_on(py::handle object) const { return call_on(object).ptr() == Py_True; }

void measure(BufferView& view) {
    view.span = {view.data, view.nbytes};
    view.may_overlap = false;
    if (view.contiguous || view.nbytes == 0) {
        return;
    }
    std::vector<std::pair<uint64_t, uint64_t>> dims;  // |stride|, length
    uint64_t below = 0;                               // bytes of the span before the first element
    bool impossible = false;
    const auto add = [&](uint64_t& sum, uint64_t stride, uint64_t length) {
        uint64_t bytes = 0;
        impossible |= __builtin_mul_overflow(stride, length - 1, &bytes);
        impossible |= __builtin_add_overflow(sum, bytes, &sum);
    };
    for (size_t d = 0; d < view.shape.size(); ++d) {
        if (view.shape[d] > 1) {
            const auto stride = static_cast<uint64_t>(view.strides[d]);
            const bool backwards = view.strides[d] < 0;
            dims.emplace_back(backwards ? -stride : stride, view.shape[d]);
            if (backwards) {
                add(below, dims.back().first, dims.back().second);
            }
        }
    }
    std::sort(dims.begin(), dims.end());
    uint64_t reach = view.itemsize;
    for (const auto& [stride, length] : dims) {
        view.may_overlap |= stride < reach;
        add(reach, stride, length);
    }
    const auto start = reinterpret_cast<uintptr_t>(view.data);
    if (impossible || reach > PTRDIFF_MAX || below > start) {
        throw py::value_error(
            "the strides of the array reach beyond the address space; correct its exporter");
    }
    view.span = {view.data - below, reach};
}

BufferView view_buffer(py::handle object, bool need_owner) {
    if (is_torch_tensor(object)) {
        return view_torch(object);
    }
    if (PyObject_CheckBuffer(object.ptr())) {
        return view_protocol(object, need_owner);
    }
    if (has_dlpack(object)) {
        return view_dlpack(object);
    }
    throw py::type_error(
        std::string("expected a torch tensor, or an object with the buffer protocol or "
                    "__dlpack__, not ") +
        Py_TYPE(object.ptr())->tp_name);
}

std::optional<ByteSpan> span_if(py::handle object, bool (*worth_a_look)(const void*)) {
    if (is_torch_tensor(object)) {
        return torch_span_if(object, worth_a_look);
    }
    if (!PyObject_CheckBuffer(object.ptr()) && has_dlpack(object) &&
        !dlpack_in_host_memory(object)) {
        return std::nullopt;
    }
    return view_buffer(object, false).span;
}

}  // namespace deepnvme::python
