// A histogram of durations with a bounded relative error: 16 buckets for each power of two of
// nanoseconds (the scheme of HdrHistogram and of fio's completion latencies).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace deepnvme::io {

class LatencyHistogram {
public:
    static constexpr unsigned sub_buckets = 16;
    static constexpr size_t bucket_count = 64 * sub_buckets;

    void record(uint64_t nanoseconds);  // one writer at a time

    struct Summary {
        uint64_t count = 0;
        double mean = 0, p50 = 0, p90 = 0, p99 = 0, p999 = 0, max = 0;  // seconds
    };

    // Sums of several histograms.
    class Merged {
    public:
        void add(const LatencyHistogram& histogram);
        Summary summary() const;

    private:
        double percentile(double fraction) const;

        std::array<uint64_t, bucket_count> buckets_{};
        uint64_t count_ = 0;
        uint64_t total_ = 0;
        uint64_t max_ = 0;
    };

private:
    std::array<std::atomic<uint64_t>, bucket_count> buckets_{};
    std::atomic<uint64_t> total_{0};
    std::atomic<uint64_t> max_{0};
};

}  // namespace deepnvme::io
