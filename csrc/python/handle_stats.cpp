#include "python/handle_stats.h"

#include <pybind11/stl.h>

#include <string>

#include "python/interpreter_exit.h"
#include "python/new_reference.h"
#include "sys/process.h"

namespace deepnvme::python {
namespace {

namespace py = pybind11;

template <typename Values>
py::dict by_path(const Values& values) {
    py::dict result;
    for (size_t path = 0; path < io::path_count; ++path) {
        result[io::path_names[path]] = values[path];
    }
    return result;
}

template <typename Values, typename Convert>
py::dict by_direction(const Values& values, Convert convert) {
    py::dict result;
    result["read"] = convert(values[0]);
    result["write"] = convert(values[1]);
    return result;
}

struct EndedHandles {
    io::DeviceBytes devices{};
    sys::OwnerProcess process;
};

EndedHandles& ended_handles() {
    static EndedHandles ended;
    if (!ended.process.is_this_one()) {
        ended = EndedHandles();  // a forked child's own account
    }
    return ended;
}

// {"major:minor": {"read": bytes, "write": bytes}}
py::dict by_device(const io::DeviceBytes& values) {
    py::dict result;
    for (size_t place = 0; place < io::DeviceTable::capacity; ++place) {
        if (values[place][0] + values[place][1] > 0) {
            const io::DeviceNumber device = io::DeviceTable::instance().device(place);
            const std::string name =
                std::to_string(device.major) + ":" + std::to_string(device.minor);
            result[name.c_str()] =
                by_direction(values[place], [](uint64_t value) { return py::int_(value); });
        }
    }
    return result;
}

void add_devices(io::DeviceBytes& total, const io::DeviceBytes& more) {
    for (size_t place = 0; place < total.size(); ++place) {
        for (size_t write = 0; write < 2; ++write) {
            total[place][write] += more[place][write];
        }
    }
}

}  // namespace

py::dict stats_of(const io::IoHandle& handle) {
    const io::IoHandle::Stats stats = handle.stats();
    const auto number = [](uint64_t value) { return py::int_(value); };
    const auto paths = [](const auto& values) { return by_path(values); };
    py::dict latency;
    latency["count"] = stats.latency.count;
    latency["mean"] = stats.latency.mean;
    latency["p50"] = stats.latency.p50;
    latency["p90"] = stats.latency.p90;
    latency["p99"] = stats.latency.p99;
    latency["p999"] = stats.latency.p999;
    latency["max"] = stats.latency.max;
    py::dict result;
    result["backend"] = handle.backend();
    result["requests"] = by_direction(stats.requests, number);
    result["failed"] = stats.failed;
    result["in_flight"] = stats.in_flight;
    result["bytes"] = by_direction(stats.nbytes, paths);
    result["transfers"] = by_direction(stats.transfers, paths);
    result["devices"] = by_device(stats.devices);
    py::dict queue;
    queue["in_flight"] = stats.transfers_in_flight;
    queue["waiting"] = stats.transfers_waiting;
    result["queue"] = queue;
    result["staging"] = stats.staging;
    result["retries"] = stats.retries;
    result["short_transfers"] = stats.short_transfers;
    result["direct_refused"] = stats.direct_refused;
    result["latency"] = latency;
    return result;
}

py::object trace_failure(const io::IoHandle& handle) {
    io::Trace* trace = handle.trace();
    const int error = trace == nullptr ? 0 : trace->take_failure();
    if (error == 0) {
        return py::none();
    }
    return py::make_tuple(path_as_str(trace->path()), error);
}

py::dict device_totals() {
    io::DeviceBytes total = ended_handles().devices;
    for (const io::IoHandle* handle : open_handles()) {
        if (handle->is_of_this_process()) {
            add_devices(total, handle->stats().devices);
        }
    }
    return by_device(total);
}

void remember_devices(const io::IoHandle& handle) {
    add_devices(ended_handles().devices, handle.stats().devices);
}

}  // namespace deepnvme::python
