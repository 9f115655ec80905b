// Guards: percentiles are within a sixteenth of the exact ones for any durations; count, mean and
// maximum are exact; reading while another thread records is no race.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "io/latency.h"

using namespace deepnvme;
using io::LatencyHistogram;
using Summary = LatencyHistogram::Summary;

namespace {

constexpr double kNanosecond = 1e-9;

Summary summary_of(const std::vector<std::unique_ptr<LatencyHistogram>>& histograms) {
    LatencyHistogram::Merged merged;
    for (const auto& histogram : histograms) {
        merged.add(*histogram);
    }
    return merged.summary();
}

bool within(double value, double exact, double relative) {
    return std::abs(value - exact) <= exact * relative + 1e-15;
}

// The values, dealt out to several histograms.
void check_values(std::vector<uint64_t> values, size_t parts) {
    std::vector<std::unique_ptr<LatencyHistogram>> histograms;
    for (size_t i = 0; i < parts; ++i) {
        histograms.push_back(std::make_unique<LatencyHistogram>());
    }
    double total = 0;
    for (size_t i = 0; i < values.size(); ++i) {
        histograms[i % parts]->record(values[i]);
        total += static_cast<double>(values[i]);
    }
    const Summary summary = summary_of(histograms);
    std::sort(values.begin(), values.end());
    const auto exact = [&](double fraction) {  // the smallest value that is not below that part
        const auto rank =
            static_cast<size_t>(std::ceil(fraction * static_cast<double>(values.size())));
        return static_cast<double>(values[std::max<size_t>(rank, 1) - 1]) * kNanosecond;
    };
    CHECK(summary.count == values.size());
    CHECK(within(summary.max, static_cast<double>(values.back()) * kNanosecond, 1e-12));
    CHECK(within(summary.mean, total / static_cast<double>(values.size()) * kNanosecond, 1e-9));
    CHECK(within(summary.p50, exact(0.5), 1.0 / 16));
    CHECK(within(summary.p90, exact(0.9), 1.0 / 16));
    CHECK(within(summary.p99, exact(0.99), 1.0 / 16));
    CHECK(within(summary.p999, exact(0.999), 1.0 / 16));
    CHECK(summary.p50 <= summary.p90 && summary.p90 <= summary.p99);
    CHECK(summary.p99 <= summary.p999 && summary.p999 <= summary.max);
}

void exact_values() {
    std::mt19937_64 random(6);
    for (size_t count : {1, 2, 9, 10, 11, 100, 999, 1000, 1001, 20'000}) {
        for (size_t parts : {1, 3}) {
            std::vector<uint64_t> uniform(count);
            std::vector<uint64_t> wide(count);  // every magnitude as often
            std::vector<uint64_t> two_humps(count);
            for (size_t i = 0; i < count; ++i) {
                uniform[i] = random() % 1'000'000;
                wide[i] = random() >> (15 + random() % 49);  // 2^49 ns are six days
                two_humps[i] = (i % 100 == 0 ? 50'000'000 : 80'000) + random() % 1000;
            }
            check_values(uniform, parts);
            check_values(wide, parts);
            check_values(two_humps, parts);
        }
    }
}

// One value alone is its own percentile: the edges of every bucket, and the largest value that
// there is.
void edges_of_buckets() {
    for (unsigned bit = 0; bit < 64; ++bit) {
        for (uint64_t sixteenth = 0; sixteenth < 16; ++sixteenth) {
            const uint64_t edge = (uint64_t{1} << bit) + ((uint64_t{1} << bit) / 16) * sixteenth;
            check_values({edge}, 1);
            check_values({edge - 1}, 1);
        }
    }
    check_values({UINT64_MAX}, 1);
    check_values({0, 0, 0}, 1);
}

void nothing_recorded() {
    const Summary summary = LatencyHistogram::Merged().summary();
    CHECK(summary.count == 0 && summary.mean == 0 && summary.max == 0);
    CHECK(summary.p50 == 0 && summary.p90 == 0 && summary.p99 == 0 && summary.p999 == 0);
}

void read_while_recording() {
    std::vector<std::unique_ptr<LatencyHistogram>> histograms;
    histograms.push_back(std::make_unique<LatencyHistogram>());
    constexpr uint64_t count = 50'000;
    std::atomic<bool> done{false};
    std::jthread writer([&] {
        for (uint64_t i = 0; i < count; ++i) {
            histograms[0]->record(1000);
        }
        done = true;
    });
    uint64_t seen = 0;
    while (!done) {
        const uint64_t now = summary_of(histograms).count;
        CHECK(now >= seen && now <= count);
        seen = now;
        std::this_thread::yield();
    }
    CHECK(summary_of(histograms).count == count);
}

}  // namespace

int main() {
    exact_values();
    edges_of_buckets();
    nothing_recorded();
    read_while_recording();
    return 0;
}
