// Devices, seen from the registry's binding: registration of locked mappings, and regions that
// streams still use. What is done to a device is Python: pinned_manager/host_registration.py (the
// registrar) and pinned_manager/streams.py (the collector).
//
//   1. enter_pin(): every function of the module `pin` that allocates, frees or reports calls it
//      first, with the GIL. Regions whose streams are done are let go (the collector), then the
//      registrations of mappings that were set aside are taken back.
//   2. offer_to_device(): a region was locked. Its mapping is offered to the registrar, once a
//      round, while a RegionUse keeps it locked; a yes sets Mapping::device_registered.
//   3. From then on the registry sets the mapping aside instead of unlocking it. Who dropped it
//      takes the registration back if it has the GIL: take_back(), in functions of the module, and
//      after_drop(), in deleters. A thread without the GIL never takes it, since whoever holds it
//      may wait for that thread; its mappings stay aside, locked, until the next enter_pin().
//   4. No lock of the registry is held while the registrar runs.
//   5. close_devices(), at exit: the pool is emptied and registrations are taken back. After it no
//      Python runs: what is set aside stays locked, and what streams hold stays held, until the
//      process ends.
//   6. A forked child has an empty registry, in which nothing is registered or set aside. The
//      registrar leaves the device alone there.
#pragma once

#include <pybind11/pybind11.h>

#include "pin/deepspeed_pin_tensor.h"

namespace deepnvme::python {

// The registrar has wanted() -> bool, register(address, nbytes) -> bool and
// unregister(address) -> bool; the collector is called without arguments. Both are kept for good.
void set_registrar(pybind11::object registrar);
void set_collector(pybind11::object collector);
// Another device may want what the last one did not: mappings in use are offered again.
void new_round();

void enter_pin();
// Asks the registrar, which may raise for a setting: call it before anything is locked.
bool registration_wanted();
void offer_to_device(const pin::Region& region);
// True when anything was unlocked.
bool take_back();
// Of a region or a use of it; on any thread, with or without the GIL.
void after_drop() noexcept;
void close_devices();

// Keeps the region of a pinned tensor locked, mapped and out of the pool.
class RegionHold {
public:
    explicit RegionHold(pin::RegionUse use);
    ~RegionHold();
    RegionHold(const RegionHold&) = delete;
    RegionHold& operator=(const RegionHold&) = delete;
    const std::byte* base() const { return use_->data(); }

private:
    pin::RegionUse use_;
};

}  // namespace deepnvme::python
