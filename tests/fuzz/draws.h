// The bytes of a fuzzer as a row of decisions. Once they are used up every decision is 0, so a
// target ends; 0 should therefore be the plain choice.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace deepnvme::fuzz {

class Draws {
public:
    Draws(const uint8_t* data, size_t size) : left_(data, size) {}

    bool empty() const { return left_.empty(); }
    uint8_t byte() {
        if (left_.empty()) {
            return 0;
        }
        const uint8_t first = left_.front();
        left_ = left_.subspan(1);
        return first;
    }
    // Of as many bytes as `limit` has, so that every byte matters. limit > 0.
    uint64_t below(uint64_t limit) {
        uint64_t value = 0;
        for (uint64_t reach = limit - 1; reach > 0; reach >>= 8) {
            value = value << 8 | byte();
        }
        return value % limit;
    }
    bool yes() { return byte() % 2 != 0; }
    template <typename T, size_t N>
    T of(const std::array<T, N>& choices) {
        return choices[below(N)];
    }
    // At most `limit`, of any magnitude, and often just beside a power of two or a multiple of one:
    // where sizes and offsets go wrong.
    uint64_t number(uint64_t limit) {
        const unsigned shift = byte() % 64;
        const uint64_t high = byte();
        const auto beside = static_cast<int8_t>(byte());
        const uint64_t value = (high << shift) + static_cast<uint64_t>(int64_t{beside});
        return value <= limit ? value : value % (limit == UINT64_MAX ? limit : limit + 1);
    }

private:
    std::span<const uint8_t> left_;
};

}  // namespace deepnvme::fuzz

// A target: everything it needs is made anew each time, and a broken promise aborts (CHECK).
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
