// Guards: the registry's books equal VmLck; a region lives as long as its last alias or use; freed
// pages are reused. Everything here stays below 8 MiB locked, the usual limit, so that it runs
// without privileges.
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <vector>

#include "check.h"
#include "locked_bytes.h"
#include "pin/deepspeed_pin_tensor.h"
#include "pin_registry.h"
#include "sys/syscalls.h"

using namespace deepnvme;
using pin::PinError;
using pin::Region;
using pin::RegionUse;
using test::KiB;
using test::MiB;
using test::page;
using test::registry;

namespace {

const size_t locked_before = test::locked_bytes();

// The books, once they are known to equal what the kernel counts.
pin::Stats checked_stats() {
    const pin::Stats stats = registry().stats();
    size_t tagged = 0;
    for (const auto& [tag, nbytes] : stats.by_tag) {
        CHECK(nbytes > 0);
        tagged += nbytes;
    }
    CHECK(tagged == stats.in_use);
    CHECK(stats.in_use + stats.cached == test::locked_bytes() - locked_before);
    CHECK(stats.peak >= stats.in_use);
    return stats;
}

void start_empty() {
    sys::set_fault_hook(nullptr);
    registry().set_cache_limit(64 * MiB);
    registry().empty_cache();
    const pin::Stats stats = checked_stats();
    CHECK(stats.in_use == 0 && stats.cached == 0 && stats.regions == 0);
}

bool mapped(const void* address) {
    unsigned char page = 0;
    return ::mincore(const_cast<void*>(address), 1, &page) == 0;
}

void lookup_is_by_the_whole_span() {
    start_empty();
    const auto first = registry().allocate(3 * page, "a");
    const auto second = registry().allocate(page + 1, "b");
    CHECK(second->data() ==
          first->data() + 3 * page);  // neighbours in one slab, and yet two regions
    const auto pinned = [](const std::byte* data, size_t nbytes) {
        const bool answer = registry().is_pinned(data, nbytes);
        CHECK(static_cast<bool>(registry().use(data, nbytes)) == answer);
        return answer;
    };
    CHECK(pinned(first->data(), 3 * page));
    CHECK(pinned(first->data() + 5, 3 * page - 5));
    CHECK(!pinned(first->data() + 5, 3 * page - 4));
    CHECK(!pinned(first->data() - 1, 2));
    CHECK(pinned(second->data() + page, 1));
    CHECK(!pinned(second->data() + page + 1, 1));  // behind the bytes that were asked for
    CHECK(!pinned(first->data(), 0) && !pinned(first->data() + 3 * page, 0));
    CHECK(!pinned(first->data(), SIZE_MAX) && !pinned(nullptr, 1) && !pinned(nullptr, SIZE_MAX));
    CHECK(registry().use(second->data(), 1)->tag() == "b");
    CHECK(registry().use(second->data(), 1)->nbytes() == page + 1);
    const pin::Stats stats = checked_stats();
    CHECK(stats.in_use == 5 * page && stats.regions == 2);
    CHECK(stats.by_tag == (std::map<std::string, size_t>{{"a", 3 * page}, {"b", 2 * page}}));
    CHECK_THROWS(std::invalid_argument, error, registry().allocate(0, "a")) {}
}

void freed_mappings_are_reused_by_size() {
    start_empty();
    const uint64_t calls = registry().stats().calls;
    auto region = registry().allocate(MiB + 1, "a");
    const uint64_t serial = region->mapping()->serial;
    const std::byte* data = region->data();
    auto alias = region;
    region.reset();
    CHECK(registry().is_pinned(data, MiB + 1));  // the alias holds it
    CHECK(checked_stats().in_use == MiB + page);
    alias.reset();
    CHECK(!registry().is_pinned(data, 1));
    CHECK(checked_stats().cached == MiB + page && checked_stats().in_use == 0);
    region = registry().allocate(MiB, "a");  // another size
    CHECK(region->mapping()->serial != serial);
    auto reused = registry().allocate(MiB + page, "a");
    CHECK(reused->mapping()->serial == serial && reused->data() == data);
    CHECK(checked_stats().cached == 0 && checked_stats().calls == calls + 3);
}

void the_oldest_goes_when_over_the_limit() {
    start_empty();
    std::vector<std::shared_ptr<Region>> regions;
    std::vector<const std::byte*> bases;
    for (size_t size : {300 * KiB, 400 * KiB, 500 * KiB}) {
        regions.push_back(registry().allocate(size, "a"));
        bases.push_back(regions.back()->data());
    }
    registry().set_cache_limit(900 * KiB);
    CHECK(registry().cache_limit() == 900 * KiB);
    regions[1].reset();
    regions[0].reset();
    CHECK(checked_stats().cached == 700 * KiB);
    regions[2].reset();  // 1200 KiB: the 400, freed first, goes
    CHECK(checked_stats().cached == 800 * KiB && !mapped(bases[1]) && mapped(bases[0]));
    registry().set_cache_limit(0);
    CHECK(checked_stats().cached == 0);
    registry().allocate(MiB, "a").reset();
    registry().allocate(page, "a").reset();
    CHECK(checked_stats().cached == 0);
}

void small_regions_share_mappings() {
    start_empty();
    registry().allocate(page, "warm").reset();  // heap and slab
    const size_t maps = test::mappings();
    std::vector<std::shared_ptr<Region>> regions;
    for (size_t i = 0; i < 1000; ++i) {
        regions.push_back(registry().allocate(1 + i % 7 * 900, "small"));
        std::memset(regions.back()->data(), static_cast<int>(i % 251), regions.back()->nbytes());
    }
    CHECK(test::mappings() < maps + 50);
    checked_stats();
    for (size_t i = 0; i < regions.size(); ++i) {
        CHECK(regions[i]->data()[regions[i]->nbytes() - 1] == static_cast<std::byte>(i % 251));
        if (i % 2 == 0) {
            regions[i].reset();
        }
    }
    const pin::Stats half = checked_stats();
    CHECK(half.regions == 500);
    const size_t total = half.in_use + half.cached;
    for (size_t i = 0; i < regions.size(); i += 2) {
        regions[i] = registry().allocate(1 + i % 7 * 900, "again");  // from the gaps
    }
    CHECK(checked_stats().in_use + checked_stats().cached == total);
    regions.clear();
    CHECK(checked_stats().in_use == 0 && checked_stats().cached == total);
    registry().empty_cache();
    CHECK(checked_stats().cached == 0);
}

void release_unpins_at_once_and_unlocks_when_unused(size_t nbytes) {
    start_empty();
    const bool slab = nbytes <= 256 * KiB;
    std::vector<uint64_t> told;
    const uint64_t listener =
        registry().add_release_listener([&](uint64_t serial) { told.push_back(serial); });
    auto region = registry().allocate(nbytes, "a");
    std::byte* data = region->data();
    const uint64_t serial = region->mapping()->serial;
    RegionUse use = registry().use(data + 1, 7);
    RegionUse copy = use;
    RegionUse moved = std::move(use);
    CHECK(use.operator bool() == false && copy && moved->data() == data);
    CHECK(!registry().release(data + 1) && !registry().release(nullptr));
    CHECK(registry().release(data) && !registry().release(data));
    CHECK(!registry().is_pinned(data, 1) && !registry().use(data, 1));
    CHECK(checked_stats().in_use == 0 && checked_stats().regions == 0);
    const size_t still_locked = checked_stats().cached;
    CHECK(still_locked >= nbytes && told.empty());
    moved = RegionUse();
    CHECK(checked_stats().cached == still_locked && told.empty());
    copy = RegionUse();
    CHECK(checked_stats().cached == (slab ? still_locked : 0));
    CHECK(told == (slab ? std::vector<uint64_t>{} : std::vector<uint64_t>{serial}));
    std::memset(data, 1, nbytes);  // the alias keeps it readable
    const auto other = registry().allocate(nbytes, "b");
    CHECK(other->data() != data);
    region.reset();
    CHECK(mapped(data) == slab);
    checked_stats();
    registry().remove_release_listener(listener);
}

void a_use_outlives_every_alias(size_t nbytes) {
    start_empty();
    auto region = registry().allocate(nbytes, "a");
    std::byte* data = region->data();
    RegionUse use = registry().use(data, nbytes);
    region.reset();
    CHECK(registry().is_pinned(data, nbytes) && checked_stats().regions == 1);
    CHECK(registry().allocate(nbytes, "b")->data() != data);
    use = RegionUse();
    CHECK(!registry().is_pinned(data, 1) && checked_stats().regions == 0);
}

void listeners_hear_of_what_leaves_the_pool() {
    start_empty();
    std::vector<uint64_t> told;
    std::vector<uint64_t> expected;
    const uint64_t listener =
        registry().add_release_listener([&](uint64_t serial) { told.push_back(serial); });
    for (size_t size : {page, MiB}) {
        const auto region = registry().allocate(size, "a");
        expected.insert(expected.begin(), region->mapping()->serial);
    }
    CHECK(told.empty());
    registry().empty_cache();
    CHECK(told == expected);  // the pool, then slabs
    registry().remove_release_listener(listener);
    registry().allocate(MiB, "a").reset();
    registry().empty_cache();
    CHECK(told.size() == 2);
}

int refused = 0;
int refuse_any(const char* call) { return std::string_view(call) == "mlock" ? ENOMEM : 0; }
int refuse_first_three(const char* call) {
    return std::string_view(call) == "mlock" && refused++ < 3 ? ENOMEM : 0;
}
int refuse_handlers(const char* call) {
    return std::string_view(call) == "pthread_atfork" ? ENOMEM : 0;
}
int refuse_unlock(const char* call) { return std::string_view(call) == "munlock" ? ENOMEM : 0; }

void a_refused_lock_empties_the_pool_then_fails() {
    start_empty();
    const auto kept = registry().allocate(MiB, "kept");
    registry().allocate(2 * MiB, "a").reset();
    const pin::Stats before = checked_stats();
    CHECK(before.cached == 2 * MiB);
    sys::set_fault_hook(refuse_any);
    CHECK_THROWS(PinError, error, registry().allocate(MiB, "a")) {
        CHECK(error.nbytes == MiB && error.locked == locked_before + MiB);
    }
    CHECK_THROWS(PinError, error, registry().allocate(1, "a")) { CHECK(error.nbytes == 1); }
    const pin::Stats after = checked_stats();
    CHECK(after.in_use == MiB && after.cached == 0 && after.regions == 1);
    CHECK(after.calls == before.calls && after.by_tag == before.by_tag);
    refused = 0;
    sys::set_fault_hook(refuse_first_three);  // slabs of 2 MiB, 1 MiB and 512 KiB are too much
    const auto small = registry().allocate(5, "a");
    CHECK(checked_stats().in_use + checked_stats().cached == MiB + 256 * KiB);
    sys::set_fault_hook(refuse_unlock);
    auto region = registry().allocate(MiB, "a");
    CHECK(registry().release(region->data()));
    CHECK(checked_stats().cached == MiB + 256 * KiB - page);
    region.reset();
    CHECK(checked_stats().cached == 256 * KiB - page);
}

// Called first: there is no registry without its fork handlers, and there is one at the next try.
void no_registry_without_fork_handlers() {
    sys::set_fault_hook(refuse_handlers);
    CHECK_THROWS(std::system_error, error, registry()) { CHECK(error.code().value() == ENOMEM); }
    start_empty();
}

}  // namespace

int main() {
    no_registry_without_fork_handlers();
    lookup_is_by_the_whole_span();
    freed_mappings_are_reused_by_size();
    the_oldest_goes_when_over_the_limit();
    small_regions_share_mappings();
    for (size_t nbytes : {page, 256 * KiB, 256 * KiB + 1, MiB}) {
        release_unpins_at_once_and_unlocks_when_unused(nbytes);
        a_use_outlives_every_alias(nbytes);
    }
    listeners_hear_of_what_leaves_the_pool();
    a_refused_lock_empties_the_pool_then_fails();
    start_empty();
    return 0;
}
