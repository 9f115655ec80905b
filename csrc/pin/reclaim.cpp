// How regions and mappings leave the registry: release, the last alias, the limit of the pool, and
// what has to wait for a device.
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "pin/deepspeed_pin_tensor.h"
#include "sys/syscalls.h"

namespace deepnvme::pin {

void deepspeed_pin_tensor_t::end_use(Region& region) noexcept {
    if (region.uses_.fetch_sub(1) == 1) {
        unlock_when_idle(region);
    }
}

bool deepspeed_pin_tensor_t::release(const void* base) {
    std::shared_ptr<Region> region;  // outlives the lock: its deleter takes it
    {
        const std::unique_lock lock(mutex_);
        const auto entry = regions_.find(reinterpret_cast<uintptr_t>(base));
        region = entry != regions_.end() ? entry->second.region.lock() : nullptr;
        if (!region) {
            return false;
        }
        forget(*region);
        region->released_ = true;
    }
    unlock_when_idle(*region);
    return true;
}

// Unlocks a released region with a mapping of its own, once, when no use is left. The last use and
// release() may both come here at the same time.
void deepspeed_pin_tensor_t::unlock_when_idle(Region& region) noexcept {
    if (!region.released_ || region.slab_ || region.uses_ != 0 ||
        region.generation_ != generation_ || region.unlock_claimed_.exchange(true)) {
        return;
    }
    {
        const std::unique_lock lock(mutex_);
        if (set_aside(region.mapping_, false)) {
            return;
        }
    }
    notify(region.mapping_->serial);
    region.mapping_->pages.unlock();
    if (!region.mapping_->pages.locked()) {
        const std::unique_lock lock(mutex_);
        locked_ -= region.mapping_->pages.size();
    }
}

// The deleter of regions: neither an alias nor a use is left.
void deepspeed_pin_tensor_t::recycle(Region* gone) noexcept {
    const std::unique_ptr<Region> region(gone);
    if (region->generation_ != generation_ || !region->mapping_) {
        return;  // inherited by a fork: ordinary memory here. Or never attached.
    }
    // Let go of after the lock: unmapping what goes neither to the pool nor to a slab takes time.
    auto mapping = std::move(region->mapping_);
    bool retired = false;
    {
        const std::unique_lock lock(mutex_);
        if (region->registered_) {
            forget(*region);
        }
        const size_t nbytes = mapping->pages.size();
        if (region->slab_) {
            region->slab_->runs.release(region->first_page_,
                                        round_up_to_page(region->nbytes_) / sys::page_size());
        } else if (region->released_) {
            mapping->unreferenced = true;
            locked_ -= !mapping->departing && mapping->pages.locked() ? nbytes : 0;
        } else {
            try {
                pool_.put(mapping);
            } catch (const std::bad_alloc&) {
                retired = !set_aside(mapping, true);
                locked_ -= retired ? nbytes : 0;
            }
        }
    }
    if (retired) {
        notify(mapping->serial);
    }
    mapping.reset();
    trim(cache_limit_);
}

// Gives up cached mappings, the oldest first, until at most `limit` bytes are cached. True if any
// was given up.
bool deepspeed_pin_tensor_t::trim(size_t limit) noexcept {
    bool any = false;
    for (;; any = true) {
        std::shared_ptr<Mapping> victim;
        {
            const std::unique_lock lock(mutex_);
            // What is set aside is on its way already.
            if (locked_ - totals_.in_use - departing_.bytes() <= limit) {
                return any;
            }
            victim = pool_.take_oldest();
            if (!victim) {
                victim = slabs_.take_empty();
            }
            if (!victim) {
                return any;
            }
            if (set_aside(victim, true)) {
                continue;
            }
            locked_ -= victim->pages.size();
        }
        notify(victim->serial);  // then unmapped, which unlocks it
    }
}

// Puts off the unlocking of a mapping that a device reaches. The exclusive lock is held.
bool deepspeed_pin_tensor_t::set_aside(const std::shared_ptr<Mapping>& mapping,
                                       bool unreferenced) noexcept {
    if (!mapping->device_registered) {
        return false;
    }
    mapping->unreferenced = unreferenced;
    departing_.put(mapping);
    return true;
}

bool deepspeed_pin_tensor_t::finish_departures(
    const std::function<bool(const Mapping&)>& unregister) {
    for (bool any = false;;) {
        std::shared_ptr<Mapping> mapping;
        {
            const std::unique_lock lock(mutex_);
            mapping = departing_.take();
        }
        if (!mapping) {
            return any;
        }
        if (unregister(*mapping)) {
            settle(mapping);
            any = true;
        } else {
            const std::unique_lock lock(mutex_);
            departing_.strand(std::move(mapping));
        }
    }
}

// Unlocks a mapping that no device reaches any more; without a region it goes with its last owner.
void deepspeed_pin_tensor_t::settle(const std::shared_ptr<Mapping>& mapping) noexcept {
    mapping->device_registered = false;
    notify(mapping->serial);
    mapping->pages.unlock();
    const std::unique_lock lock(mutex_);
    departing_.settle(*mapping);
    if (mapping->unreferenced || !mapping->pages.locked()) {
        locked_ -= mapping->pages.size();
    }
}

void deepspeed_pin_tensor_t::notify(uint64_t serial) noexcept {
    const std::lock_guard lock(listeners_mutex_);
    for (const auto& [id, listening] : listeners_) {
        if (listening.generation == generation_) {
            listening.call(serial);
        }
    }
}

void deepspeed_pin_tensor_t::empty_cache() { trim(0); }

void deepspeed_pin_tensor_t::set_cache_limit(size_t nbytes) {
    cache_limit_ = nbytes;
    trim(nbytes);
}

size_t deepspeed_pin_tensor_t::cache_limit() const { return cache_limit_; }

}  // namespace deepnvme::pin
