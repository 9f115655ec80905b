// Guards: any part of memory of any shape and strides is copied as layout_model.h has it, and
// nothing else is touched.
#include "draws.h"
#include "layout_model.h"

using namespace deepnvme::test;

namespace {

constexpr int64_t kMostBytes = 2048;
constexpr uint64_t kMostParts = 4;

Strided draw(deepnvme::fuzz::Draws& draws) {
    Strided s;
    s.itemsize = 1 + draws.below(17);
    auto bytes = static_cast<int64_t>(s.itemsize);
    auto row_major = static_cast<int64_t>(s.itemsize);  // the stride without gaps
    for (uint64_t dimensions = draws.below(7); dimensions > 0; --dimensions) {
        const auto extent = static_cast<int64_t>(draws.below(40));
        if (bytes * extent > kMostBytes) {
            continue;
        }
        bytes *= extent;
        const auto step = static_cast<int8_t>(draws.byte());
        // Often contiguous, reversed, or with a gap; else anything, overlapping itself included.
        const std::array<int64_t, 6> strides = {row_major, -row_major,    2 * row_major,
                                                0,         row_major + 1, step};
        s.shape.push_back(extent);
        s.strides.push_back(draws.of(strides));
        row_major *= extent;
    }
    if (!draws.yes()) {  // outermost first
        std::reverse(s.shape.begin(), s.shape.end());
        std::reverse(s.strides.begin(), s.strides.end());
    }
    return s;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    deepnvme::fuzz::Draws draws(data, size);
    const Strided s = draw(draws);
    const std::vector<int64_t> offsets = byte_offsets(s);
    CHECK(Layout(s.shape, s.strides, s.itemsize).nbytes() == offsets.size());
    if (offsets.empty()) {
        return 0;
    }
    std::mt19937 random(1);
    check_part(s, offsets, 0, offsets.size(), random);
    for (uint64_t part = 0; part < kMostParts && !draws.empty(); ++part) {
        const uint64_t position = draws.below(offsets.size());
        const uint64_t nbytes = draws.below(offsets.size() - position + 1);
        check_part(s, offsets, position, nbytes, random);
    }
    return 0;
}
