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
        void opened() { opened_ = true; }  // the file is open: its end is a release

    private:
        std::shared_ptr<DescriptorBudget> budget_;
        bool opened_ = false;
    };

    Token acquire(const Waiting& waiting);  // waits while the limit is reached
    // How many open files have been given back so far. An attempt to open that failed is none:
    // two that fail by turns would wake each other for ever.
    uint64_t releases() const;
    // Waits until releases() is no longer `seen`, which the caller read before what failed; false
    // once nothing is held: waiting cannot help.
    bool wait_for_release(uint64_t seen, const Waiting& waiting);

private:
    template <typename Ready>
    void wait(std::unique_lock<std::mutex>& lock, const Waiting& waiting, Ready ready);

    mutable std::mutex mutex_;
    std::condition_variable released_;
    const size_t limit_;
    size_t held_ = 0;
    uint64_t releases_ = 0;
};

}  // namespace deepnvme::io
