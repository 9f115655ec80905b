// Plans against what they are for: looks at every chunk, and at every unit of the file.
#pragma once

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "check.h"
#include "io/engine.h"
#include "io/plan.h"

namespace deepnvme::test {

using io::Alignment;
using io::Chunk;
using io::Plan;
using io::PlanLimits;

struct Case {
    uintptr_t address = 0;
    uint64_t nbytes = 0;
    off_t offset = 0;
    Alignment alignment;
    bool direct = true;
    bool strided = false;
    PlanLimits limits;
};

inline std::vector<Chunk> chunks_of(const Case& c) {
    Plan plan =
        Plan::make(c.address, c.nbytes, c.offset, c.alignment, c.direct, c.strided, c.limits);
    std::vector<Chunk> chunks;
    std::vector<uint64_t> left{plan.chunks_left()};
    for (Chunk chunk; plan.next(chunk);) {
        chunks.push_back(chunk);
        left.push_back(plan.chunks_left());
    }
    for (size_t i = 0; i < left.size(); ++i) {
        CHECK(left[i] == chunks.size() - i);
    }
    Chunk none{7, 7, true, true};
    CHECK(!plan.next(none) && !plan.next(none) && plan.chunks_left() == 0);
    return chunks;
}

// The first and last byte of [0, nbytes) of the request that lie in a unit of the file that the
// request covers whole, by looking at each unit; the case is small.
inline std::pair<uint64_t, uint64_t> body_by_looking(const Case& c) {
    const uint64_t first = static_cast<uint64_t>(c.offset);
    const uint64_t unit = c.alignment.granule;
    uint64_t begin = 0;
    uint64_t end = 0;
    for (uint64_t start = first / unit * unit; start < first + c.nbytes; start += unit) {
        if (start >= first && start + unit <= first + c.nbytes) {
            begin = end == 0 ? start - first : begin;
            end = start + unit - first;
        }
    }
    return {begin, end};
}

inline void check_chunks(const Case& c, const std::vector<Chunk>& chunks) {
    const uint64_t first = static_cast<uint64_t>(c.offset);
    const uint64_t block = std::max<uint64_t>(1, std::min(c.limits.block, io::max_transfer_bytes));
    const uint64_t staged_block =
        std::max<uint64_t>(1, std::min<uint64_t>(block, c.limits.staged_block));
    uint64_t position = 0;
    for (size_t i = 0; i < chunks.size(); ++i) {
        const Chunk& chunk = chunks[i];
        CHECK(chunk.position == position && chunk.nbytes > 0);
        position += chunk.nbytes;
        CHECK(chunk.nbytes <= io::max_transfer_bytes);
        const uint64_t limit = chunk.staged ? staged_block : block;
        if (chunk.direct) {
            CHECK(c.direct);
            CHECK((first + chunk.position) % c.alignment.granule == 0);
            CHECK(chunk.nbytes % c.alignment.granule == 0);
            CHECK(chunk.nbytes <= std::max<uint64_t>(limit, c.alignment.granule));
            const bool in_place =
                !c.strided && (c.address + chunk.position) % c.alignment.memory == 0;
            CHECK(chunk.staged == !in_place);  // a copy where one is needed, and nowhere else
        } else {
            CHECK(chunk.nbytes <= limit);
            CHECK(chunk.staged == c.strided);
        }
        const bool same_way = i + 1 < chunks.size() && chunks[i + 1].direct == chunk.direct;
        if (same_way) {  // as few as the block size allows
            const uint64_t unit = chunk.direct ? c.alignment.granule : 1;
            CHECK(chunk.nbytes == std::max(limit / unit * unit, unit));
        } else if (i + 1 < chunks.size()) {
            CHECK((first + position) % c.alignment.granule == 0);  // where the ways meet
        }
    }
    CHECK(position == c.nbytes);
    CHECK(c.nbytes > staged_block || chunks.size() <= 3);  // more have no place in InlinePumps
}

inline void check_small(const Case& c) {
    const std::vector<Chunk> chunks = chunks_of(c);
    check_chunks(c, chunks);
    const auto [begin, end] = body_by_looking(c);
    std::map<uint64_t, int> ways;  // of each unit of the file: 1 direct, 2 buffered
    for (const Chunk& chunk : chunks) {
        const uint64_t from = static_cast<uint64_t>(c.offset) + chunk.position;
        const uint64_t unit = c.alignment.granule;
        for (uint64_t u = from / unit; u * unit < from + chunk.nbytes; ++u) {
            ways[u] |= chunk.direct ? 1 : 2;
        }
        const bool whole = chunk.position >= begin && chunk.position + chunk.nbytes <= end;
        CHECK(chunk.direct == (c.direct && whole));
    }
    for (const auto& [unit, way] : ways) {
        CHECK(way != 3);
    }
    CHECK(io::has_whole_unit(c.nbytes, c.offset, c.alignment.granule) == (end > begin));
}

}  // namespace deepnvme::test
