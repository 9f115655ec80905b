// The one extension of the library: one shared object, so that there is one registry by
// construction.
#include "python/bindings.h"

// Without mod_gil_not_used(): the GIL guards what this folder keeps for the whole process, the set
// of open handles and the registrations with devices. A free-threaded Python turns it on.
PYBIND11_MODULE(_deepnvme, m) {
    m.doc() = "The native core of deepnvme. Private: use the packages aio and pinned_manager.";
    pybind11::module_ pin =
        m.def_submodule("pin", "Page-locked memory: the process-wide registry and its pool.");
    deepnvme::python::bind_pin(pin);
    pybind11::module_ io = m.def_submodule("io", "Moving bytes between memory and files.");
    deepnvme::python::bind_io(io);
    deepnvme::python::bind_handle(io);
}
