// How many files the queued requests of one handle may hold open: beyond it, a submitter waits for
// requests to complete, so that thousands of requests neither exhaust RLIMIT_NOFILE nor memory.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "io/interruptible_wait.h"

namespace deepnvme::io {

class DescriptorBudget : public std::enable_shared_from_this<DescriptorBudget> {
public:
    explicit DescriptorBudget(size_t limit) : limit_(limit) {}

    class Token {
    public:
        Token() = default;
        explicit Token(std::shared_ptr<DescriptorBudget> budget) : budget_(std::move(budget)) {}
        Token(Token&&) = default;
        Token& operator=(Token&&) = delete;
        ~Token();

    private:
        std::shared_ptr<DescriptorBudget> budget_;
    };

    Token acquire(const Waiting& waiting);  // waits while the limit is reached
    // Waits for a release, unless nothing is held; false then: waiting cannot help.
    bool wait_for_release(const Waiting& waiting);

private:
    template <typename Ready>
    void wait(std::unique_lock<std::mutex>& lock, const Waiting& waiting, Ready ready);

    std::mutex mutex_;
    std::condition_variable released_;
    const size_t limit_;
    size_t held_ = 0;
    uint64_t releases_ = 0;
};

}  // namespace deepnvme::io
