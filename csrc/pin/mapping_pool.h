// Freed locked mappings, kept for the next request of exactly the same size. Bookkeeping only: no
// locking.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "pin/page_alloc.h"

namespace deepnvme::pin {

// What a ring or a device registers: one locked mapping. `serial` is never reused, unlike
// addresses.
struct Mapping {
    uint64_t serial = 0;
    PageMapping pages;
    // A device reaches the pages: they stay locked and mapped until whoever registered them has
    // taken that back (DepartingMappings). Set only while a RegionUse of it exists.
    std::atomic<bool> device_registered{false};
    std::atomic<uint64_t> device_offer{0};  // the last round of registration that it was part of

    // Of DepartingMappings, under the registry's mutex.
    std::shared_ptr<Mapping> next_departing;
    bool departing = false;
    bool unreferenced = false;  // by any region: unmapped, not only unlocked
};

class MappingPool {
public:
    void put(const std::shared_ptr<Mapping>& mapping);
    std::shared_ptr<Mapping> take(size_t size);  // the one freed last (its pages are warm), or null
    std::shared_ptr<Mapping> take_oldest();      // null when empty

private:
    using BySize = std::multimap<size_t, std::pair<uint64_t, std::shared_ptr<Mapping>>>;

    std::shared_ptr<Mapping> remove(BySize::iterator entry);

    uint64_t next_age_ = 0;
    BySize by_size_;  // equal sizes in the order of put()
    std::map<uint64_t, BySize::iterator> by_age_;
};

}  // namespace deepnvme::pin
