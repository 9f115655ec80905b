// Numbers for the devices that files lie on, so that counters of each are an array.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <tuple>

namespace deepnvme::io {

// As in /sys/dev/block and /proc/self/mountinfo.
struct DeviceNumber {
    uint32_t major = 0;
    uint32_t minor = 0;
};

// Bytes moved by place of the device: [place][write].
using DeviceBytes = std::array<std::array<uint64_t, 2>, 64>;

// Of the process. Without a lock, which a fork could leave taken in the child.
class DeviceTable {
public:
    static constexpr size_t capacity = std::tuple_size_v<DeviceBytes>;

    static DeviceTable& instance() {
        static DeviceTable table;
        return table;
    }

    // The place of a device, the same for ever. Once all are taken, the last is for every other.
    size_t place_of(DeviceNumber device) {
        const uint64_t key = (uint64_t{device.major} << 32 | device.minor) + 1;  // 0: free
        for (size_t place = 0; place + 1 < capacity; ++place) {
            uint64_t found = 0;
            if (places_[place].compare_exchange_strong(found, key, std::memory_order_relaxed) ||
                found == key) {
                return place;
            }
        }
        return capacity - 1;
    }
    // 0:0 for what stands for every other.
    DeviceNumber device(size_t place) const {
        const uint64_t key = places_[place].load(std::memory_order_relaxed);
        const uint64_t number = key == 0 ? 0 : key - 1;
        return {static_cast<uint32_t>(number >> 32), static_cast<uint32_t>(number)};
    }

private:
    std::array<std::atomic<uint64_t>, capacity> places_{};
};

}  // namespace deepnvme::io
