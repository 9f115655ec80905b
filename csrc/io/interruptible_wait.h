// Waiting on a condition variable without being deaf to Ctrl-C.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>

namespace deepnvme::io {

// Called now and then by whatever waits; throws to give up (a signal has arrived).
using Interrupt = std::function<void()>;

// What a submitter does about having to wait for requests in flight.
struct Waiting {
    Interrupt interrupt;
    std::function<void()> before;  // starts what it holds back; waiting for that would be for ever
};

// Waits on `condition` until ready() holds (true) or `deadline` has come (false), calling
// `interrupt`, unlocked, ten times a second.
template <typename Ready>
bool wait_interruptibly(
    std::unique_lock<std::mutex>& lock, std::condition_variable& condition,
    const Interrupt& interrupt, Ready ready,
    std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max()) {
    using std::chrono::steady_clock;
    for (;;) {
        const auto next_look =
            std::min(deadline, steady_clock::now() + std::chrono::milliseconds(100));
        if (condition.wait_until(lock, next_look, ready)) {
            return true;
        }
        if (steady_clock::now() >= deadline) {
            return false;
        }
        if (interrupt) {
            lock.unlock();
            interrupt();
            lock.lock();
        }
    }
}

}  // namespace deepnvme::io
