#include "io/descriptor_budget.h"

namespace deepnvme::io {

DescriptorBudget::Token::~Token() {
    if (budget_ != nullptr) {
        std::lock_guard lock(budget_->mutex_);
        --budget_->held_;
        ++budget_->releases_;
        budget_->released_.notify_all();
    }
}

DescriptorBudget::Token DescriptorBudget::acquire(const Interrupt& interrupt) {
    std::unique_lock lock(mutex_);
    wait_interruptibly(lock, released_, interrupt, [&] { return held_ < limit_; });
    ++held_;
    return Token(shared_from_this());
}

bool DescriptorBudget::wait_for_release(const Interrupt& interrupt) {
    std::unique_lock lock(mutex_);
    if (held_ == 0) {
        return false;
    }
    const uint64_t before = releases_;
    wait_interruptibly(lock, released_, interrupt, [&] { return releases_ != before; });
    return true;
}

}  // namespace deepnvme::io
