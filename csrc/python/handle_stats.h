// What a handle has done so far, as the dict that aio_handle.stats() returns, and what all have.
#pragma once

#include <pybind11/pybind11.h>

#include "io/io_handle.h"

namespace deepnvme::python {

pybind11::dict stats_of(const io::IoHandle& handle);

// The file that a trace could not be written to, and why, once; None when all is well.
pybind11::object trace_failure(const io::IoHandle& handle);

// Bytes by device of every handle that this process has made: {"major:minor": {"read": bytes,
// "write": bytes}}. Needs the GIL.
pybind11::dict device_totals();
// Of a handle that is about to go, so that its bytes stay in the totals. Needs the GIL.
void remember_devices(const io::IoHandle& handle);

}  // namespace deepnvme::python
