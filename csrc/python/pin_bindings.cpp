// The submodule `pin`: page-locked memory.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "pin/deepspeed_pin_tensor.h"
#include "pin/page_alloc.h"
#include "python/bindings.h"
#include "python/buffer.h"
#include "python/device_hooks.h"
#include "python/dlpack_abi.h"
#include "python/gil.h"
#include "python/new_reference.h"
#include "python/pin_error.h"
#include "python/pin_settings.h"

namespace deepnvme::python {
namespace {

using pin::deepspeed_pin_tensor_t;

deepspeed_pin_tensor_t& registry() { return deepspeed_pin_tensor_t::instance(); }

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
    after_drop();
}

void delete_capsule(PyObject* capsule) {
    if (PyCapsule_IsValid(capsule, "dltensor") != 0) {  // renamed once consumed
        delete_export(
            static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor")));
    }
}

std::shared_ptr<pin::Region> allocate(size_t nbytes, const std::string& tag) {
    try {
        const GilReleased unlocked;
        return registry().allocate(nbytes, tag);
    } catch (const pin::PinError&) {
        if (!take_back()) {  // the pool may have given up what a device reached
            throw;
        }
    }
    const GilReleased unlocked;
    return registry().allocate(nbytes, tag);
}

py::object allocate_dlpack(const py::int_& nbytes, const std::string& tag) {
    const size_t size = checked_size("nbytes", nbytes, 1);
    configure_cache_limit();
    configure_budget();
    const bool wanted = registration_wanted();
    enter_pin();
    auto exported = std::make_unique<Export>();
    exported->region = allocate(size, tag);
    if (wanted) {
        offer_to_device(*exported->region);
    }
    exported->length = static_cast<int64_t>(size);
    exported->managed.tensor = {
        exported->region->data(), {dlpack::kCPU, 0}, 1, {dlpack::kUInt, 8, 1},
        &exported->length,        &exported->stride, 0};
    exported->managed.manager_context = exported.get();
    exported->managed.deleter = delete_export;
    py::object capsule =
        new_reference(PyCapsule_New(&exported->managed, "dltensor", delete_capsule));
    static_cast<void>(exported.release());  // the capsule has it
    return capsule;
}

// An unlock may have to wait for the device: it is asked afterwards.
template <typename Change>
auto with_devices(Change change) {
    struct Afterwards {
        ~Afterwards() { take_back(); }
    };
    enter_pin();
    const Afterwards afterwards;
    const GilReleased unlocked;
    return change();
}

bool is_pinned(py::handle buffer) {
    const auto span =
        span_if(buffer, [](const void* address) { return registry().is_pinned(address, 1); });
    return span && registry().is_pinned(span->data, span->nbytes);
}

py::dict stats() {
    enter_pin();
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

std::unique_ptr<RegionHold> hold(py::handle buffer) {
    const auto span = span_if(buffer, [](const void*) { return true; });
    pin::RegionUse use = span ? registry().use(span->data, span->nbytes) : pin::RegionUse();
    return use ? std::make_unique<RegionHold>(std::move(use)) : nullptr;
}

void bind_devices(py::module_& m) {
    py::class_<RegionHold>(m, "RegionHold", "Keeps a region locked, mapped and out of the pool.")
        .def_property_readonly(
            "address",
            [](const RegionHold& held) { return reinterpret_cast<uintptr_t>(held.base()); },
            "Of the first byte of the region.");
    m.def("hold", &hold, py::arg("buffer"),
          "A hold of the pinned region that all of `buffer` lies in, or None.");
    m.def("set_registrar", &set_registrar, py::arg("registrar"),
          "Who registers locked mappings with a device.");
    m.def("set_collector", &set_collector, py::arg("collector"),
          "Called to let go of holds whose streams are done.");
    m.def(
        "offer_again", &new_round,
        "Offer mappings that are not registered to the registrar again, when they are next used.");
    py::module_::import("atexit").attr("register")(py::cpp_function(&close_devices));
}

}  // namespace

void bind_pin(py::module_& m) {
    registry();  // made now, while one thread imports: fork handlers are part of it
    register_pin_error(m);
    bind_devices(m);
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
            return with_devices([base] { return registry().release(base); });
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
        "empty_cache", [] { with_devices([] { registry().empty_cache(); }); },
        "Unlock and unmap everything that is cached for reuse.");
    m.def(
        "set_cache_limit",
        [](const py::int_& nbytes) {
            set_cache_limit(checked_size("nbytes", nbytes, 0));
            take_back();
        },
        py::arg("nbytes"), "Bytes that may stay locked for reuse; what is over is given up now.");
    m.def(
        "get_cache_limit",
        [] {
            configure_cache_limit();
            return registry().cache_limit();
        },
        "Bytes that may stay locked for reuse (DEEPNVME_PIN_CACHE_BYTES, else 2 GiB).");
    m.def(
        "set_budget",
        [](const std::optional<py::int_>& nbytes) {
            set_budget(nbytes ? checked_size("nbytes", *nbytes, 0) : pin::Budget::unlimited);
        },
        py::arg("nbytes"), "Bytes that may be pinned at a time; None for any number.");
    m.def(
        "get_budget",
        []() -> py::object {
            configure_budget();
            const size_t budget = registry().budget();
            return budget == pin::Budget::unlimited ? py::object(py::none()) : py::int_(budget);
        },
        "Bytes that may be pinned at a time (DEEPNVME_PIN_BUDGET), or None.");
    m.def("locked_memory", &locked_memory,
          "(bytes that this process has locked, RLIMIT_MEMLOCK in bytes or None when it does not "
          "apply).");
}

}  // namespace deepnvme::python
