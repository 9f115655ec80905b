// deepspeed_pin_tensor_t: THE process-wide registry of page-locked regions, and the pool of freed
// ones.
//
// Ownership:
//   Mapping: one locked mapping. A large region owns one; small regions share a slab, carved page
//      by page.
//   Region: bytes handed to a user. std::shared_ptr<Region> is held by every alias (the DLPack
//      deleter of a tensor) and by every use. The last one to go returns the pages to the pool.
//   RegionUse: a request in flight (or a device copy) that needs the pages locked and mapped.
// release() makes a region not pinned (and not counted) at once. Pages of a region with a mapping
// of its own are unlocked as soon as no RegionUse is left; pages of a slab stay locked and count as
// cached. The address space goes with the last alias. mlock does not nest and is not inherited by
// fork (mlock(2)): only this file locks and unlocks, and a forked child starts with an empty
// registry, in which inherited regions are ordinary memory.
//
// Devices: whoever registers a mapping with a device does so outside of the registry, holding a
// RegionUse, and sets Mapping::device_registered. From then on the registry neither unlocks nor
// unmaps it: what has to go is set aside, locked and counted as cached, until finish_departures()
// has taken the registration back. So no thread that drops a region ever calls into a device.
//
// Locking: one shared mutex guards the bookkeeping, and is never held while pages are mapped,
// faulted, unlocked or unmapped, nor while a listener runs. Listeners have a mutex of their own.
// Both are taken around fork.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>

#include "pin/budget.h"
#include "pin/departing_mappings.h"
#include "pin/mapping_pool.h"
#include "pin/slab.h"

namespace deepnvme::pin {

class deepspeed_pin_tensor_t;
class RegionUse;

class Region {
public:
    std::byte* data() const { return data_; }
    // Bytes asked; the pages behind are round_up_to_page(nbytes).
    size_t nbytes() const { return nbytes_; }
    const std::string& tag() const { return tag_; }  // owner
    // To keep the pages locked and mapped hold a RegionUse: holding the mapping alone does not.
    const std::shared_ptr<Mapping>& mapping() const { return mapping_; }

private:
    friend class deepspeed_pin_tensor_t;
    friend class RegionUse;
    Region(size_t nbytes, std::string_view tag, uint64_t generation)
        : nbytes_(nbytes), tag_(tag), generation_(generation) {}

    std::byte* data_ = nullptr;
    size_t nbytes_;
    std::string tag_;
    uint64_t generation_;  // the process (count of forks) whose registry this region belongs to
    std::shared_ptr<Mapping> mapping_;
    std::shared_ptr<Slab> slab_;  // null for a mapping of its own
    size_t first_page_ = 0;       // within the slab
    bool registered_ = false;     // under the registry's mutex
    std::atomic<size_t> uses_{0};
    std::atomic<bool> released_{false};
    std::atomic<bool> unlock_claimed_{false};  // by the one thread that unlocks after a release
};

class RegionUse {  // movable, copyable: each copy counts
public:
    RegionUse() = default;
    RegionUse(const RegionUse& other);
    RegionUse(RegionUse&& other) noexcept = default;
    RegionUse& operator=(RegionUse other) noexcept;
    ~RegionUse();
    explicit operator bool() const { return region_ != nullptr; }
    const Region* operator->() const { return region_.get(); }

private:
    friend class deepspeed_pin_tensor_t;
    explicit RegionUse(std::shared_ptr<Region> counted) : region_(std::move(counted)) {}
    std::shared_ptr<Region> region_;
};

struct Stats {
    size_t in_use = 0;   // page-rounded bytes of live pinned regions
    size_t cached = 0;   // every other locked byte: the pool, the rest of slabs, what is released
                         // and still in use
    size_t peak = 0;     // highest in_use
    size_t regions = 0;  // live pinned regions
    uint64_t calls = 0;  // successful allocations
    std::map<std::string, size_t> by_tag;  // in_use by owner; tags at zero are left out
};

class deepspeed_pin_tensor_t {
public:
    static deepspeed_pin_tensor_t& instance();

    // nbytes > 0. Throws PinError; nothing is left behind by a failure. The pool is emptied and the
    // lock tried again before giving up; the budget is looked at before anything is mapped.
    std::shared_ptr<Region> allocate(size_t nbytes, std::string_view tag);
    // True when [address, address + nbytes) lies in one pinned region. nbytes == 0 is never pinned.
    bool is_pinned(const void* address, size_t nbytes) const;
    // The region around [address, address + nbytes) for a request, or an empty use.
    RegionUse use(const void* address, size_t nbytes) const;
    // True if `base` was the first byte of a pinned region, which is not pinned any more.
    bool release(const void* base);
    // Unlocks and unmaps everything that the pool holds.
    void empty_cache();
    // Bytes that may stay cached. The unused part of a slab in use counts, but cannot be given up.
    void set_cache_limit(size_t nbytes);
    size_t cache_limit() const;
    // Bytes that may be in use, page-rounded; Budget::unlimited for any. What is beyond it stays.
    void set_budget(size_t nbytes);
    size_t budget() const;
    Stats stats() const;

    // Takes registrations back: calls `unregister` for each mapping that waits for it, with no lock
    // held. What it answers true for is unlocked, and unmapped when no region refers to it; the
    // rest stays locked for good. True if anything was unlocked. `unregister` must not throw.
    bool finish_departures(const std::function<bool(const Mapping&)>& unregister);
    bool any_departing() const { return departing_.any_waiting(); }

    // Called with a mapping's serial just before its pages are unlocked or unmapped; never while a
    // RegionUse of it exists. The listener must not call the registry, block or throw. Once remove
    // returns, it does not run.
    using Listener = std::function<void(uint64_t serial)>;
    uint64_t add_release_listener(Listener listener);
    void remove_release_listener(uint64_t id);

private:
    friend class RegionUse;
    struct Entry {
        uintptr_t end;
        std::weak_ptr<Region> region;
    };
    struct Listening {
        uint64_t generation;
        Listener call;
    };
    using Regions = std::map<uintptr_t, Entry>;  // by base

    deepspeed_pin_tensor_t();
    class Reservation;
    void attach_run(Region& region);
    void attach_mapping(Region& region);
    std::shared_ptr<Mapping> map_locked(size_t nbytes);
    const Entry* find(const void* address, size_t nbytes) const;
    void enter(const std::shared_ptr<Region>& region);
    void forget(Region& region);
    void recycle(Region* region) noexcept;
    void end_use(Region& region) noexcept;
    void unlock_when_idle(Region& region) noexcept;
    bool trim(size_t limit) noexcept;
    bool set_aside(const std::shared_ptr<Mapping>& mapping, bool unreferenced) noexcept;
    void settle(const std::shared_ptr<Mapping>& mapping) noexcept;
    void notify(uint64_t serial) noexcept;
    void restart_in_child();

    mutable std::shared_mutex mutex_;
    Regions regions_;
    MappingPool pool_;
    SlabSet slabs_;
    DepartingMappings departing_;
    Budget budget_;
    size_t locked_ = 0;  // bytes of every mapping that is locked; cached is what is not in use
    Stats totals_;       // all but `cached` and `regions`

    std::mutex listeners_mutex_;
    uint64_t next_listener_ = 1;
    std::map<uint64_t, Listening> listeners_;

    std::atomic<uint64_t> generation_{0};
    std::atomic<size_t> cache_limit_;
    std::atomic<uint64_t> next_serial_{1};
};

}  // namespace deepnvme::pin
