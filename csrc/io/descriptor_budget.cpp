#include "io/descriptor_budget.h"

namespace deepnvme::io {

DescriptorBudget::Token::~Token() {
    if (budget_ != nullptr) {
        std::lock_guard lock(budget_->mutex_);
        --budget_->held_;
        budget_->releases_ += opened_ ? 1 : 0;
        budget_->released_.notify_all();
    }
}

DescriptorBudget::Token DescriptorBudget::acquire(const Waiting& waiting) {
    std::unique_lock lock(mutex_);
    if (held_ >= limit_) {
        wait(lock, waiting, [&] { return held_ < limit_; });
    }
    ++held_;
    return Token(shared_from_this());
}

uint64_t DescriptorBudget::releases() const {
    std::lock_guard lock(mutex_);
    return releases_;
}

bool DescriptorBudget::wait_for_release(uint64_t seen, const Waiting& waiting) {
    std::unique_lock lock(mutex_);
    const auto ready = [&] { return releases_ != seen || held_ == 0; };
    if (!ready()) {
        wait(lock, waiting, ready);
    }
    return releases_ != seen;
}

template <typename Ready>
void DescriptorBudget::wait(std::unique_lock<std::mutex>& lock, const Waiting& waiting,
                            Ready ready) {
    if (waiting.before) {
        lock.unlock();
        waiting.before();
        lock.lock();
    }
    wait_interruptibly(lock, released_, waiting.interrupt, ready);
}

}  // namespace deepnvme::io
