#include "python/pin_error.h"

#include <cstdint>
#include <exception>

#include "pin/page_alloc.h"
#include "python/new_reference.h"

namespace deepnvme::python {
namespace {

namespace py = pybind11;

PyObject* pin_error_type = nullptr;

void raise(const pin::PinError& error) {
    const auto type = py::reinterpret_borrow<py::object>(pin_error_type);
    const py::object instance = type(error.what());
    instance.attr("nbytes") = error.nbytes;
    instance.attr("locked") = error.locked;
    instance.attr("limit") =
        error.limit == SIZE_MAX ? py::object(py::none()) : py::int_(error.limit);
    PyErr_SetObject(pin_error_type, instance.ptr());
}

}  // namespace

void register_pin_error(py::module_& module) {
    py::object type = new_reference(PyErr_NewExceptionWithDoc(
        "aio.PinError",
        "Memory could not be page-locked, or the budget is used up.\n\n"
        "Attributes, in bytes:\n"
        "    nbytes: what was asked for.\n"
        "    locked: what this process had locked (VmLck); of the budget: what was in use.\n"
        "    limit: RLIMIT_MEMLOCK, None when unlimited or not enforced (CAP_IPC_LOCK); or the "
        "budget.",
        PyExc_MemoryError, nullptr));
    module.add_object("PinError", type);
    pin_error_type = type.release().ptr();  // kept for good
    py::register_local_exception_translator([](std::exception_ptr raised) {
        try {
            std::rethrow_exception(raised);
        } catch (const pin::PinError& error) {
            raise(error);
        }
    });
}

}  // namespace deepnvme::python
