// Guards: threads that allocate, free, look up, use and release at once, beside forks, neither race
// nor hang (D-08).
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "locked_bytes.h"
#include "pin/deepspeed_pin_tensor.h"
#include "pin_registry.h"

using namespace deepnvme;
using pin::Region;
using pin::RegionUse;
using test::registry;

namespace {

constexpr size_t sizes[] = {1, 4096, 9000, 100'000, 262'144, 300'000, 524'288};
constexpr int hang_seconds = 60;

struct Shared {
    std::atomic<std::byte*> latest{nullptr};  // of any thread: may be gone when another looks
    std::atomic<uint64_t> uses{0};
};

void churn(Shared& shared, unsigned seed, const std::atomic<bool>& stop, int rounds) {
    std::mt19937 random(seed);
    std::vector<std::shared_ptr<Region>> held;
    for (int round = 0; round < rounds && !stop; ++round) {
        auto region =
            registry().allocate(sizes[random() % std::size(sizes)], seed % 2 == 0 ? "even" : "odd");
        std::byte* data = region->data();
        data[0] = data[region->nbytes() - 1] = std::byte(seed);
        CHECK(registry().is_pinned(data, region->nbytes()));
        shared.latest = data;
        const RegionUse use = registry().use(data, region->nbytes());
        CHECK(use);
        if (const RegionUse other = registry().use(shared.latest.load(), 1)) {
            CHECK(registry().is_pinned(other->data(), 0) == false);
            ++shared.uses;
        }
        switch (random() % 4) {
            case 0:
                CHECK(registry().release(data));
                CHECK(!registry().release(data));
                break;
            case 1:
                held.push_back(std::move(region));
                break;
            case 2:
                region.reset();  // before its use
                break;
            default:
                break;
        }
        CHECK(use->data()[0] == std::byte(seed));
        if (held.size() > 3) {
            held.erase(held.begin());
        }
        if (random() % 64 == 0) {
            registry().empty_cache();
        }
    }
}

void child_starts_empty(std::shared_ptr<Region>& small, std::shared_ptr<Region>& large) {
    ::alarm(hang_seconds);
    const pin::Stats stats = registry().stats();
    CHECK(stats.in_use == 0 && stats.cached == 0 && stats.regions == 0 && stats.by_tag.empty());
    CHECK(test::locked_bytes() == 0);
    CHECK(!registry().any_departing());  // what a device reaches is the parent's to take back
    for (const auto& inherited : {small, large}) {
        std::byte* data = inherited->data();
        CHECK(!registry().is_pinned(data, 1) && !registry().use(data, 1) &&
              !registry().release(data));
        CHECK(data[0] == std::byte{42});
    }
    auto own = registry().allocate(4096, "child");
    const auto large_own = registry().allocate(400'000, "child");
    CHECK(registry().is_pinned(own->data(), 4096));
    small.reset();
    large.reset();
    own.reset();
    const pin::Stats later = registry().stats();
    CHECK(later.regions == 1 && later.in_use + later.cached == test::locked_bytes());
}

}  // namespace

int main() {
    const size_t locked_before = test::locked_bytes();
    registry().set_cache_limit(size_t{1} << 20);
    std::atomic<uint64_t> told{0};
    const uint64_t listener = registry().add_release_listener([&](uint64_t) { ++told; });
    Shared shared;
    std::atomic<bool> stop{false};
    {
        std::vector<std::jthread> threads;
        for (unsigned seed = 0; seed < 4; ++seed) {
            threads.emplace_back([&, seed] { churn(shared, seed, stop, 2000); });
        }
    }
    CHECK(shared.uses > 0 && told > 0);
    auto books = registry().stats();
    CHECK(books.in_use == 0 && books.regions == 0 && books.calls == 8000);
    CHECK(books.cached == test::locked_bytes() - locked_before);

    auto small = registry().allocate(100, "kept");
    auto large = registry().allocate(500'000, "kept");
    small->data()[0] = large->data()[0] = std::byte{42};
    large->mapping()->device_registered = true;
    const auto waiting = registry().allocate(600'000, "waiting");
    waiting->mapping()->device_registered = true;
    CHECK(registry().release(waiting->data()) && registry().any_departing());
    {
        std::vector<std::jthread> threads;
        for (unsigned seed = 4; seed < 6; ++seed) {
            threads.emplace_back([&, seed] { churn(shared, seed, stop, 1'000'000'000); });
        }
        for (int fork_number = 0; fork_number < 60; ++fork_number) {
            const pid_t child = ::fork();
            CHECK(child >= 0);
            if (child == 0) {
                child_starts_empty(small, large);
                std::_Exit(0);
            }
            int status = 0;
            CHECK(::waitpid(child, &status, 0) == child);
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        }
        stop = true;
    }
    CHECK(registry().is_pinned(small->data(), 100) && registry().is_pinned(large->data(), 500'000));
    small.reset();
    large.reset();
    registry().remove_release_listener(listener);
    registry().empty_cache();
    CHECK(registry().finish_departures([](const pin::Mapping&) { return true; }));
    books = registry().stats();
    CHECK(books.in_use == 0 && books.cached == 0 && test::locked_bytes() == locked_before);
    return 0;
}
