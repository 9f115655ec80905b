// The clock of latencies and traces.
#pragma once

#include <chrono>
#include <cstdint>

namespace deepnvme::sys {

// Nanoseconds of CLOCK_MONOTONIC.
inline uint64_t monotonic_ns() {
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                     std::chrono::steady_clock::now().time_since_epoch())
                                     .count());
}

}  // namespace deepnvme::sys
