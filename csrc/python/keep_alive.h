// Python objects that requests in flight hold. I/O threads never touch Python: a reference let go
// there is queued, and dropped by the thread that next enters the module with the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

namespace deepnvme::python {

// Owns `object` until the last copy goes, on any thread, with or without the GIL.
std::shared_ptr<void> keep_alive(pybind11::object object);

// Drops what was let go. Needs the GIL.
void drop_released();

}  // namespace deepnvme::python
