#include "pin/mapping_pool.h"

#include <iterator>
#include <utility>

namespace deepnvme::pin {

void MappingPool::put(const std::shared_ptr<Mapping>& mapping) {
    const uint64_t age = next_age_++;
    const auto slot = by_age_.emplace(age, by_size_.end()).first;
    try {
        slot->second = by_size_.emplace(mapping->pages.size(), std::pair(age, mapping));
    } catch (...) {
        by_age_.erase(slot);
        throw;
    }
}

std::shared_ptr<Mapping> MappingPool::take(size_t size) {
    const auto [first, last] = by_size_.equal_range(size);
    return first == last ? nullptr : remove(std::prev(last));
}

std::shared_ptr<Mapping> MappingPool::take_oldest() {
    return by_age_.empty() ? nullptr : remove(by_age_.begin()->second);
}

std::shared_ptr<Mapping> MappingPool::remove(BySize::iterator entry) {
    auto [age, mapping] = std::move(entry->second);
    by_age_.erase(age);
    by_size_.erase(entry);
    return mapping;
}

}  // namespace deepnvme::pin
