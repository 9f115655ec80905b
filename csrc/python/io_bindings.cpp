// The submodule `io`, but for the handle: errors, engines, what a directory offers, completions.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>

#include "io/completion_channel.h"
#include "io/file.h"
#include "io/probe.h"
#include "python/aio_error.h"
#include "python/bindings.h"
#include "python/gil.h"
#include "python/request.h"

namespace deepnvme::python {
namespace {

namespace py = pybind11;

py::list probe() {
    std::vector<io::EngineReport> reports;
    {
        const GilReleased unlocked;
        reports = io::probe_engines();
    }
    py::list result;
    for (const io::EngineReport& report : reports) {
        py::dict entry;
        entry["name"] = report.name;
        entry["built"] = report.built;
        entry["usable"] = report.usable;
        entry["reason"] = report.reason;
        result.append(entry);
    }
    return result;
}

py::dict file_alignment(py::handle file) {
    const io::FileName name = file_name(file);
    std::shared_ptr<io::File> opened;
    {
        const GilReleased unlocked;
        opened = io::File::open(name, false, uint64_t{1} << 30, 0, {});  // as a large request would
    }
    py::dict result;
    result["direct"] = opened->direct();
    result["refused"] = opened->refused_at_open();
    result["memory"] = opened->alignment().memory;
    result["granule"] = opened->alignment().granule;
    return result;
}

}  // namespace

void bind_io(py::module_& m) {
    register_io_errors(m);
    m.def("probe", &probe,
          "The engines, best first: dicts of `name`, `built` (compiled in), `usable` (one could be "
          "made just now) and\n"
          "`reason` (why not; empty when usable).");
    m.def("file_alignment", &file_alignment, py::arg("file"),
          "How large requests on an existing file travel: `direct` (past the page cache), "
          "`refused` (the file system\n"
          "does not take O_DIRECT), and the alignments in bytes of `memory` and of file offsets "
          "(`granule`).");
    py::class_<io::CompletionChannel, std::shared_ptr<io::CompletionChannel>>(
        m, "CompletionChannel",
        "An eventfd that becomes readable as operations are done, and their tokens.")
        .def(py::init<>())
        .def("fileno", &io::CompletionChannel::descriptor)
        .def("push", &io::CompletionChannel::push, py::arg("token"))
        .def("take", &io::CompletionChannel::take,
             "The tokens since the last call, in order of completion.");
}

}  // namespace deepnvme::python
