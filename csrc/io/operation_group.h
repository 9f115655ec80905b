// What a caller waits for: one synchronous request, one future, one call over many tensors, or the
// asynchronous requests of a handle since its last wait(). Counts operations and collects every
// failure.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "io/failure.h"
#include "io/interruptible_wait.h"

namespace deepnvme::io {

class OperationGroup {
public:
    void expect(size_t operations = 1);
    // One expected operation is over; `failure` says so when it failed.
    void finish(uint64_t nbytes_done, std::optional<Failure> failure);

    // One expected operation will not come.
    void withdraw();

    bool done() const;
    void wait(const Interrupt& interrupt);  // until nothing is expected any more
    // The same for at most `timeout`; false when it has passed.
    bool wait_for(std::chrono::steady_clock::duration timeout, const Interrupt& interrupt);

    struct Outcome {
        uint64_t completed = 0;  // operations that moved every byte
        uint64_t nbytes = 0;     // moved by those
        std::vector<Failure> failures;
    };
    Outcome outcome() const;

    // Called once, as soon as nothing is expected any more (at once if so already), from whichever
    // thread finishes.
    void when_done(std::function<void()> callback);

private:
    void one_less(std::unique_lock<std::mutex> lock);

    mutable std::mutex mutex_;
    std::condition_variable finished_;
    size_t pending_ = 0;
    Outcome outcome_;
    std::vector<std::function<void()>> callbacks_;
};

}  // namespace deepnvme::io
