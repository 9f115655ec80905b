// Threads that call pread and pwrite. Threads start as they are needed, up to the depth or
// max_threads.
#include "io/posix_engine.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "sys/syscalls.h"
#include "sys/thread.h"

namespace deepnvme::io {
namespace {

constexpr size_t max_threads = 32;  // enough to fill a drive's queue; more only switch contexts

Completion perform(const Transfer& t) {
    ssize_t result = t.write ? sys::pwrite(t.fd, t.data, t.nbytes, t.offset)
                             : sys::pread(t.fd, t.data, t.nbytes, t.offset);
    return {t.tag, result};
}

int take_completions(std::deque<Completion>& done, std::span<Completion> out) {
    size_t count = std::min(done.size(), out.size());
    std::copy_n(done.begin(), count, out.begin());
    done.erase(done.begin(), done.begin() + static_cast<std::ptrdiff_t>(count));
    return static_cast<int>(count);
}

class PosixEngine final : public Engine {
public:
    explicit PosixEngine(uint32_t depth) : thread_limit_(std::min<size_t>(depth, max_threads)) {
        threads_.reserve(thread_limit_);  // a thread that has started finds its place
        start_thread();  // the first one at once, so that a machine without threads says so here
    }

    ~PosixEngine() override {
        {
            std::lock_guard lock(mutex_);
            stopping_ = true;
        }
        work_.notify_all();
        for (std::thread& thread : threads_) {
            thread.join();
        }
    }

    int submit(std::span<const Transfer> transfers) override {
        size_t wanted = 0;
        {
            std::lock_guard lock(mutex_);
            queue_.insert(queue_.end(), transfers.begin(), transfers.end());
            wanted = queue_.size() > idle_ ? queue_.size() - idle_ : 0;
        }
        while (wanted > 0 && threads_.size() < thread_limit_) {
            try {
                start_thread();
            } catch (const std::system_error&) {
                thread_limit_ = threads_.size();  // the threads that there are do the work
            }
            --wanted;
        }
        if (transfers.size() == 1) {
            work_.notify_one();
        } else {
            work_.notify_all();
        }
        return static_cast<int>(transfers.size());
    }

    int reap(std::span<Completion> completions, bool block) override {
        std::unique_lock lock(mutex_);
        if (block) {
            finished_.wait(lock, [&] { return !done_.empty() || woken_; });
            woken_ = false;
        }
        return take_completions(done_, completions);
    }

    void wake() override {
        {
            std::lock_guard lock(mutex_);
            woken_ = true;
        }
        finished_.notify_one();
    }

private:
    void start_thread() {
        threads_.push_back(sys::start_thread("dnvme-posix", [this] { run(); }));
    }

    void run() {
        std::unique_lock lock(mutex_);
        for (;;) {
            ++idle_;
            work_.wait(lock, [&] { return !queue_.empty() || stopping_; });
            --idle_;
            if (queue_.empty()) {
                return;
            }
            Transfer transfer = queue_.front();
            queue_.pop_front();
            lock.unlock();
            Completion completion = perform(transfer);
            lock.lock();
            done_.push_back(completion);
            finished_.notify_one();
        }
    }

    std::mutex mutex_;
    std::condition_variable work_;
    std::condition_variable finished_;
    std::deque<Transfer> queue_;
    std::deque<Completion> done_;
    size_t idle_ = 0;
    bool stopping_ = false;
    bool woken_ = false;
    size_t thread_limit_;  // the owner's, like threads_
    std::vector<std::thread> threads_;
};

class InlineEngine final : public Engine {
public:
    int submit(std::span<const Transfer> transfers) override {
        for (const Transfer& transfer : transfers) {
            done_.push_back(perform(transfer));
        }
        return static_cast<int>(transfers.size());
    }

    int reap(std::span<Completion> completions, bool /*block*/) override {
        return take_completions(done_, completions);
    }

    void wake() override {}

private:
    std::deque<Completion> done_;
};

}  // namespace

std::unique_ptr<Engine> make_posix_engine(uint32_t depth) {
    return std::make_unique<PosixEngine>(depth);
}

std::unique_ptr<Engine> make_inline_engine(uint32_t /*depth*/) {
    return std::make_unique<InlineEngine>();
}

}  // namespace deepnvme::io
