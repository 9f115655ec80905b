#include "io/plan.h"

#include <algorithm>

#include "io/engine.h"

namespace deepnvme::io {
namespace {

uint64_t round_down(uint64_t value, uint64_t unit) { return value & ~(unit - 1); }
uint64_t round_up(uint64_t value, uint64_t unit) { return round_down(value + unit - 1, unit); }

}  // namespace

bool has_whole_unit(uint64_t nbytes, off_t offset, uint32_t granule) {
    const auto first = static_cast<uint64_t>(offset);
    return round_up(first, granule) + granule <= first + nbytes;
}

bool is_ragged(uint64_t nbytes, off_t offset, uint32_t granule) {
    const auto first = static_cast<uint64_t>(offset);
    return first % granule != 0 || (first + nbytes) % granule != 0;
}

Plan Plan::make(uintptr_t address, uint64_t nbytes, off_t offset, const Alignment& alignment,
                bool direct, bool strided, const PlanLimits& limits) {
    Plan plan;
    const uint64_t granule = alignment.granule;
    const size_t block = std::min(limits.block, max_transfer_bytes);
    const size_t any_block =
        std::max<size_t>(strided ? std::min(block, limits.staged_block) : block, 1);
    if (!direct || !has_whole_unit(nbytes, offset, alignment.granule)) {
        plan.append(0, nbytes, any_block, false, strided);
        return plan;
    }
    const auto first = static_cast<uint64_t>(offset);
    const uint64_t body_begin = round_up(first, granule) - first;
    const uint64_t body_end = round_down(first + nbytes, granule) - first;
    const bool staged = strided || (address + body_begin) % alignment.memory != 0;
    const size_t body_block = std::max(
        round_down(staged ? std::min(block, limits.staged_block) : block, granule), granule);
    plan.append(0, body_begin, any_block, false, strided);
    plan.append(body_begin, body_end, body_block, true, staged);
    plan.append(body_end, nbytes, any_block, false, strided);
    return plan;
}

void Plan::append(uint64_t begin, uint64_t end, size_t chunk_bytes, bool direct, bool staged) {
    if (begin < end) {
        segments_[count_++] = {begin, end, static_cast<uint32_t>(chunk_bytes), direct, staged};
    }
}

bool Plan::next(Chunk& chunk) {
    if (current_ == count_) {
        return false;
    }
    const Segment& segment = segments_[current_];
    const uint64_t left = segment.end - position_;
    chunk = {position_, static_cast<uint32_t>(std::min<uint64_t>(left, segment.chunk_bytes)),
             segment.direct, segment.staged};
    position_ += chunk.nbytes;
    if (position_ == segment.end) {
        ++current_;
    }
    return true;
}

uint64_t Plan::chunks_left() const {
    uint64_t chunks = 0;
    for (size_t i = current_; i < count_; ++i) {
        const Segment& segment = segments_[i];
        const uint64_t left = segment.end - std::max(segment.begin, position_);
        chunks += (left + segment.chunk_bytes - 1) / segment.chunk_bytes;
    }
    return chunks;
}

}  // namespace deepnvme::io
