// Guards: where the C++ heap or the kernel has nothing left, a mapping is still all or nothing and
// touches no memory but its own, a handle is not made, a request that cannot be validated fails
// alone, and pinned memory that cannot be kept for reuse is given up.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <vector>

#include "check.h"
#include "io/io_handle.h"
#include "locked_bytes.h"
#include "pin/deepspeed_pin_tensor.h"
#include "pin/page_alloc.h"
#include "pump_rig.h"

using namespace deepnvme;
using namespace deepnvme::test;

namespace {

constexpr size_t MiB = size_t{1} << 20;

// Of the heap, for the thread that sets it.
thread_local int allocations_before_failure = -1;  // -1: none fails
thread_local size_t largest_allocation = SIZE_MAX;

// Of munmap().
int unmaps = -1;         // calls since it was set to 0
int refused_unmap = -1;  // the call that fails
std::byte* neighbour = nullptr;

}  // namespace

void* operator new(size_t nbytes) {
    const bool its_turn = allocations_before_failure == 0;
    allocations_before_failure -= allocations_before_failure >= 0 ? 1 : 0;
    void* memory = its_turn || nbytes > largest_allocation ? nullptr : std::malloc(nbytes);
    if (memory == nullptr) {
        throw std::bad_alloc();
    }
    return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

// The first call's room is taken at once, as by another thread. One is refused, as it is where
// vm.max_map_count allows no mapping to be split.
extern "C" int munmap(void* address, size_t nbytes) noexcept {
    const int call = unmaps < 0 ? -1 : unmaps++;
    if (call >= 0 && call == refused_unmap) {
        errno = ENOMEM;
        return -1;
    }
    const int result = static_cast<int>(::syscall(SYS_munmap, address, nbytes));
    if (call == 0) {
        neighbour = static_cast<std::byte*>(
            ::mmap(address, sys::page_size(), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0));
        CHECK(neighbour == address);
        *neighbour = std::byte{0x5A};
    }
    return result;
}

namespace {

// One thread populates what it cannot start others for.
void no_memory_to_start_threads() {
    for (int before = 0; before < 6; ++before) {
        allocations_before_failure = before;
        const pin::PageMapping mapping(48 * MiB, pin::PageMapping::Residency::unlocked);
        allocations_before_failure = -1;
        for (size_t at = 0; at < mapping.size(); at += MiB) {
            unsigned char resident = 0;
            CHECK(::mincore(mapping.data() + at, 1, &resident) == 0 && (resident & 1) != 0);
        }
    }
}

// Whoever makes the handle is told, not the process ended.
void no_memory_for_a_worker() {
    const auto make = [](uint32_t depth) {
        auto engine = io::make_posix_engine(depth);
        largest_allocation = 4096;  // in the worker's thread, which ends
        return engine;
    };
    io::HandleOptions options;
    options.queue_depth = 4096;
    CHECK_THROWS(std::bad_alloc, error, io::IoHandle(options, {"posix", make})) {}
}

void no_memory_to_validate_with() {
    const Bytes data = noise(4 * kPage, 1);
    const ScratchFile file(data);
    const Memory memory(data.size());
    Rig rig;
    io::Request request = reading(memory, data.size());
    request.validate = true;
    const Started started = rig.start(std::move(request), file.path());
    largest_allocation = data.size() - 1;
    rig.run();
    largest_allocation = SIZE_MAX;
    CHECK(started.failure().error == ENOMEM && memory.bytes() == data);
}

// What is cut off the front of a mapping is not ours any more, whatever happens to the rest.
void unmapping_that_is_refused() {
    refused_unmap = 1;
    for (int tries = 0; tries < 16; ++tries) {
        unmaps = 0;
        try {
            const pin::PageMapping mapping(2 * MiB, pin::PageMapping::Residency::unlocked);
            unmaps = -1;
        } catch (const std::bad_alloc&) {
            CHECK(unmaps == 3);  // the front, the end, and all that is left
            unmaps = -1;
            unsigned char resident = 0;
            CHECK(::mincore(neighbour, sys::page_size(), &resident) == 0);
            CHECK(*neighbour == std::byte{0x5A});
            CHECK(::munmap(neighbour, sys::page_size()) == 0);
            return;
        }
        // It was aligned as it came: only its end was cut off. The next one comes a page lower.
        CHECK(::munmap(neighbour, sys::page_size()) == 0);
        CHECK(::mmap(nullptr, sys::page_size(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) !=
              MAP_FAILED);
    }
    std::printf("mappings are always aligned here\n");
}

// Nothing is left of what could not be cut to size: with the front refused, all of it.
void unmapping_that_is_refused_at_once() {
    refused_unmap = 0;
    for (int tries = 0; tries < 2; ++tries) {  // one of them has a front to be cut off
        const size_t before = mappings();
        unmaps = 0;
        CHECK_THROWS(std::bad_alloc, error,
                     pin::PageMapping(2 * MiB, pin::PageMapping::Residency::unlocked)) {}
        CHECK(unmaps == 2);
        unmaps = -1;
        CHECK(mappings() <= before);
        CHECK(::mmap(nullptr, sys::page_size(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) !=
              MAP_FAILED);
    }
}

// The pool needs memory for its books. Without it a mapping is unlocked and unmapped, and listeners
// are told, or it waits for its device; the pool is as it was.
void no_memory_to_keep_pinned_memory(int before_failure, bool device) {
    auto& registry = pin::deepspeed_pin_tensor_t::instance();
    const size_t locked = locked_bytes();
    std::vector<uint64_t> told;
    told.reserve(8);
    const auto listening =
        registry.add_release_listener([&](uint64_t serial) { told.push_back(serial); });
    auto kept = registry.allocate(MiB, "test");
    auto region = registry.allocate(2 * MiB, "test");
    const uint64_t serial = region->mapping()->serial;
    region->mapping()->device_registered = device;
    kept.reset();
    CHECK(registry.stats().cached == MiB);
    allocations_before_failure = before_failure;
    region.reset();
    CHECK(allocations_before_failure == -1);  // it has failed
    const size_t left = device ? 3 * MiB : MiB;
    CHECK(registry.stats().in_use == 0 && registry.stats().cached == left);
    CHECK(locked_bytes() - locked == left && registry.any_departing() == device);
    CHECK(device ? told.empty() : told == std::vector{serial});
    registry.finish_departures([](const pin::Mapping&) { return true; });
    CHECK(told == std::vector{serial} && locked_bytes() - locked == MiB);
    CHECK(registry.allocate(2 * MiB, "test")->mapping()->serial != serial);
    registry.empty_cache();
    CHECK(registry.stats().cached == 0 && locked_bytes() == locked);
    registry.remove_release_listener(listening);
}

}  // namespace

int main() {
    no_memory_to_start_threads();
    no_memory_for_a_worker();
    no_memory_to_validate_with();
    unmapping_that_is_refused();
    unmapping_that_is_refused_at_once();
    for (int before_failure : {0, 1}) {
        for (bool device : {false, true}) {
            no_memory_to_keep_pinned_memory(before_failure, device);
        }
    }
    return 0;
}
