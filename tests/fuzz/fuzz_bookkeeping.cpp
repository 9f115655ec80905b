// Guards: runs of pages, pooled mappings and slabs are handed out and taken back as plain lists
// would do it.
#include <deque>
#include <vector>

#include "check.h"
#include "draws.h"
#include "pin/slab.h"
#include "run_model.h"
#include "sys/syscalls.h"

using namespace deepnvme;
using deepnvme::fuzz::Draws;
using deepnvme::test::RunModel;

namespace {

constexpr int kMostSteps = 200;
constexpr uint64_t kMostPages = 5;  // of a mapping, which is made in earnest
constexpr size_t kMostMappings = 12;

std::shared_ptr<pin::Mapping> mapping(size_t pages, uint64_t serial) {
    auto made = std::make_shared<pin::Mapping>();
    made->serial = serial;
    made->pages = pin::PageMapping(pages * sys::page_size(), pin::PageMapping::Residency::unlocked);
    return made;
}

class Runs {
public:
    explicit Runs(size_t pages) : runs_(pages), model_(pages) {}
    void step(Draws& draws) {
        if (!draws.yes()) {
            const size_t count = 1 + draws.below(model_.used.size() + 2);
            CHECK(runs_.allocate(count) == model_.allocate(count));
        } else if (!model_.live.empty()) {
            const auto gone = model_.at(draws.byte());
            runs_.release(gone->first, gone->second);
            model_.release(gone);
        }
        CHECK(runs_.empty() == model_.live.empty());
    }

private:
    pin::RunAllocator runs_;
    RunModel model_;
};

class Pool {
public:
    void step(Draws& draws) {
        const size_t pages = 1 + draws.below(kMostPages);
        switch (draws.below(3)) {
            case 0:
                if (model_.size() < kMostMappings) {
                    auto made = mapping(pages, next_serial_++);
                    pool_.put(made);
                    model_.push_back(std::move(made));
                }
                break;
            case 1: {  // the one of this size that came last
                const auto last =
                    std::find_if(model_.rbegin(), model_.rend(), [&](const auto& pooled) {
                        return pooled->pages.size() == pages * sys::page_size();
                    });
                const auto expected = last == model_.rend() ? nullptr : *last;
                CHECK(pool_.take(pages * sys::page_size()) == expected);
                std::erase(model_, expected);
                break;
            }
            default:
                CHECK(pool_.take_oldest() == (model_.empty() ? nullptr : model_.front()));
                if (!model_.empty()) {
                    model_.pop_front();
                }
        }
    }

private:
    pin::MappingPool pool_;
    std::deque<std::shared_ptr<pin::Mapping>> model_;  // the oldest first
    uint64_t next_serial_ = 1;
};

class Slabs {
public:
    void step(Draws& draws) {
        switch (draws.below(4)) {
            case 0:
                carve(1 + draws.below(kMostPages + 1));
                break;
            case 1:
                give_back(draws.byte());
                break;
            case 2:
                if (model_.size() < kMostMappings) {
                    const size_t pages = 1 + draws.below(kMostPages);
                    auto slab = std::make_shared<pin::Slab>(mapping(pages, next_serial_++));
                    model_.push_back({slab, slab->mapping, RunModel(pages)});
                    slabs_.add(std::move(slab));
                }
                break;
            default:
                take_empty();
        }
        CHECK(slabs_.growth() == size_t{2} << 20);  // all of them are small here
    }

private:
    struct Model {
        std::shared_ptr<pin::Slab> slab;
        std::shared_ptr<pin::Mapping> mapping;
        RunModel runs;
    };

    void carve(size_t pages) {
        const auto run = slabs_.carve(pages);
        for (Model& model : model_) {  // the oldest with room
            if (const auto first = model.runs.allocate(pages)) {
                CHECK(run.has_value() && run->slab == model.slab && run->first == *first);
                return;
            }
        }
        CHECK(!run.has_value());
    }
    void give_back(size_t number) {
        for (Model& model : model_) {
            if (!model.runs.live.empty()) {
                const auto gone = model.runs.at(number);
                model.slab->runs.release(gone->first, gone->second);
                model.runs.release(gone);
                return;
            }
        }
    }
    void take_empty() {
        const auto youngest = std::find_if(model_.rbegin(), model_.rend(), [](const Model& model) {
            return model.runs.live.empty();
        });
        const auto taken = slabs_.take_empty();
        CHECK(taken == (youngest == model_.rend() ? nullptr : youngest->mapping));
        if (taken != nullptr) {
            model_.erase(std::next(youngest).base());
        }
    }

    pin::SlabSet slabs_;
    std::vector<Model> model_;  // the oldest first
    uint64_t next_serial_ = 1;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    Draws draws(data, size);
    Runs runs(draws.below(300));
    Pool pool;
    Slabs slabs;
    for (int step = 0; step < kMostSteps && !draws.empty(); ++step) {
        switch (draws.below(3)) {
            case 0:
                runs.step(draws);
                break;
            case 1:
                slabs.step(draws);
                break;
            default:
                pool.step(draws);
        }
    }
    return 0;
}
