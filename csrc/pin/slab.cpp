#include "pin/slab.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "sys/syscalls.h"

namespace deepnvme::pin {
namespace {

constexpr size_t smallest_slab = size_t{2} << 20;  // one huge page
constexpr size_t largest_slab = size_t{64} << 20;

}  // namespace

Slab::Slab(std::shared_ptr<Mapping> locked)
    : mapping(std::move(locked)), runs(mapping->pages.size() / sys::page_size()) {}

std::optional<SlabSet::Run> SlabSet::carve(size_t pages) {
    for (const auto& slab : slabs_) {  // oldest first, so that younger ones run empty
        if (auto first = slab->runs.allocate(pages)) {
            return Run{slab, *first};
        }
    }
    return std::nullopt;
}

void SlabSet::add(std::shared_ptr<Slab> slab) {
    const size_t nbytes = slab->mapping->pages.size();
    slabs_.push_back(std::move(slab));
    bytes_ += nbytes;
}

size_t SlabSet::growth() const {
    return std::clamp(bytes_ / 4 / smallest_slab * smallest_slab, smallest_slab, largest_slab);
}

std::shared_ptr<Mapping> SlabSet::take_empty() {
    // The youngest first: the oldest are carved first.
    const auto found = std::find_if(slabs_.rbegin(), slabs_.rend(),
                                    [](const auto& slab) { return slab->runs.empty(); });
    if (found == slabs_.rend()) {
        return nullptr;
    }
    auto mapping = std::move((*found)->mapping);
    bytes_ -= mapping->pages.size();
    slabs_.erase(std::next(found).base());
    return mapping;
}

}  // namespace deepnvme::pin
