#include "python/device_hooks.h"

#include <atomic>
#include <cstdint>
#include <utility>

#include "python/gil.h"

namespace deepnvme::python {
namespace {

namespace py = pybind11;

// Under the GIL; never destroyed, since it is looked at until the process ends.
PyObject* registrar = nullptr;
PyObject* collector = nullptr;
uint64_t this_round = 1;
uint64_t asked_in_round = 0;
bool wanted = false;

std::atomic<bool> open{false};    // Python may be called: there is a registrar, and not closed
std::atomic<bool> closed{false};  // close_devices() is over
std::atomic<size_t> holds{0};

pin::deepspeed_pin_tensor_t& registry() { return pin::deepspeed_pin_tensor_t::instance(); }

py::int_ address_of(const pin::Mapping& mapping) {
    return py::int_(reinterpret_cast<uintptr_t>(mapping.pages.data()));
}

// False when the device may reach the mapping still.
bool unregister(const pin::Mapping& mapping) noexcept {
    const GilHeld held;
    if (!open) {
        return false;
    }
    const py::error_scope kept;  // a deleter may run while an exception is on its way
    try {
        return py::handle(registrar).attr("unregister")(address_of(mapping)).cast<bool>();
    } catch (py::error_already_set& error) {
        const bool interrupted = error.matches(PyExc_KeyboardInterrupt);
        error.discard_as_unraisable("pinned_manager.host_registration");
        if (interrupted) {
            PyErr_SetInterrupt();  // for whoever can be interrupted, which the hook above cannot
        }
    }
    return false;
}

}  // namespace

void set_registrar(py::object object) {
    registrar = object.release().ptr();
    open = !closed;
    new_round();
}

void set_collector(py::object object) { collector = object.release().ptr(); }

void new_round() { ++this_round; }

void enter_pin() {
    if (holds.load(std::memory_order_relaxed) != 0 && collector != nullptr && open) {
        const py::handle collect(collector);
        collect();
    }
    take_back();
}

bool registration_wanted() {
    if (asked_in_round != this_round) {
        const uint64_t round = this_round;
        wanted = open && py::handle(registrar).attr("wanted")().cast<bool>();
        asked_in_round = round;
    }
    return wanted && open;
}

void offer_to_device(const pin::Region& region) {
    pin::Mapping& mapping = *region.mapping();
    const uint64_t round = this_round;
    if (mapping.device_registered || mapping.device_offer.exchange(round) == round) {
        return;
    }
    const pin::RegionUse use = registry().use(region.data(), 1);
    if (!use) {
        return;  // released by its address already
    }
    try {
        mapping.device_registered =
            py::handle(registrar)
                .attr("register")(address_of(mapping), py::int_(mapping.pages.size()))
                .cast<bool>();
    } catch (...) {
        mapping.device_offer = 0;
        throw;
    }
}

bool take_back() {
    if (!registry().any_departing() || !open) {
        return false;
    }
    const GilReleased unlocked;  // unlocking gigabytes takes a while
    return registry().finish_departures(unregister);
}

void after_drop() noexcept {
    if (open && registry().any_departing() && PyGILState_Check() == 1) {
        take_back();
    }
}

void close_devices() {
    const struct Closing {
        ~Closing() {
            closed = true;
            open = false;
        }
    } closing;  // also when the collector is interrupted
    enter_pin();
    {
        const GilReleased unlocked;
        registry().empty_cache();
    }
    take_back();
}

RegionHold::RegionHold(pin::RegionUse use) : use_(std::move(use)) { ++holds; }

RegionHold::~RegionHold() {
    --holds;
    if (closed) {
        new pin::RegionUse(std::move(use_));  // a device may work on it until the process ends
        return;
    }
    use_ = {};
    after_drop();
}

}  // namespace deepnvme::python
