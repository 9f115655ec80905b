// Guards: the plan of any request is what plan_model.h says, of 1 byte and of 2^62.
#include "draws.h"
#include "plan_model.h"

using namespace deepnvme;
using namespace deepnvme::test;

namespace {

constexpr uint64_t kMostChunks = 2048;  // that are looked at one after the other
constexpr uint64_t kMostUnits = 2048;

Case draw(fuzz::Draws& draws) {
    Case c;
    c.direct = !draws.yes();
    c.strided = draws.yes();
    // File makes them powers of two, and the unit of the file no smaller than that of memory.
    c.alignment.granule = 1U << draws.below(18);
    c.alignment.memory = std::max(c.alignment.granule >> draws.below(18), 1U);
    c.address = draws.number(uint64_t{1} << 47);
    c.offset = static_cast<off_t>(draws.number(INT64_MAX));
    // IoHandle refuses what ends beyond the largest offset.
    c.nbytes = draws.number(static_cast<uint64_t>(INT64_MAX - c.offset));
    c.limits.block = draws.number(SIZE_MAX);
    c.limits.staged_block = draws.number(SIZE_MAX);
    return c;
}

using Wide = unsigned __int128;  // in which nothing overflows

Wide rounded_up_quotient(Wide value, Wide unit) { return (value + unit - 1) / unit; }

// How many chunks a request makes, from its three parts and the sizes of their chunks.
Wide count_by_model(const Case& c) {
    const Wide unit = c.alignment.granule;
    const Wide begin = static_cast<Wide>(c.offset);
    const Wide end = begin + c.nbytes;
    const Wide block = std::clamp<Wide>(c.limits.block, 1, io::max_transfer_bytes);
    const Wide staged = std::clamp<Wide>(c.limits.staged_block, 1, block);
    const Wide plain = c.strided ? staged : block;
    const Wide first = rounded_up_quotient(begin, unit) * unit;
    const Wide last = end / unit * unit;
    CHECK(io::has_whole_unit(c.nbytes, c.offset, c.alignment.granule) == (first < last));
    CHECK(io::is_ragged(c.nbytes, c.offset, c.alignment.granule) ==
          (first != begin || last != end));
    if (!c.direct || first >= last) {
        return rounded_up_quotient(c.nbytes, plain);
    }
    const bool copied = c.strided || (c.address + (first - begin)) % c.alignment.memory != 0;
    const Wide units = std::max<Wide>((copied ? staged : block) / unit, 1);
    return rounded_up_quotient(first - begin, plain) +
           rounded_up_quotient(last - first, units * unit) + rounded_up_quotient(end - last, plain);
}

// Of a request with too many chunks to look at: the first of them.
void check_beginning(const Case& c, Wide count) {
    Plan plan =
        Plan::make(c.address, c.nbytes, c.offset, c.alignment, c.direct, c.strided, c.limits);
    uint64_t position = 0;
    Chunk chunk;
    for (uint64_t i = 0; i < kMostChunks; ++i) {
        CHECK(plan.chunks_left() == count - i && plan.next(chunk));
        CHECK(chunk.position == position && chunk.nbytes > 0);
        CHECK(chunk.nbytes <= io::max_transfer_bytes);
        position += chunk.nbytes;
        CHECK(position < c.nbytes);
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    fuzz::Draws draws(data, size);
    const Case c = draw(draws);
    const Wide count = count_by_model(c);
    if (count > kMostChunks) {
        check_beginning(c, count);
    } else {
        const std::vector<Chunk> chunks = chunks_of(c);
        CHECK(chunks.size() == count);
        check_chunks(c, chunks);
        if (c.nbytes / c.alignment.granule <= kMostUnits) {
            check_small(c);
        }
    }
    return 0;
}
