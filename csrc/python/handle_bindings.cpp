// The class `Handle`: what aio.aio_handle is made of. Every method that can wait gives up the GIL.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "io/io_handle.h"
#include "io/pending_groups.h"
#include "io/traced_call.h"
#include "python/aio_error.h"
#include "python/bindings.h"
#include "python/gil.h"
#include "python/handle_stats.h"
#include "python/interpreter_exit.h"
#include "python/keep_alive.h"
#include "python/new_reference.h"
#include "python/request.h"
#include "python/ticket.h"

namespace deepnvme::python {
namespace {

namespace py = pybind11;

constexpr size_t prepared_at_once = 16;  // requests of one call opened before the workers are told

class Handle {
public:
    Handle(const io::HandleOptions& options, const std::string& backend) {
        options.check();
        {
            const GilReleased unlocked;
            handle_ = io::make_handle(options, backend);
        }
        open_handles().insert(handle_.get());
    }

    ~Handle() {
        if (!handle_->closed()) {
            const GilReleased unlocked;
            handle_->close();
        }
        if (handle_->is_of_this_process()) {
            remember_devices(*handle_);  // with the GIL, as all of device_totals(): never twice
        }
        open_handles().erase(handle_.get());
    }

    int synchronous(py::handle buffer, py::handle file, py::handle offset, bool write,
                    bool validate) {
        io::Request request = request_for(buffer, offset, write, validate);
        const io::FileName name = file_name(file);
        auto group = std::make_shared<io::OperationGroup>();
        {
            const GilReleased unlocked;
            io::TracedCall call(handle_->trace(), write ? "sync_pwrite" : "sync_pread", 1);
            call.about(request, name);
            call.watch([&] {
                const auto operation =
                    handle_->prepare(std::move(request), name, group, {check_signals, {}});
                handle_->run(operation, *group, check_signals);
            });
            call.ended(*group);
        }
        return static_cast<int>(count_or_raise(group->outcome()));
    }

    int asynchronous(py::handle buffer, py::handle file, py::handle offset, bool write,
                     bool validate) {
        io::Request request = request_for(buffer, offset, write, validate);
        const io::FileName name = file_name(file);
        const GilReleased unlocked;
        const auto place = pending_.join();
        start(std::move(request), name, place.group(), write ? "async_pwrite" : "async_pread");
        return 0;
    }

    Ticket submit(py::handle buffer, py::handle file, py::handle offset, bool write) {
        io::Request request = request_for(buffer, offset, write, false);
        const io::FileName name = file_name(file);
        auto group = std::make_shared<io::OperationGroup>();
        const GilReleased unlocked;
        start(std::move(request), name, group, write ? "submit_pwrite" : "submit_pread");
        return Ticket(std::move(group), handle_->trace());
    }

    Ticket submit_many(const py::iterable& items, bool write) {
        handle_->require_usable();
        drop_released();
        std::vector<std::pair<io::Request, io::FileName>> requests;
        for (const py::handle item : items) {
            const py::object parts = new_reference(PySequence_Fast(
                item.ptr(),
                "an item must be (buffer, filename) or (buffer, filename, file_offset)"));
            const Py_ssize_t size = PySequence_Fast_GET_SIZE(parts.ptr());
            if (size != 2 && size != 3) {
                throw py::value_error(
                    "an item has " + std::to_string(size) +
                    " members, but must be (buffer, filename) or (buffer, filename, file_offset)");
            }
            PyObject** members = PySequence_Fast_ITEMS(parts.ptr());
            io::Request request = make_request(members[0], write);
            if (size == 3) {
                request.offset = file_offset(members[2]);
                io::check_file_range(request.nbytes, request.offset);  // before any file is opened
            }
            requests.emplace_back(std::move(request), file_name(members[1]));
        }
        auto group = std::make_shared<io::OperationGroup>();
        const GilReleased unlocked;
        {
            io::TracedCall call(handle_->trace(),
                                write ? "submit_pwrite_many" : "submit_pread_many",
                                requests.size());
            start_all(std::move(requests), group);
        }
        return Ticket(std::move(group), handle_->trace());
    }

    OpenFile open(py::handle file, py::handle offset, uint64_t nbytes, bool write) {
        const io::FileName name = file_name(file);
        const off_t start = file_offset(offset);
        const GilReleased unlocked;
        return {handle_->open(name, write, nbytes, start, {check_signals, {}})};
    }

    uint64_t wait() {
        handle_->require_owner();
        io::OperationGroup::Outcome outcome;
        {
            const GilReleased unlocked;
            io::TracedCall call(handle_->trace(), "wait");
            outcome = pending_.wait(check_signals);
            call.ended(outcome);
        }
        drop_released();
        return count_or_raise(outcome);
    }

    void sync_file(py::handle file) {
        const io::FileName name = file_name(file);
        const GilReleased unlocked;
        io::TracedCall call(handle_->trace(), "fsync");
        call.watch([&] { handle_->sync_file(name); });
    }

    void close() {
        const GilReleased unlocked;
        handle_->close();
    }

    const io::IoHandle& core() const { return *handle_; }

private:
    io::Request request_for(py::handle buffer, py::handle offset, bool write, bool validate) {
        handle_->require_usable();
        drop_released();
        io::Request request = make_request(buffer, write);
        request.offset = file_offset(offset);
        request.validate = validate;
        return request;
    }

    void start(io::Request request, const io::FileName& name,
               const std::shared_ptr<io::OperationGroup>& group, const char* called) {
        io::TracedCall call(handle_->trace(), called, 1);
        call.about(request, name);
        call.watch([&] {
            const auto operation =
                handle_->prepare(std::move(request), name, group, {check_signals, {}});
            handle_->enqueue({&operation, 1});
        });
    }

    // A file that cannot be opened fails its own request; the others go on.
    void start_all(std::vector<std::pair<io::Request, io::FileName>> requests,
                   const std::shared_ptr<io::OperationGroup>& group) {
        io::IoHandle::OpenFiles open_files;
        std::vector<std::shared_ptr<io::Operation>> prepared;
        prepared.reserve(prepared_at_once);  // what was prepared finds its place
        const auto start_prepared = [&] {
            handle_->enqueue(prepared);
            prepared.clear();
        };
        const io::Waiting waiting{check_signals, start_prepared};
        for (auto& [request, name] : requests) {
            try {
                prepared.push_back(
                    handle_->prepare(std::move(request), name, group, waiting, &open_files));
            } catch (const io::IoError& error) {
                group->expect();
                group->finish(0, error.failure);
            } catch (...) {
                start_prepared();
                throw;
            }
            if (prepared.size() == prepared_at_once) {
                start_prepared();
            }
        }
        start_prepared();
    }

    std::unique_ptr<io::IoHandle> handle_;
    io::PendingGroups pending_;
};

uint32_t checked_count(const char* name, int64_t value) {
    if (value < 1 || value > UINT32_MAX) {
        throw py::value_error(
            std::string(name) + " is " + std::to_string(value) +
            ", but must be a positive number of at most 32 bits; leave it out for the default");
    }
    return static_cast<uint32_t>(value);
}

std::unique_ptr<Handle> make_handle(int64_t block_size, int64_t queue_depth, bool single_submit,
                                    bool overlap_events, int64_t intra_op_parallelism,
                                    const std::string& backend, const py::object& trace) {
    if (block_size < 1) {
        throw py::value_error("block_size is " + std::to_string(block_size) +
                              ", but must be at least 1 byte; leave it out for 1048576");
    }
    io::HandleOptions options;
    options.block_size = static_cast<size_t>(block_size);
    options.queue_depth = checked_count("queue_depth", queue_depth);
    options.single_submit = single_submit;
    options.overlap_events = overlap_events;
    options.intra_op_parallelism = checked_count("intra_op_parallelism", intra_op_parallelism);
    if (!trace.is_none()) {
        options.trace = path_name(trace);
    }
    return std::make_unique<Handle>(options, backend);
}

}  // namespace

void bind_handle(py::module_& m) {
    if (Py_AtExit(close_at_exit) != 0) {
        throw std::runtime_error(
            "Python's table of exit functions (Py_AtExit) is full; import aio earlier");
    }
    m.def("interpreter_exits", &interpreter_exits,
          "From now on no other thread than this one looks for signals.");
    m.def("device_totals", &device_totals,
          "Bytes by device number and direction, of every handle that this process has made.");
    py::class_<Ticket>(m, "Ticket", "Operations in flight: what an IOFuture waits for.")
        .def("done", &Ticket::done)
        .def("wait", &Ticket::wait, py::arg("timeout") = py::none(),
             "True when done, False after `timeout` seconds.")
        .def("result", &Ticket::result, "Bytes moved, once done; raises AioError for failures.")
        .def("notify", &Ticket::notify, py::arg("channel"), py::arg("token"),
             "Push `token` to `channel` once done.");
    py::class_<OpenFile>(m, "OpenFile", "A file that a handle has opened, for several requests.")
        .def("path", [](const OpenFile& open) { return path_as_str(open.opened()->path()); })
        .def("fileno", [](const OpenFile& open) { return open.opened()->buffered_descriptor(); })
        .def("close", [](OpenFile& open) { open.file.reset(); });
    py::class_<Handle>(m, "Handle", "The native part of aio.aio_handle.")
        .def(py::init(&make_handle), py::arg("block_size"), py::arg("queue_depth"),
             py::arg("single_submit"), py::arg("overlap_events"), py::arg("intra_op_parallelism"),
             py::arg("backend"), py::arg("trace") = py::none())
        .def("synchronous", &Handle::synchronous, py::arg("buffer"), py::arg("file"),
             py::arg("offset"), py::arg("write"), py::arg("validate"))
        .def("asynchronous", &Handle::asynchronous, py::arg("buffer"), py::arg("file"),
             py::arg("offset"), py::arg("write"), py::arg("validate"))
        .def("submit", &Handle::submit, py::arg("buffer"), py::arg("file"), py::arg("offset"),
             py::arg("write"))
        .def("submit_many", &Handle::submit_many, py::arg("items"), py::arg("write"))
        .def("open", &Handle::open, py::arg("file"), py::arg("offset"), py::arg("nbytes"),
             py::arg("write"),
             "Open a file for several requests within `nbytes` at `offset`, checked here.")
        .def("wait", &Handle::wait)
        .def("fsync", &Handle::sync_file, py::arg("file"))
        .def("close", &Handle::close)
        .def("require_usable", [](const Handle& handle) { handle.core().require_usable(); })
        .def_property_readonly("closed",
                               [](const Handle& handle) { return handle.core().closed(); })
        .def_property_readonly("backend",
                               [](const Handle& handle) { return handle.core().backend(); })
        .def_property_readonly("number",
                               [](const Handle& handle) { return handle.core().number(); })
        .def(
            "trace_failure", [](const Handle& handle) { return trace_failure(handle.core()); },
            "The trace's path and the errno that stopped its writing, told once; or None.")
        .def("stats", [](const Handle& handle) { return stats_of(handle.core()); });
}

}  // namespace deepnvme::python
