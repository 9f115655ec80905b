// What a handle has done so far, as the dict that aio_handle.stats() returns, and what all have.
#pragma once

#include <pybind11/pybind11.h>

#include "io/io_handle.h"

namespace deepnvme::python {

pybind11::dict stats_of(const io::IoHandle& handle);

// The file that a trace could not be written to, and why, once; None when all is well.
pybind11::object trace_failure(const io::IoHandle& handle);

// {"major:minor": {"read": bytes, "write": bytes}}
pybind11::dict by_device(const io::DeviceBytes& bytes);
void add_devices(io::DeviceBytes& total, const io::DeviceBytes& more);

// The bytes of handles that have been destroyed in this process. The GIL guards them.
const io::DeviceBytes& ended_handles_devices();
void remember_devices(const io::IoHandle& handle);

}  // namespace deepnvme::python
