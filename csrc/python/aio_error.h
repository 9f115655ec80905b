// AioError as a Python exception.
#pragma once

#include <pybind11/pybind11.h>

#include <vector>

#include "io/failure.h"

namespace deepnvme::python {

// Adds AioError(OSError) to `module`, and lets io::IoError become one.
void register_aio_error(pybind11::module_& module);

// Raises one AioError that lists all of `failures` (not empty). Needs the GIL.
[[noreturn]] void raise_failures(const std::vector<io::Failure>& failures);

}  // namespace deepnvme::python
