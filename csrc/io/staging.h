// Aligned blocks through which bytes are copied when memory and file disagree on alignment, or
// memory is strided. One mapping on huge pages, made at the first use, cut into runs of pages. It
// is not page-locked: it works under any memlock limit and counts as nobody's pinned memory.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>

#include "pin/page_alloc.h"
#include "pin/run_allocator.h"

namespace deepnvme::io {

class Staging {
public:
    // Enough blocks in flight to keep a drive busy, few enough to stay in the processor's cache.
    static constexpr size_t default_bytes = size_t{24} << 20;

    explicit Staging(size_t nbytes) : nbytes_(nbytes) {}

    // A page-aligned block, or null while too many are taken. Throws std::bad_alloc when there is
    // no memory at all, or when it would be larger than all blocks together.
    std::byte* take(size_t nbytes);
    void give_back(std::byte* block, size_t nbytes);

    // Never unmaps the blocks: for transfers that the kernel may still carry out.
    void leak() { static_cast<void>(new pin::PageMapping(std::move(mapping_))); }

    const pin::PageMapping& mapping() const { return mapping_; }

private:
    size_t nbytes_;
    pin::PageMapping mapping_;
    std::optional<pin::RunAllocator> runs_;
};

}  // namespace deepnvme::io
