// Guards: what a device reaches is neither unlocked nor unmapped before its registration is taken
// back, whoever drops it, and is counted as cached until then.
#include <sys/mman.h>

#include <atomic>
#include <memory>
#include <random>
#include <set>
#include <string_view>
#include <thread>
#include <vector>

#include "check.h"
#include "locked_bytes.h"
#include "pin/deepspeed_pin_tensor.h"
#include "pin_registry.h"
#include "sys/syscalls.h"

using namespace deepnvme;
using pin::Mapping;
using pin::Region;
using pin::RegionUse;
using test::KiB;
using test::MiB;
using test::page;
using test::registry;

namespace {

const size_t locked_before = test::locked_bytes();

size_t locked_now() { return test::locked_bytes() - locked_before; }

pin::Stats checked_stats() {
    const pin::Stats stats = registry().stats();
    CHECK(stats.in_use + stats.cached == locked_now());
    return stats;
}

bool mapped(const void* address) {
    unsigned char resident = 0;
    return ::mincore(const_cast<void*>(address), 1, &resident) == 0;
}

// A device that knows what it is registered with, and can be made to keep it.
struct Device {
    std::set<uint64_t> known;
    bool refuses = false;

    void reach(const Region& region) {
        const RegionUse use = registry().use(region.data(), 1);
        CHECK(use && !region.mapping()->device_registered);
        known.insert(region.mapping()->serial);
        region.mapping()->device_registered = true;
    }
    bool let_go() {
        return registry().finish_departures([this](const Mapping& mapping) {
            CHECK(mapping.pages.locked() && mapped(mapping.pages.data()));
            CHECK(known.count(mapping.serial) == 1);
            if (!refuses) {
                known.erase(mapping.serial);
            }
            return !refuses;
        });
    }
};

void start_empty(Device& device) {
    registry().set_cache_limit(64 * MiB);
    registry().empty_cache();
    device.let_go();
    CHECK(device.known.empty() && checked_stats().cached == 0);
}

void reuse_keeps_the_registration() {
    Device device;
    start_empty(device);
    auto region = registry().allocate(MiB, "a");
    device.reach(*region);
    const std::byte* data = region->data();
    region.reset();
    CHECK(!registry().any_departing() && checked_stats().cached == MiB);
    region = registry().allocate(MiB, "a");
    CHECK(region->data() == data && region->mapping()->device_registered);
    region.reset();
    start_empty(device);
}

void the_pool_gives_up_only_what_was_let_go(size_t nbytes) {
    Device device;
    start_empty(device);
    auto region = registry().allocate(nbytes, "a");
    device.reach(*region);
    const std::byte* data = region->data();
    const size_t total = region->mapping()->pages.size();
    region.reset();
    registry().empty_cache();
    CHECK(registry().any_departing() && mapped(data) && checked_stats().cached == total);
    CHECK(registry().allocate(nbytes, "b")->data() != data);  // not handed out meanwhile
    registry().set_cache_limit(0);  // nothing else is given up for what is on its way
    registry().set_cache_limit(64 * MiB);
    CHECK(device.let_go() && !device.let_go());
    CHECK(!registry().any_departing() && !mapped(data) && checked_stats().cached == 0);
}

void what_waits_is_no_reason_to_give_up_more() {
    Device device;
    start_empty(device);
    auto first = registry().allocate(MiB, "a");
    auto second = registry().allocate(2 * MiB, "a");
    device.reach(*first);
    const std::byte* kept = second->data();
    first.reset();
    second.reset();
    registry().set_cache_limit(2 * MiB);
    CHECK(mapped(kept) && checked_stats().cached == 3 * MiB);
    device.let_go();
    CHECK(mapped(kept) && checked_stats().cached == 2 * MiB);
}

void release_unlocks_once_let_go(bool alias_outlives, bool use_outlives) {
    Device device;
    start_empty(device);
    auto region = registry().allocate(MiB, "a");
    device.reach(*region);
    std::byte* data = region->data();
    RegionUse use = use_outlives ? registry().use(data, 1) : RegionUse();
    CHECK(registry().release(data) && !registry().is_pinned(data, 1));
    CHECK(registry().any_departing() != use_outlives);
    use = RegionUse();
    CHECK(registry().any_departing() && checked_stats().in_use == 0);
    CHECK(checked_stats().cached == MiB);
    if (!alias_outlives) {
        region.reset();
        CHECK(mapped(data) && checked_stats().cached == MiB);
    }
    CHECK(device.let_go() && checked_stats().cached == 0);
    CHECK(mapped(data) == alias_outlives);
    region.reset();
    CHECK(!mapped(data) && checked_stats().cached == 0);
}

int refuse_unlock(const char* call) { return std::string_view(call) == "munlock" ? ENOMEM : 0; }

void a_refused_unlock_is_made_up_by_unmapping() {
    Device device;
    start_empty(device);
    auto region = registry().allocate(MiB, "a");
    device.reach(*region);
    CHECK(registry().release(region->data()));
    sys::set_fault_hook(refuse_unlock);
    CHECK(device.let_go() && checked_stats().cached == MiB);
    sys::set_fault_hook(nullptr);
    region.reset();
    CHECK(checked_stats().cached == 0);
}

void what_a_device_keeps_stays_locked_for_good() {
    Device device;
    start_empty(device);
    auto region = registry().allocate(MiB, "a");
    device.reach(*region);
    const std::byte* data = region->data();
    CHECK(registry().release(data));
    device.refuses = true;
    CHECK(!device.let_go() && !registry().any_departing());
    region.reset();
    device.refuses = false;
    registry().empty_cache();
    CHECK(!device.let_go() && mapped(data) && checked_stats().cached == MiB);
}

// Threads that drop regions, never ask a device, and one that does.
void threads_only_set_aside() {
    registry().set_cache_limit(MiB);
    std::atomic<bool> stop{false};
    std::atomic<size_t> reached{0};
    std::atomic<size_t> undone{0};
    const auto let_go = [&](const Mapping& mapping) {
        CHECK(mapping.pages.locked());
        ++undone;
        return true;
    };
    std::jthread collector([&] {
        while (!stop) {
            registry().finish_departures(let_go);
        }
    });
    {
        std::vector<std::jthread> threads;
        for (unsigned seed = 0; seed < 3; ++seed) {
            threads.emplace_back([&, seed] {
                std::mt19937 random(seed);
                for (int round = 0; round < 1000; ++round) {
                    auto region = registry().allocate(1 + random() % (600 * KiB), "a");
                    Mapping& mapping = *region->mapping();
                    if (mapping.device_offer.exchange(1) != 1) {
                        const RegionUse use = registry().use(region->data(), 1);
                        ++reached;
                        mapping.device_registered = true;
                    }
                    if (random() % 2 == 0) {
                        CHECK(registry().release(region->data()));
                    }
                }
            });
        }
    }
    stop = true;
    collector.join();
    registry().empty_cache();
    registry().finish_departures(let_go);
    CHECK(reached > 0 && undone == reached);
}

}  // namespace

int main() {
    reuse_keeps_the_registration();
    the_pool_gives_up_only_what_was_let_go(page);
    the_pool_gives_up_only_what_was_let_go(MiB);
    what_waits_is_no_reason_to_give_up_more();
    for (bool alias_outlives : {false, true}) {
        for (bool use_outlives : {false, true}) {
            release_unlocks_once_let_go(alias_outlives, use_outlives);
        }
    }
    a_refused_unlock_is_made_up_by_unmapping();
    threads_only_set_aside();
    what_a_device_keeps_stays_locked_for_good();  // the last: its memory stays
    return 0;
}
