#include "pin/departing_mappings.h"

#include <utility>

namespace deepnvme::pin {

void DepartingMappings::push(std::shared_ptr<Mapping>& list,
                             std::shared_ptr<Mapping> mapping) noexcept {
    mapping->next_departing = std::move(list);
    list = std::move(mapping);
}

std::shared_ptr<Mapping> DepartingMappings::pop(std::shared_ptr<Mapping>& list) noexcept {
    auto mapping = std::move(list);
    if (mapping) {
        list = std::move(mapping->next_departing);
    }
    return mapping;
}

void DepartingMappings::put(std::shared_ptr<Mapping> mapping) noexcept {
    mapping->departing = true;
    bytes_ += mapping->pages.size();
    push(first_, std::move(mapping));
    waiting_.fetch_add(1, std::memory_order_relaxed);
}

std::shared_ptr<Mapping> DepartingMappings::take() noexcept {
    auto mapping = pop(first_);
    if (mapping) {
        waiting_.fetch_sub(1, std::memory_order_relaxed);
    }
    return mapping;
}

void DepartingMappings::settle(Mapping& mapping) noexcept {
    mapping.departing = false;
    bytes_ -= mapping.pages.size();
}

void DepartingMappings::strand(std::shared_ptr<Mapping> mapping) noexcept {
    push(stranded_, std::move(mapping));
}

void DepartingMappings::clear() noexcept {
    while (pop(first_) || pop(stranded_)) {  // one by one: a long chain would recurse
    }
    waiting_ = 0;
    bytes_ = 0;
}

}  // namespace deepnvme::pin
