#include "pin/run_allocator.h"

#include <algorithm>
#include <bit>

namespace deepnvme::pin {
namespace {

constexpr size_t word_bits = 64;

}  // namespace

RunAllocator::RunAllocator(size_t pages)
    : pages_(pages),
      free_pages_(pages),
      longest_(pages),
      free_((pages + word_bits - 1) / word_bits, 0) {
    mark(0, pages, true);
}

std::optional<size_t> RunAllocator::allocate(size_t count) {
    if (count > std::min(longest_, free_pages_)) {
        return std::nullopt;
    }
    size_t run = 0;  // length of the free run that ends just before `page`
    for (size_t page = 0; page < pages_;) {
        const uint64_t ahead = free_[page / word_bits] >> (page % word_bits);
        const size_t left = word_bits - page % word_bits;  // the shift filled the rest with zeros
        if (const size_t used = std::min<size_t>(std::countr_zero(ahead), left); used > 0) {
            run = 0;
            page += used;
            continue;
        }
        const auto ones = static_cast<size_t>(std::countr_one(ahead));
        run += ones;
        page += ones;
        if (run >= count) {
            const size_t first = page - run;
            mark(first, count, false);
            free_pages_ -= count;
            return first;
        }
    }
    longest_ = count - 1;
    return std::nullopt;
}

void RunAllocator::release(size_t first, size_t count) noexcept {
    mark(first, count, true);
    free_pages_ += count;
    longest_ = pages_;  // not known until the next search
}

void RunAllocator::mark(size_t first, size_t count, bool free) noexcept {
    for (size_t page = first; page < first + count;) {
        const size_t bit = page % word_bits;
        const size_t bits = std::min(word_bits - bit, first + count - page);
        const uint64_t mask = (bits == word_bits ? ~uint64_t{0} : (uint64_t{1} << bits) - 1) << bit;
        uint64_t& word = free_[page / word_bits];
        word = free ? word | mask : word & ~mask;
        page += bits;
    }
}

}  // namespace deepnvme::pin
