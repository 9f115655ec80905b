// Guards: chunks tile a request exactly and in order; direct ones are aligned; no block of the file
// is reached both past and through the page cache by one request.
#include <algorithm>
#include <random>
#include <vector>

#include "plan_model.h"

using namespace deepnvme;
using namespace deepnvme::test;

namespace {

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
