// Guards: chunks tile a request exactly and in order; direct ones are aligned; no block of the file
// is reached both past and through the page cache by one request.
#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "check.h"
#include "io/engine.h"
#include "io/plan.h"

using namespace deepnvme;
using io::Alignment;
using io::Chunk;
using io::Plan;
using io::PlanLimits;

namespace {

struct Case {
    uintptr_t address = 0;
    uint64_t nbytes = 0;
    off_t offset = 0;
    Alignment alignment;
    bool direct = true;
    bool strided = false;
    PlanLimits limits;
};

std::vector<Chunk> chunks_of(const Case& c) {
    Plan plan =
        Plan::make(c.address, c.nbytes, c.offset, c.alignment, c.direct, c.strided, c.limits);
    std::vector<Chunk> chunks;
    std::vector<uint64_t> left{plan.chunks_left()};
    bool direct = false;
    bool buffered = false;
    const Plan untouched = plan;
    for (Chunk chunk; plan.next(chunk);) {
        chunks.push_back(chunk);
        left.push_back(plan.chunks_left());
        (chunk.direct ? direct : buffered) = true;
    }
    for (size_t i = 0; i < left.size(); ++i) {
        CHECK(left[i] == chunks.size() - i);
    }
    CHECK(untouched.uses_direct() == direct && untouched.uses_buffered() == buffered);
    Chunk none{7, 7, true, true};
    CHECK(!plan.next(none) && !plan.next(none) && plan.chunks_left() == 0);
    return chunks;
}

// The first and last byte of [0, nbytes) of the request that lie in a unit of the file that the
// request covers whole, by looking at each unit; the case is small.
std::pair<uint64_t, uint64_t> body_by_looking(const Case& c) {
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

void check_chunks(const Case& c, const std::vector<Chunk>& chunks) {
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
}

void check_small(const Case& c) {
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

void random_small_cases() {
    std::mt19937_64 random(1);
    const auto below = [&](uint64_t n) { return random() % n; };
    for (int round = 0; round < 20'000; ++round) {
        Case c;
        c.alignment.granule = 1U << below(8);  // small units make small cases tell as much
        // File sees to it that a unit of the file is no smaller than that of memory.
        c.alignment.memory = c.alignment.granule >> below(8);
        c.alignment.memory = std::max(c.alignment.memory, 1U);
        const uint64_t unit = c.alignment.granule;
        // Half the time on, or one beside, a multiple of the unit.
        const auto near = [&](uint64_t n) {
            const uint64_t value = below(n * unit + 1);
            return below(2) == 0 ? value : value / unit * unit + below(3);
        };
        c.address = 4096 + near(4);
        c.offset = static_cast<off_t>(near(6));
        c.nbytes = near(12);
        c.direct = below(5) != 0;
        c.strided = below(4) == 0;
        c.limits.block = 1 + (below(2) == 0 ? below(8) : near(8));
        c.limits.staged_block = 1 + near(8);
        check_small(c);
    }
}

void every_small_case() {
    Case c;
    c.alignment = {.memory = 2, .granule = 4};
    c.limits.staged_block = 8;
    for (c.nbytes = 0; c.nbytes <= 17; ++c.nbytes) {
        for (c.offset = 0; c.offset < 5; ++c.offset) {
            for (c.address = 64; c.address < 67; ++c.address) {
                for (c.limits.block = 1; c.limits.block < 18; ++c.limits.block) {
                    for (int flags = 0; flags < 4; ++flags) {
                        c.direct = (flags & 1) != 0;
                        c.strided = (flags & 2) != 0;
                        check_small(c);
                    }
                }
            }
        }
    }
}

void real_alignments_and_large_requests() {
    std::mt19937_64 random(2);
    const auto below = [&](uint64_t n) { return random() % n; };
    for (int round = 0; round < 3'000; ++round) {
        Case c;
        c.alignment.granule = 4096U << below(5);
        c.alignment.memory = 4U << below(11);  // to 4096
        c.address =
            (uint64_t{1} << 46) + below(3) * 4096 + (below(2) == 0 ? 64 * below(64) : below(4096));
        const unsigned bits = 10 + static_cast<unsigned>(below(34));
        c.nbytes = below(uint64_t{1} << bits);
        c.offset = static_cast<off_t>(below(uint64_t{1} << below(62)));
        c.strided = below(4) == 0;
        // At most some thousands of chunks.
        c.limits.block = std::max<uint64_t>(1 + below(uint64_t{1} << 33), c.nbytes >> 11);
        c.limits.staged_block = std::max<uint64_t>(c.nbytes >> 11, 1 + below(1 << 20));
        check_chunks(c, chunks_of(c));
    }
}

void the_end_of_any_file() {
    for (uint64_t nbytes : {1, 4095, 4096, 4097, 3 * 4096 + 5}) {
        Case c;
        c.address = 4096;
        c.nbytes = nbytes;
        c.offset = static_cast<off_t>(INT64_MAX - nbytes);
        c.limits.block = 4096;
        check_chunks(c, chunks_of(c));
    }
}

void no_larger_than_the_kernel_moves() {
    Case c;
    c.address = 4096;
    c.nbytes = (uint64_t{5} << 30) + 1;
    c.limits.block = SIZE_MAX;
    const std::vector<Chunk> chunks = chunks_of(c);
    check_chunks(c, chunks);
    CHECK(chunks.size() == 6 && chunks[0].nbytes == io::max_transfer_bytes);
}

}  // namespace

int main() {
    every_small_case();
    random_small_cases();
    real_alignments_and_large_requests();
    the_end_of_any_file();
    no_larger_than_the_kernel_moves();
    return 0;
}
