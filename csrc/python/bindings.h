// What each submodule of _deepnvme adds to itself.
#pragma once

#include <pybind11/pybind11.h>

namespace deepnvme::python {

void bind_pin(pybind11::module_& m);
void bind_io(pybind11::module_& m);
void bind_handle(pybind11::module_& m);

}  // namespace deepnvme::python
