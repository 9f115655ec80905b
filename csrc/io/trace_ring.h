// Trace events on their way from one thread to one other, without a lock. Bounded: what finds no
// room is dropped.
//   1. Positions only grow; `position % capacity` is the place in the buffer. A record is its
//      length, the event, and the bytes of its text; it may wrap.
//   2. The producer alone moves head_, after the record is there (release); the consumer alone
//      moves tail_, after it has copied the record out (release).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "io/trace_event.h"

namespace deepnvme::io {

class TraceRing {
public:
    static_assert(std::is_trivially_copyable_v<TraceEvent>);
    static constexpr size_t record_bytes(size_t text) { return sizeof(Head) + text; }

    explicit TraceRing(size_t nbytes) : buffer_(nbytes) {}

    // False when there is no room.
    bool push(const TraceEvent& event, std::string_view text) {
        const uint64_t head = head_.load(std::memory_order_relaxed);
        const size_t nbytes = record_bytes(text.size());
        if (nbytes > buffer_.size() - (head - tail_.load(std::memory_order_acquire))) {
            return false;
        }
        const Head record{event, text.size()};
        copy_in(head, &record, sizeof record);
        copy_in(head + sizeof record, text.data(), text.size());
        head_.store(head + nbytes, std::memory_order_release);
        return true;
    }

    // False when there is none.
    bool pop(TraceEvent& event, std::string& text) {
        const uint64_t tail = tail_.load(std::memory_order_relaxed);
        if (tail == head_.load(std::memory_order_acquire)) {
            return false;
        }
        Head record;
        copy_out(tail, &record, sizeof record);
        text.resize(record.text);
        copy_out(tail + sizeof record, text.data(), text.size());
        event = record.event;
        tail_.store(tail + record_bytes(text.size()), std::memory_order_release);
        return true;
    }

    // For the producer.
    bool half_full() const {
        const uint64_t used =
            head_.load(std::memory_order_relaxed) - tail_.load(std::memory_order_relaxed);
        return used >= buffer_.size() / 2;
    }
    void count_dropped() { dropped_.store(dropped() + 1, std::memory_order_relaxed); }
    // Any thread.
    uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

private:
    struct Head {
        TraceEvent event;
        size_t text;
    };

    void copy_in(uint64_t position, const void* from, size_t nbytes) {
        const size_t place = position % buffer_.size();
        const size_t first = std::min(nbytes, buffer_.size() - place);
        std::memcpy(buffer_.data() + place, from, first);
        std::memcpy(buffer_.data(), static_cast<const char*>(from) + first, nbytes - first);
    }
    void copy_out(uint64_t position, void* to, size_t nbytes) const {
        const size_t place = position % buffer_.size();
        const size_t first = std::min(nbytes, buffer_.size() - place);
        std::memcpy(to, buffer_.data() + place, first);
        std::memcpy(static_cast<char*>(to) + first, buffer_.data(), nbytes - first);
    }

    std::vector<char> buffer_;
    alignas(64) std::atomic<uint64_t> head_{0};
    std::atomic<uint64_t> dropped_{0};
    alignas(64) std::atomic<uint64_t> tail_{0};
};

}  // namespace deepnvme::io
