// What Python's C API returns, as objects.
#pragma once

#include <pybind11/pybind11.h>

#include <string_view>

namespace deepnvme::python {

// A new reference that a function of the API has returned; null raises the exception that it set.
inline pybind11::object new_reference(PyObject* result) {
    if (result == nullptr) {
        throw pybind11::error_already_set();
    }
    return pybind11::reinterpret_steal<pybind11::object>(result);
}

// The str of a path, as os.fsdecode makes it: a path may be no text.
inline pybind11::object path_as_str(std::string_view path) {
    return new_reference(
        PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<Py_ssize_t>(path.size())));
}

}  // namespace deepnvme::python
