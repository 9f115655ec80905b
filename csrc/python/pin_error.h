// PinError as a Python exception.
#pragma once

#include <pybind11/pybind11.h>

namespace deepnvme::python {

// Adds PinError(MemoryError) to `module`, and lets pin::PinError become one.
void register_pin_error(pybind11::module_& module);

}  // namespace deepnvme::python
