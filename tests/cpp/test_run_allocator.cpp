// Guards: runs of pages never overlap, are first fit, and merge when they come back; against a
// plain array of flags.
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "check.h"
#include "pin/run_allocator.h"

using deepnvme::pin::RunAllocator;

namespace {

std::optional<size_t> first_fit(const std::vector<bool>& used, size_t count) {
    size_t run = 0;
    for (size_t page = 0; page < used.size(); ++page) {
        run = used[page] ? 0 : run + 1;
        if (run == count) {
            return page + 1 - count;
        }
    }
    return std::nullopt;
}

void matches_the_model(size_t pages, size_t longest, unsigned seed) {
    std::mt19937 random(seed);
    RunAllocator runs(pages);
    std::vector<bool> used(pages, false);
    std::map<size_t, size_t> live;
    size_t free_pages = pages;
    for (int step = 0; step < 4000; ++step) {
        if (random() % 5 < 3) {
            const size_t count = 1 + random() % longest;
            const auto expected = first_fit(used, count);
            CHECK(runs.allocate(count) == expected);
            if (expected) {
                for (size_t page = *expected; page < *expected + count; ++page) {
                    used[page] = true;
                }
                live.emplace(*expected, count);
                free_pages -= count;
            }
        } else if (!live.empty()) {
            const auto gone = std::next(live.begin(), static_cast<long>(random() % live.size()));
            runs.release(gone->first, gone->second);
            for (size_t page = gone->first; page < gone->first + gone->second; ++page) {
                used[page] = false;
            }
            free_pages += gone->second;
            live.erase(gone);
        }
        CHECK(runs.free_pages() == free_pages);
        CHECK(runs.empty() == live.empty());
    }
    for (const auto& [first, count] : live) {
        runs.release(first, count);
    }
    CHECK(runs.empty());
    if (pages > 0) {
        CHECK(runs.allocate(pages) == std::optional<size_t>(0));  // all merged
    }
    CHECK(!runs.allocate(1));
}

}  // namespace

int main() {
    for (unsigned seed = 0; seed < 4; ++seed) {
        for (size_t pages : {0, 1, 63, 64, 65, 200, 1024}) {
            matches_the_model(pages, 5, seed);
            matches_the_model(pages, 64, seed);
            matches_the_model(pages, 150, seed);
        }
    }
    return 0;
}
