// What a queue did: single writer (the thread that owns the queue), any number of readers.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "io/device_table.h"
#include "io/latency.h"

namespace deepnvme::io {

// How bytes travelled: past the page cache from where they lie, the same through a registered
// buffer, copied through an aligned staging block, or through the page cache.
enum class Path : uint8_t { direct, fixed, staged, buffered };
inline constexpr size_t path_count = 4;
inline constexpr const char* path_names[path_count] = {"direct", "fixed", "staged", "buffered"};

class Counter {
public:
    // Not an atomic addition: there is one writer.
    void add(uint64_t amount) { value_.store(get() + amount, std::memory_order_relaxed); }
    void set(uint64_t value) { value_.store(value, std::memory_order_relaxed); }
    uint64_t get() const { return value_.load(std::memory_order_relaxed); }

private:
    std::atomic<uint64_t> value_{0};
};

struct Counters {
    std::array<std::array<Counter, path_count>, 2> nbytes;     // [write][path]
    std::array<std::array<Counter, path_count>, 2> transfers;  // [write][path]
    // Bytes moved by place of the device, whether their chunk completed or not: [place][write]
    std::array<std::array<Counter, 2>, DeviceTable::capacity> devices;
    Counter in_flight;         // transfers that the engine has now
    Counter staging;           // bytes of the staging blocks
    Counter retries;           // EINTR, EAGAIN and refused transfers that were tried again
    Counter short_transfers;   // fewer bytes than asked, the rest tried again
    Counter direct_refused;    // files that refused O_DIRECT and went through the page cache
    LatencyHistogram latency;  // of transfers
};

}  // namespace deepnvme::io
