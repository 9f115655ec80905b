// First-fit allocation of runs of pages inside one mapping: the bookkeeping only, no memory and no
// locking.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace deepnvme::pin {

class RunAllocator {
public:
    explicit RunAllocator(size_t pages);

    // The first page of a free run of `count` pages (count > 0), or nothing when no free run is
    // long enough.
    std::optional<size_t> allocate(size_t count);
    // Gives back pages [first, first + count), which allocate() returned; neighbours are merged.
    // Needs no memory: it runs in deleters, which cannot fail.
    void release(size_t first, size_t count) noexcept;

    bool empty() const { return free_pages_ == pages_; }

private:
    void mark(size_t first, size_t count, bool free) noexcept;

    size_t pages_;
    size_t free_pages_;
    size_t longest_;  // no free run is longer: spares repeated searches of a fragmented mapping
    std::vector<uint64_t> free_;  // one bit a page, set when free
};

}  // namespace deepnvme::pin
