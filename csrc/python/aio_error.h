// What csrc/io throws, as Python exceptions: AioError, and OSError for a trace.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

#include "io/operation_group.h"

namespace deepnvme::python {

// Adds AioError(OSError) to `module`; lets io::IoError become one, and io::TraceError an OSError.
void register_io_errors(pybind11::module_& module);

// How many operations completed; raises one AioError that lists all failures where there are any.
// Needs the GIL.
uint64_t count_or_raise(const io::OperationGroup::Outcome& outcome);

}  // namespace deepnvme::python
