// Guards: runs of pages never overlap, are first fit, and merge when they come back; against a
// plain array of flags.
#include <optional>
#include <random>

#include "check.h"
#include "pin/run_allocator.h"
#include "run_model.h"

using deepnvme::pin::RunAllocator;
using deepnvme::test::RunModel;

namespace {

void matches_the_model(size_t pages, size_t longest, unsigned seed) {
    std::mt19937 random(seed);
    RunAllocator runs(pages);
    RunModel model(pages);
    for (int step = 0; step < 4000; ++step) {
        if (random() % 5 < 3) {
            const size_t count = 1 + random() % longest;
            CHECK(runs.allocate(count) == model.allocate(count));
        } else if (!model.live.empty()) {
            const auto gone = model.at(random());
            runs.release(gone->first, gone->second);
            model.release(gone);
        }
        CHECK(runs.empty() == model.live.empty());
    }
    for (const auto& [first, count] : model.live) {
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
