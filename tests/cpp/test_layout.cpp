// Guards: any part of strided memory, from any position and with any stride, is copied in the order
// of its elements, and nothing else is touched.
#include <algorithm>
#include <random>
#include <vector>

#include "layout_model.h"

using namespace deepnvme::test;

namespace {

void check_layout(const Strided& s, std::mt19937& random) {
    const std::vector<int64_t> offsets = byte_offsets(s);
    CHECK(Layout(s.shape, s.strides, s.itemsize).nbytes() == offsets.size());
    if (offsets.empty()) {
        return;
    }
    check_part(s, offsets, 0, offsets.size(), random);
    for (int part = 0; part < 8; ++part) {
        const uint64_t position = random() % offsets.size();
        check_part(s, offsets, position, random() % (offsets.size() - position + 1), random);
    }
}

void random_strides() {
    std::mt19937 random(3);
    for (int round = 0; round < 3'000; ++round) {
        Strided s;
        s.itemsize = 1 + random() % 9;
        const size_t dimensions = random() % 5;
        for (size_t i = 0; i < dimensions; ++i) {
            s.shape.push_back(static_cast<int64_t>(1 + random() % 5));
            s.strides.push_back(static_cast<int64_t>(random() % 81) - 40);  // some overlap
        }
        check_layout(s, random);
    }
}

// What tensors really look like: contiguous memory, sliced, transposed, reversed and broadcast.
void views_of_contiguous_memory() {
    std::mt19937 random(4);
    for (int round = 0; round < 3'000; ++round) {
        Strided s;
        s.itemsize = size_t{1} << (random() % 5);
        auto stride = static_cast<int64_t>(s.itemsize);
        const size_t dimensions = 1 + random() % 4;
        for (size_t i = 0; i < dimensions; ++i) {
            const auto extent = static_cast<int64_t>(1 + random() % 6);
            const auto step = static_cast<int64_t>(1 + (random() % 3) / 2);
            s.shape.push_back((extent + step - 1) / step);
            s.strides.push_back(random() % 8 == 0 ? 0
                                                  : stride * step * (random() % 4 == 0 ? -1 : 1));
            stride *= extent;
        }
        for (size_t i = dimensions; i > 1 && random() % 2 == 0; --i) {
            const size_t other = random() % i;
            std::swap(s.shape[i - 1], s.shape[other]);
            std::swap(s.strides[i - 1], s.strides[other]);
        }
        if (random() % 2 == 0) {
            std::reverse(s.shape.begin(), s.shape.end());
            std::reverse(s.strides.begin(), s.strides.end());
        }
        check_layout(s, random);
    }
}

void no_elements() {
    std::mt19937 random(5);
    check_layout({{0}, {8}, 8}, random);
    check_layout({{3, 0, 2}, {1, 7, -3}, 1}, random);
}

}  // namespace

int main() {
    random_strides();
    views_of_contiguous_memory();
    no_elements();
    return 0;
}
