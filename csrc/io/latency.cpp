#include "io/latency.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace deepnvme::io {
namespace {

constexpr unsigned sub_bits = std::bit_width(LatencyHistogram::sub_buckets) - 1;

size_t bucket_of(uint64_t value) {
    if (value < LatencyHistogram::sub_buckets) {
        return value;
    }
    const unsigned shift = static_cast<unsigned>(std::bit_width(value)) - 1 - sub_bits;
    return (size_t{shift} + 1) * LatencyHistogram::sub_buckets +
           ((value >> shift) & (LatencyHistogram::sub_buckets - 1));
}

// The middle of a bucket, nanoseconds.
double value_of(size_t bucket) {
    if (bucket < LatencyHistogram::sub_buckets) {
        return static_cast<double>(bucket);
    }
    const auto shift = static_cast<int>(bucket / LatencyHistogram::sub_buckets) - 1;
    const auto mantissa =
        static_cast<double>(LatencyHistogram::sub_buckets + bucket % LatencyHistogram::sub_buckets);
    return std::ldexp(mantissa + 0.5, shift);
}

}  // namespace

void LatencyHistogram::record(uint64_t nanoseconds) {
    auto& bucket = buckets_[bucket_of(nanoseconds)];
    bucket.store(bucket.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    total_.store(total_.load(std::memory_order_relaxed) + nanoseconds, std::memory_order_relaxed);
    if (nanoseconds > max_.load(std::memory_order_relaxed)) {
        max_.store(nanoseconds, std::memory_order_relaxed);
    }
}

void LatencyHistogram::Merged::add(const LatencyHistogram& histogram) {
    for (size_t i = 0; i < bucket_count; ++i) {
        const uint64_t count = histogram.buckets_[i].load(std::memory_order_relaxed);
        buckets_[i] += count;
        count_ += count;
    }
    total_ += histogram.total_.load(std::memory_order_relaxed);
    max_ = std::max(max_, histogram.max_.load(std::memory_order_relaxed));
}

double LatencyHistogram::Merged::percentile(double fraction) const {
    const auto rank = static_cast<uint64_t>(std::ceil(fraction * static_cast<double>(count_)));
    size_t bucket = 0;
    uint64_t seen = buckets_[0];
    while (seen < rank && bucket + 1 < bucket_count) {
        seen += buckets_[++bucket];
    }
    return std::min(value_of(bucket), static_cast<double>(max_)) * 1e-9;
}

LatencyHistogram::Summary LatencyHistogram::Merged::summary() const {
    Summary summary;
    if (count_ == 0) {
        return summary;
    }
    summary.count = count_;
    summary.mean = static_cast<double>(total_) / static_cast<double>(count_) * 1e-9;
    summary.p50 = percentile(0.5);
    summary.p90 = percentile(0.9);
    summary.p99 = percentile(0.99);
    summary.p999 = percentile(0.999);
    summary.max = static_cast<double>(max_) * 1e-9;
    return summary;
}

}  // namespace deepnvme::io
