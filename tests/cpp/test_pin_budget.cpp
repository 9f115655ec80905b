// Guards: the budget is exact under threads, a breach locks nothing and names the owners.
#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "check.h"
#include "locked_bytes.h"
#include "pin/deepspeed_pin_tensor.h"
#include "pin_registry.h"
#include "sys/syscalls.h"

using namespace deepnvme;
using pin::Budget;
using pin::PinError;
using pin::Region;
using test::MiB;
using test::page;
using test::registry;

namespace {

bool says(const PinError& error, const std::string& what) {
    return std::string_view(error.what()).find(what) != std::string_view::npos;
}

void a_breach_locks_nothing_and_names_owners() {
    CHECK(registry().budget() == Budget::unlimited);
    const auto params = registry().allocate(MiB, "params");
    const auto states = registry().allocate(2 * MiB, "states");
    registry().set_budget(4 * MiB);
    CHECK(registry().budget() == 4 * MiB);
    const size_t locked = test::locked_bytes();
    for (size_t nbytes : {MiB + 1, 2 * MiB, SIZE_MAX, SIZE_MAX - page}) {
        CHECK_THROWS(PinError, error, registry().allocate(nbytes, "new")) {
            CHECK(error.locked == 3 * MiB && error.limit == 4 * MiB);
            CHECK(error.nbytes >= nbytes && error.nbytes - nbytes < page);
            CHECK(says(error, "states 2097152, params 1048576") && says(error, "4194304"));
            CHECK(says(error, "DEEPNVME_PIN_BUDGET"));
        }
    }
    CHECK(test::locked_bytes() == locked);
    auto fits = registry().allocate(MiB - page + 1, "new");  // pages are what counts
    CHECK_THROWS(PinError, error, registry().allocate(1, "new")) {}
    fits.reset();  // to the pool, which is not in use
    CHECK(registry().allocate(MiB, "new") != nullptr);
    CHECK(registry().release(states->data()));
    CHECK(registry().allocate(3 * MiB, "new") != nullptr);
    registry().set_budget(0);  // what is pinned stays
    CHECK(registry().is_pinned(params->data(), MiB));
    CHECK_THROWS(PinError, error, registry().allocate(1, "new")) {}
    registry().set_budget(Budget::unlimited);
}

int refuse_lock(const char* call) { return std::string_view(call) == "mlock" ? ENOMEM : 0; }

void a_failed_lock_gives_its_part_back() {
    registry().empty_cache();
    registry().set_budget(MiB);
    sys::set_fault_hook(refuse_lock);
    for (int attempt = 0; attempt < 3; ++attempt) {
        CHECK_THROWS(PinError, error, registry().allocate(MiB, "a")) {
            CHECK(error.error == ENOMEM);
        }
    }
    sys::set_fault_hook(nullptr);
    CHECK(registry().allocate(MiB, "a") != nullptr);
    registry().set_budget(Budget::unlimited);
}

void many_owners_are_cut_short() {
    std::vector<std::shared_ptr<Region>> regions;
    for (int owner = 0; owner < 15; ++owner) {
        regions.push_back(registry().allocate(1, "owner " + std::to_string(owner)));
    }
    registry().set_budget(15 * page);
    CHECK_THROWS(PinError, error, registry().allocate(1, "a")) { CHECK(says(error, "and 5 more")); }
    registry().set_budget(Budget::unlimited);
}

void threads_never_exceed_it() {
    constexpr size_t limit = 20 * page;
    registry().set_budget(limit);
    std::atomic<size_t> refused{0};
    std::atomic<size_t> allowed{0};
    {
        std::vector<std::jthread> threads;
        for (size_t thread = 0; thread < 4; ++thread) {
            threads.emplace_back([&, thread] {
                std::vector<std::shared_ptr<Region>> held;
                for (int round = 0; round < 2000; ++round) {
                    try {
                        held.push_back(registry().allocate((1 + thread) * page, "a"));
                        ++allowed;
                    } catch (const PinError& error) {
                        CHECK(error.limit == limit);
                        ++refused;
                        held.clear();
                    }
                    CHECK(registry().stats().in_use <= limit);
                }
            });
        }
    }
    CHECK(refused > 0 && allowed > 0 && registry().stats().in_use == 0);
    registry().allocate(limit, "all of it").reset();  // nothing was left reserved
    registry().set_budget(Budget::unlimited);
}

}  // namespace

int main() {
    a_breach_locks_nothing_and_names_owners();
    a_failed_lock_gives_its_part_back();
    many_owners_are_cut_short();
    threads_never_exceed_it();
    return 0;
}
