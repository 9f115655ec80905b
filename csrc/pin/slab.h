// Slabs: locked mappings that small regions are carved from, page by page. Bookkeeping only: no
// locking.
//
// A hundred thousand mappings of one page would exhaust vm.max_map_count and cost a fault each.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "pin/mapping_pool.h"
#include "pin/run_allocator.h"

namespace deepnvme::pin {

struct Slab {
    explicit Slab(std::shared_ptr<Mapping> locked);
    std::shared_ptr<Mapping> mapping;
    RunAllocator runs;
};

class SlabSet {
public:
    struct Run {
        std::shared_ptr<Slab> slab;
        size_t first;  // page within the slab
    };

    std::optional<Run> carve(size_t pages);
    void add(std::shared_ptr<Slab> slab);
    // The size of a slab to add now: a quarter of what there is, so that slabs stay few and waste
    // bounded.
    size_t growth() const;
    // Removes a slab that holds no run; null when there is none.
    std::shared_ptr<Mapping> take_empty();

private:
    std::vector<std::shared_ptr<Slab>> slabs_;
    size_t bytes_ = 0;
};

}  // namespace deepnvme::pin
