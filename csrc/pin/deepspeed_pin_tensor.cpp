#include "pin/deepspeed_pin_tensor.h"

#include <algorithm>
#include <new>
#include <stdexcept>
#include <utility>

#include "pin/page_alloc.h"
#include "sys/process.h"
#include "sys/syscalls.h"

namespace deepnvme::pin {
namespace {

constexpr size_t small_region = size_t{256} << 10;  // carved out of a slab up to this size
constexpr size_t default_cache_limit = size_t{2} << 30;

size_t saturated_round_up(size_t nbytes) {
    return nbytes <= SIZE_MAX - sys::page_size() ? round_up_to_page(nbytes) : SIZE_MAX;
}

}  // namespace

// Bytes that an allocation in progress holds of the budget.
class deepspeed_pin_tensor_t::Reservation {
public:
    Reservation(deepspeed_pin_tensor_t& registry, size_t nbytes)
        : registry_(registry), nbytes_(nbytes) {
        const std::unique_lock lock(registry_.mutex_);
        registry_.budget_.reserve(nbytes_, registry_.totals_.in_use, registry_.totals_.by_tag);
    }
    ~Reservation() {
        if (nbytes_ > 0) {
            const std::unique_lock lock(registry_.mutex_);
            end();
        }
    }
    Reservation(const Reservation&) = delete;
    Reservation& operator=(const Reservation&) = delete;
    void end() noexcept { registry_.budget_.end_reservation(std::exchange(nbytes_, 0)); }

private:
    deepspeed_pin_tensor_t& registry_;
    size_t nbytes_;
};

RegionUse::RegionUse(const RegionUse& other) : region_(other.region_) {
    if (region_) {
        region_->uses_.fetch_add(1);
    }
}

RegionUse& RegionUse::operator=(RegionUse other) noexcept {
    region_.swap(other.region_);
    return *this;
}

RegionUse::~RegionUse() {
    if (region_) {
        deepspeed_pin_tensor_t::instance().end_use(*region_);
    }
}

deepspeed_pin_tensor_t& deepspeed_pin_tensor_t::instance() {
    // Never destroyed: deleters of tensors run during and after static destruction.
    static auto* registry = new deepspeed_pin_tensor_t;
    return *registry;
}

deepspeed_pin_tensor_t::deepspeed_pin_tensor_t() : cache_limit_(default_cache_limit) {
    // A lock that another thread holds at fork would stay held in the child for ever.
    sys::at_fork(
        [] {
            instance().listeners_mutex_.lock();
            instance().mutex_.lock();
        },
        [] {
            instance().mutex_.unlock();
            instance().listeners_mutex_.unlock();
        },
        [] { instance().restart_in_child(); });
}

std::shared_ptr<Region> deepspeed_pin_tensor_t::allocate(size_t nbytes, std::string_view tag) {
    if (nbytes == 0) {
        throw std::invalid_argument("a pinned region needs at least one byte");
    }
    // Held outside of every lock: when a step below throws, its deleter gives back what was
    // attached.
    const std::shared_ptr<Region> region(new Region(nbytes, tag, generation_.load()),
                                         [](Region* gone) { instance().recycle(gone); });
    Reservation reservation(*this, saturated_round_up(nbytes));
    nbytes <= small_region ? attach_run(*region) : attach_mapping(*region);
    const std::unique_lock lock(mutex_);
    enter(region);
    reservation.end();  // under the lock that counts them as in use: never twice, never not
    return region;
}

void deepspeed_pin_tensor_t::attach_run(Region& region) {
    const size_t nbytes = round_up_to_page(region.nbytes_);
    const size_t pages = nbytes / sys::page_size();
    auto carve = [&] {
        auto run = slabs_.carve(pages);
        if (run) {
            region.mapping_ = run->slab->mapping;
            region.slab_ = std::move(run->slab);
            region.first_page_ = run->first;
            region.data_ = region.mapping_->pages.data() + run->first * sys::page_size();
        }
        return run.has_value();
    };
    size_t slab_bytes = 0;
    {
        const std::unique_lock lock(mutex_);
        if (carve()) {
            return;
        }
        slab_bytes = std::max(slabs_.growth(), nbytes);
    }
    std::shared_ptr<Mapping> mapping;
    while (!mapping) {
        try {
            // The last try asks for what the caller asked, which is what an error then says.
            mapping = map_locked(slab_bytes == nbytes ? region.nbytes_ : slab_bytes);
        } catch (const PinError&) {
            if (slab_bytes == nbytes) {
                throw;
            }
            slab_bytes = std::max(round_up_to_page(slab_bytes / 2), nbytes);
        }
    }
    auto slab = std::make_shared<Slab>(mapping);
    const std::unique_lock lock(mutex_);
    slabs_.add(std::move(slab));
    locked_ += mapping->pages.size();
    carve();  // the new slab has room, and nobody else could reach it before this lock
}

void deepspeed_pin_tensor_t::attach_mapping(Region& region) {
    {
        const std::unique_lock lock(mutex_);
        region.mapping_ = pool_.take(saturated_round_up(region.nbytes_));
    }
    if (!region.mapping_) {
        region.mapping_ = map_locked(region.nbytes_);
        const std::unique_lock lock(mutex_);
        locked_ += region.mapping_->pages.size();
    }
    region.data_ = region.mapping_->pages.data();
}

// Throws PinError once nothing that the pool could give up is left.
std::shared_ptr<Mapping> deepspeed_pin_tensor_t::map_locked(size_t nbytes) {
    auto mapping = std::make_shared<Mapping>();
    mapping->serial = next_serial_.fetch_add(1);
    try {
        mapping->pages = PageMapping(nbytes, PageMapping::Residency::locked);
    } catch (const PinError&) {
        if (!trim(0)) {
            throw;
        }
        mapping->pages = PageMapping(nbytes, PageMapping::Residency::locked);
    }
    return mapping;
}

// Makes an attached region pinned and counted. The exclusive lock is held.
void deepspeed_pin_tensor_t::enter(const std::shared_ptr<Region>& region) {
    const size_t nbytes = round_up_to_page(region->nbytes_);
    const auto base = reinterpret_cast<uintptr_t>(region->data_);
    size_t& tagged = totals_.by_tag[region->tag_];
    regions_.emplace(base, Entry{base + region->nbytes_, region});
    region->registered_ = true;
    tagged += nbytes;
    totals_.in_use += nbytes;
    totals_.peak = std::max(totals_.peak, totals_.in_use);
    ++totals_.calls;
}

// The reverse. The exclusive lock is held.
void deepspeed_pin_tensor_t::forget(Region& region) {
    const size_t nbytes = round_up_to_page(region.nbytes_);
    regions_.erase(reinterpret_cast<uintptr_t>(region.data_));
    region.registered_ = false;
    totals_.in_use -= nbytes;
    const auto tagged = totals_.by_tag.find(region.tag_);
    tagged->second -= nbytes;
    if (tagged->second == 0) {
        totals_.by_tag.erase(tagged);
    }
}

// The entry whose region holds all of [address, address + nbytes), or null. A lock is held, shared
// or exclusive.
const deepspeed_pin_tensor_t::Entry* deepspeed_pin_tensor_t::find(const void* address,
                                                                  size_t nbytes) const {
    const auto start = reinterpret_cast<uintptr_t>(address);
    auto entry = regions_.upper_bound(start);
    if (nbytes == 0 || entry == regions_.begin()) {
        return nullptr;
    }
    --entry;
    const uintptr_t end = entry->second.end;
    return start < end && nbytes <= end - start ? &entry->second : nullptr;
}

bool deepspeed_pin_tensor_t::is_pinned(const void* address, size_t nbytes) const {
    const std::shared_lock lock(mutex_);
    return find(address, nbytes) != nullptr;
}

RegionUse deepspeed_pin_tensor_t::use(const void* address, size_t nbytes) const {
    const std::shared_lock lock(mutex_);
    const Entry* entry = find(address, nbytes);
    // Null when the last alias is going just now: its deleter waits for the lock. Counted under the
    // lock, so that release(), which takes it exclusively, sees this use or is seen by it.
    auto region = entry != nullptr ? entry->region.lock() : nullptr;
    if (!region) {
        return {};
    }
    region->uses_.fetch_add(1);
    return RegionUse(std::move(region));
}

void deepspeed_pin_tensor_t::set_budget(size_t nbytes) {
    const std::unique_lock lock(mutex_);
    budget_.set_limit(nbytes);
}

size_t deepspeed_pin_tensor_t::budget() const {
    const std::shared_lock lock(mutex_);
    return budget_.limit();
}

Stats deepspeed_pin_tensor_t::stats() const {
    const std::shared_lock lock(mutex_);
    Stats stats = totals_;
    stats.cached = locked_ - totals_.in_use;
    stats.regions = regions_.size();
    std::erase_if(stats.by_tag, [](const auto& tagged) { return tagged.second == 0; });
    return stats;
}

uint64_t deepspeed_pin_tensor_t::add_release_listener(Listener listener) {
    const std::lock_guard lock(listeners_mutex_);
    const uint64_t id = next_listener_++;
    listeners_.emplace(id, Listening{generation_, std::move(listener)});
    return id;
}

void deepspeed_pin_tensor_t::remove_release_listener(uint64_t id) {
    const std::lock_guard lock(listeners_mutex_);
    listeners_.erase(id);
}

// The thread that forked holds both mutexes, but under another thread id: they are made anew, not
// unlocked.
void deepspeed_pin_tensor_t::restart_in_child() {
    new (&mutex_) std::shared_mutex;
    new (&listeners_mutex_) std::mutex;
    ++generation_;  // inherited regions and listeners are not of this registry
    // Moved to where nothing frees it: freeing a hundred thousand entries would copy every page
    // they are on.
    new Regions(std::move(regions_));
    regions_.clear();
    pool_ = {};  // unmaps: the pages would stay in memory once the parent writes to its own
    slabs_ = {};
    departing_.clear();
    budget_.forget_reservations();
    locked_ = 0;
    totals_ = {};
}

}  // namespace deepnvme::pin
