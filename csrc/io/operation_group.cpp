#include "io/operation_group.h"

namespace deepnvme::io {

void OperationGroup::expect(size_t operations) {
    std::lock_guard lock(mutex_);
    pending_ += operations;
}

void OperationGroup::finish(uint64_t nbytes_done, std::optional<Failure> failure) {
    std::unique_lock lock(mutex_);
    if (failure.has_value()) {
        outcome_.failures.push_back(std::move(*failure));
    } else {
        ++outcome_.completed;
        outcome_.nbytes += nbytes_done;
    }
    one_less(std::move(lock));
}

void OperationGroup::withdraw() { one_less(std::unique_lock(mutex_)); }

void OperationGroup::one_less(std::unique_lock<std::mutex> lock) {
    std::vector<std::function<void()>> callbacks;
    if (--pending_ == 0) {
        callbacks.swap(callbacks_);
        finished_.notify_all();
    }
    lock.unlock();
    for (const auto& callback : callbacks) {
        callback();
    }
}

bool OperationGroup::done() const {
    std::lock_guard lock(mutex_);
    return pending_ == 0;
}

void OperationGroup::wait(const Interrupt& interrupt) {
    std::unique_lock lock(mutex_);
    wait_interruptibly(lock, finished_, interrupt, [&] { return pending_ == 0; });
}

bool OperationGroup::wait_for(std::chrono::steady_clock::duration timeout,
                              const Interrupt& interrupt) {
    std::unique_lock lock(mutex_);
    return wait_interruptibly(
        lock, finished_, interrupt, [&] { return pending_ == 0; },
        std::chrono::steady_clock::now() + timeout);
}

OperationGroup::Outcome OperationGroup::outcome() const {
    std::lock_guard lock(mutex_);
    return outcome_;
}

void OperationGroup::when_done(std::function<void()> callback) {
    {
        std::lock_guard lock(mutex_);
        if (pending_ > 0) {
            callbacks_.push_back(std::move(callback));
            return;
        }
    }
    callback();
}

}  // namespace deepnvme::io
