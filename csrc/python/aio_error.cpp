#include "python/aio_error.h"

#include <cstring>
#include <string>
#include <vector>

#include "io/failure.h"
#include "io/trace.h"
#include "python/new_reference.h"

namespace deepnvme::python {
namespace {

namespace py = pybind11;

PyObject* aio_error_type = nullptr;

// The exception does not hold itself, so that it and what its traceback holds go at once.
constexpr const char* other_failures = "_other_failures";

py::tuple failures_of(const py::object& error) {
    py::list all;
    all.append(error);
    for (const py::handle other : py::getattr(error, other_failures, py::tuple())) {
        all.append(other);
    }
    return py::tuple(all);
}

std::string describe(const io::Failure& failure) {
    std::string text = std::strerror(failure.error);
    if (!failure.detail.empty()) {
        text += " (" + failure.detail + ")";
    }
    if (failure.action == io::Action::sync) {
        return text + ": fsync";
    }
    return text + (failure.action == io::Action::write ? ": writing " : ": reading ") +
           std::to_string(failure.nbytes) + " bytes at offset " + std::to_string(failure.offset) +
           ", " + std::to_string(failure.nbytes_done) + " bytes done";
}

py::object make_error(const io::Failure& failure, const std::string& text) {
    const auto type = py::reinterpret_borrow<py::object>(aio_error_type);
    py::object error = type(failure.error, text, path_as_str(failure.path));
    error.attr("offset") = failure.offset;
    error.attr("nbytes") = failure.nbytes;
    error.attr("nbytes_done") = failure.nbytes_done;
    return error;
}

void set_error(const std::vector<io::Failure>& failures) {
    std::string text = describe(failures.front());
    if (failures.size() > 1) {
        text += "; and " + std::to_string(failures.size() - 1) + " more, see .failures";
    }
    const py::object first = make_error(failures.front(), text);
    py::tuple others(failures.size() - 1);
    for (size_t i = 1; i < failures.size(); ++i) {
        others[i - 1] = make_error(failures[i], describe(failures[i]));
    }
    first.attr(other_failures) = others;
    PyErr_SetObject(aio_error_type, first.ptr());
}

// A plain OSError, or its subclass for the errno: no transfer has failed.
void raise(const io::TraceError& error) {
    const std::string detail = error.what();
    const std::string text = std::string(std::strerror(error.error)) +
                             (detail.empty() ? "" : " (" + detail + ")") + ": trace";
    const py::tuple arguments = py::make_tuple(error.error, text, path_as_str(error.path));
    PyErr_SetObject(PyExc_OSError, arguments.ptr());
}

}  // namespace

void register_io_errors(py::module_& module) {
    py::object type = new_reference(PyErr_NewExceptionWithDoc(
        "aio.AioError",
        "A transfer failed. errno, strerror and filename as in OSError.\n\n"
        "Attributes:\n"
        "    offset: byte of the file where the request starts.\n"
        "    nbytes: bytes asked.\n"
        "    nbytes_done: bytes that moved before it failed; the rest of the target is undefined.\n"
        "    failures: every failed operation that this call reports, this one first.\n\n"
        "errno is ENODATA for a read beyond the end of the file.",
        PyExc_OSError, nullptr));
    type.attr("failures") =
        py::module_::import("builtins")
            .attr("property")(py::cpp_function(&failures_of, py::is_method(type)));
    module.add_object("AioError", type);
    aio_error_type = type.release().ptr();  // kept for good
    py::register_local_exception_translator([](std::exception_ptr raised) {
        try {
            std::rethrow_exception(raised);
        } catch (const io::IoError& error) {
            set_error({error.failure});
        } catch (const io::TraceError& error) {
            raise(error);
        }
    });
}

uint64_t count_or_raise(const io::OperationGroup::Outcome& outcome) {
    if (!outcome.failures.empty()) {
        set_error(outcome.failures);
        throw py::error_already_set();
    }
    return outcome.completed;
}

}  // namespace deepnvme::python
