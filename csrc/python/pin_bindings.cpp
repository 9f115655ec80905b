// The submodule `pin`: page-locked memory.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "pin/deepspeed_pin_tensor.h"
#include "python/bindings.h"
#include "python/buffer.h"
#include "python/dlpack_abi.h"
#include "python/errors.h"
#include "python/gil.h"

namespace deepnvme::python {
namespace {

using pin::deepspeed_pin_tensor_t;

deepspeed_pin_tensor_t& registry() { return deepspeed_pin_tensor_t::instance(); }

size_t checked_size(const char* what, const py::int_& value, size_t least) {
    const size_t size = PyLong_AsSize_t(value.ptr());
    if (size == static_cast<size_t>(-1) && PyErr_Occurred() != nullptr) {
        PyErr_Clear();
    } else if (size >= least) {
        return size;
    }
    throw py::value_error(std::string(what) + " is " + std::string(py::str(value)) +
                          "; give a number of bytes from " + std::to_string(least) + " to " +
                          std::to_string(std::numeric_limits<size_t>::max()));
}

// DEEPNVME_PIN_CACHE_BYTES, read at first use so that a wrong value is an error there and not of
// `import`. The GIL is held.
bool configured = false;

void configure() {
    if (configured) {
        return;
    }
    if (const char* text = std::getenv("DEEPNVME_PIN_CACHE_BYTES");
        text != nullptr && *text != '\0') {
        char* end = nullptr;
        errno = 0;
        const unsigned long long limit = std::strtoull(text, &end, 10);
        if (errno != 0 || *end != '\0' || *text < '0' || *text > '9') {
            throw py::value_error(
                std::string("DEEPNVME_PIN_CACHE_BYTES is '") + text +
                "'; give a number of bytes, such as 2147483648, or 0 to cache nothing");
        }
        registry().set_cache_limit(limit);
    }
    configured = true;
}

// A region as a one-dimensional uint8 tensor. Whoever consumes the capsule calls the deleter, on
// any thread, with or without the GIL.
struct Export {
    dlpack::ManagedTensor managed{};
    int64_t length = 0;
    int64_t stride = 1;
    std::shared_ptr<pin::Region> region;
};

void delete_export(dlpack::ManagedTensor* managed) {
    delete static_cast<Export*>(managed->manager_context);
}

void delete_capsule(PyObject* capsule) {
    if (PyCapsule_IsValid(capsule, "dltensor") != 0) {  // renamed once consumed
        delete_export(
            static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor")));
    }
}

py::object allocate_dlpack(const py::int_& nbytes, const std::string& tag) {
    const size_t size = checked_size("nbytes", nbytes, 1);
    configure();
    auto exported = std::make_unique<Export>();
    {
        const GilReleased unlocked;
        exported->region = registry().allocate(size, tag);
    }
    exported->length = static_cast<int64_t>(size);
    exported->managed.tensor = {
        exported->region->data(), {dlpack::kCPU, 0}, 1, {dlpack::kUInt, 8, 1},
        &exported->length,        &exported->stride, 0};
    exported->managed.manager_context = exported.get();
    exported->managed.deleter = delete_export;
    PyObject* capsule = PyCapsule_New(&exported->managed, "dltensor", delete_capsule);
    if (capsule == nullptr) {
        throw py::error_already_set();
    }
    exported.release();
    return py::reinterpret_steal<py::object>(capsule);
}

bool is_pinned(py::handle buffer) {
    const auto span =
        span_if(buffer, [](const void* address) { return registry().is_pinned(address, 1); });
    return span && registry().is_pinned(span->data, span->nbytes);
}

py::dict stats() {
    const pin::Stats stats = registry().stats();
    py::dict result;
    result["in_use"] = stats.in_use;
    result["cached"] = stats.cached;
    result["peak"] = stats.peak;
    result["regions"] = stats.regions;
    result["calls"] = stats.calls;
    result["by_tag"] = py::cast(stats.by_tag);
    return result;
}

py::tuple locked_memory() {
    const pin::LockedMemory memory = pin::locked_memory();
    return py::make_tuple(
        memory.locked, memory.limit == SIZE_MAX ? py::object(py::none()) : py::int_(memory.limit));
}

}  // namespace

void bind_pin(py::module_& m) {
    registry();  // made now, while one thread imports: fork handlers are part of it
    register_pin_error(m);
    m.def("allocate_dlpack", &allocate_dlpack, py::arg("nbytes"), py::arg("tag"),
          "Lock `nbytes` bytes (> 0) and return them as a DLPack capsule of a 1-D uint8 CPU "
          "tensor, not\n"
          "initialised. Raises PinError when they cannot be locked.");
    m.def(
        "release",
        [](const py::int_& address) {
            void* base = PyLong_AsVoidPtr(address.ptr());
            if (base == nullptr) {
                PyErr_Clear();
                return false;
            }
            const GilReleased unlocked;
            return registry().release(base);
        },
        py::arg("address"),
        "True if `address` was the first byte of a pinned region, which is not pinned any more. "
        "Its\n"
        "memory stays readable until the last alias goes.");
    m.def(
        "is_pinned", &is_pinned, py::arg("buffer"),
        "True when every byte that `buffer` reaches, strides included, lies in one pinned region.\n"
        "Raises TypeError for what is neither a tensor nor a buffer.");
    m.def("stats", &stats,
          "Bytes `in_use`, `cached` and at the `peak`, live `regions`, `calls`, and in-use bytes "
          "`by_tag`.");
    m.def(
        "empty_cache",
        [] {
            const GilReleased unlocked;
            registry().empty_cache();
        },
        "Unlock and unmap everything that is cached for reuse.");
    m.def(
        "set_cache_limit",
        [](const py::int_& nbytes) {
            const size_t limit = checked_size("nbytes", nbytes, 0);
            configured = true;
            const GilReleased unlocked;
            registry().set_cache_limit(limit);
        },
        py::arg("nbytes"), "Bytes that may stay locked for reuse; what is over is given up now.");
    m.def(
        "get_cache_limit",
        [] {
            configure();
            return registry().cache_limit();
        },
        "Bytes that may stay locked for reuse (DEEPNVME_PIN_CACHE_BYTES, else 2 GiB).");
    m.def("locked_memory", &locked_memory,
          "(bytes that this process has locked, RLIMIT_MEMLOCK in bytes or None when it does not "
          "apply).");
}

}  // namespace deepnvme::python
