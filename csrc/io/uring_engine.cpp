// io_uring through liburing.
//   1. The ring belongs to the thread that makes it (SINGLE_ISSUER | DEFER_TASKRUN where the kernel
//      has them, fewer flags where it does not; io_uring_setup(2)).
//   2. A read of an eventfd is always in flight, so that wake() from another thread ends a blocking
//      wait.
//   3. Fixed buffers live in a sparse table, filled slot by slot; a kernel without one just has no
//      fixed buffers.
#include "io/uring_engine.h"

#include "sys/syscalls.h"

#if DEEPNVME_HAVE_LIBURING

#include <liburing.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace deepnvme::io {
namespace {

constexpr uint64_t wake_tag = ~uint64_t{0};
constexpr unsigned buffer_slots = 1024;

class UringEngine final : public Engine {
public:
    explicit UringEngine(uint32_t depth) {
        free_slots_.reserve(buffer_slots);  // before there is a ring to be left behind
        open_ring(depth + 1);               // and the wake-up read
        wake_fd_ = sys::event_descriptor(false);
        if (wake_fd_ < 0) {
            ::io_uring_queue_exit(&ring_);
            throw EngineUnavailable(std::string("eventfd failed: ") + std::strerror(-wake_fd_));
        }
        arm_wake();
        if (::io_uring_register_buffers_sparse(&ring_, buffer_slots) == 0) {
            for (unsigned slot = buffer_slots; slot-- > 0;) {
                free_slots_.push_back(static_cast<int>(slot));
            }
        }
    }

    ~UringEngine() override {
        ::io_uring_queue_exit(&ring_);
        sys::close(wake_fd_);
    }

    // A queued entry that io_uring_enter did not take (EAGAIN, EBUSY, EINTR) stays in the ring, and
    // every later submit() or reap() offers it again: it counts as started.
    int submit(std::span<const Transfer> transfers) override {
        int queued = 0;
        for (const Transfer& transfer : transfers) {
            io_uring_sqe* sqe = ::io_uring_get_sqe(&ring_);
            if (sqe == nullptr) {
                break;
            }
            prepare(sqe, transfer);
            ++queued;
        }
        if (!sys::injected_fault("io_uring_enter")) {
            ::io_uring_submit(&ring_);
        }
        return queued == 0 && !transfers.empty() ? -EAGAIN : queued;
    }

    int reap(std::span<Completion> completions, bool block) override {
        int count = drain(completions);
        if (count > 0) {
            return count;
        }
        const bool wait = block && !std::exchange(woken_, false);
        int result = -sys::injected_fault("io_uring_enter");
        if (result == 0) {
            // Completions appear only when the owner enters the kernel (DEFER_TASKRUN), also
            // without waiting.
            result = wait ? ::io_uring_submit_and_wait(&ring_, 1)
                          : ::io_uring_submit_and_get_events(&ring_);
        }
        count = drain(completions);
        if (wait) {
            woken_ = false;
        }
        const bool failed = result < 0 && result != -EAGAIN && result != -EBUSY && result != -ETIME;
        return count == 0 && failed ? result : count;
    }

    void wake() override { sys::event_signal(wake_fd_); }

    int register_buffer(std::byte* data, size_t nbytes) override {
        if (free_slots_.empty()) {
            return -ENOSPC;
        }
        if (int injected = sys::injected_fault("io_uring_register")) {
            return -injected;
        }
        int slot = free_slots_.back();
        iovec buffer{data, nbytes};
        __u64 tag = 0;
        int result = ::io_uring_register_buffers_update_tag(&ring_, static_cast<unsigned>(slot),
                                                            &buffer, &tag, 1);
        if (result != 1) {
            return result < 0 ? result : -EINVAL;
        }
        free_slots_.pop_back();
        return slot;
    }

    void unregister_buffer(int index) override {
        iovec none{nullptr, 0};
        __u64 tag = 0;
        ::io_uring_register_buffers_update_tag(&ring_, static_cast<unsigned>(index), &none, &tag,
                                               1);
        free_slots_.push_back(index);
    }

private:
    void open_ring(uint32_t entries) {
        const unsigned attempts[] = {
#if defined(IORING_SETUP_SINGLE_ISSUER) && defined(IORING_SETUP_DEFER_TASKRUN)
            IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_CLAMP,
#endif
#ifdef IORING_SETUP_COOP_TASKRUN
            IORING_SETUP_COOP_TASKRUN | IORING_SETUP_CLAMP,
#endif
            IORING_SETUP_CLAMP, 0};
        int result = -EINVAL;
        for (unsigned flags : attempts) {
            if (int injected = sys::injected_fault("io_uring_setup")) {
                result = -injected;
            } else {
                io_uring_params params{};
                params.flags = flags;
                result = ::io_uring_queue_init_params(entries, &ring_, &params);
            }
            if (result != -EINVAL) {  // an older kernel's answer to a flag that it does not know
                break;
            }
        }
        if (result < 0) {
            throw EngineUnavailable(std::string("io_uring_setup failed: ") +
                                    std::strerror(-result) + hint(-result));
        }
    }

    static std::string hint(int error) {
        switch (error) {
            case EPERM:
            case EACCES:
                return " (forbidden by seccomp or by kernel.io_uring_disabled; allow it, or use "
                       "libaio or posix)";
            case ENOSYS:
                return " (the kernel has no io_uring; use libaio or posix)";
            case ENOMEM:
                return " (RLIMIT_MEMLOCK or memory is short; raise ulimit -l or lower queue_depth)";
            default:
                return "";
        }
    }

    void prepare(io_uring_sqe* sqe, const Transfer& t) {
        const auto offset = static_cast<__u64>(t.offset);
        if (t.buffer_index >= 0) {
            if (t.write) {
                ::io_uring_prep_write_fixed(sqe, t.fd, t.data, t.nbytes, offset, t.buffer_index);
            } else {
                ::io_uring_prep_read_fixed(sqe, t.fd, t.data, t.nbytes, offset, t.buffer_index);
            }
        } else if (t.write) {
            ::io_uring_prep_write(sqe, t.fd, t.data, t.nbytes, offset);
        } else {
            ::io_uring_prep_read(sqe, t.fd, t.data, t.nbytes, offset);
        }
        sqe->user_data = t.tag;
    }

    void arm_wake() {
        io_uring_sqe* sqe = ::io_uring_get_sqe(&ring_);
        if (sqe == nullptr) {
            wake_armed_ = false;  // the queue is full of unsubmitted entries: drain() arms it later
            return;
        }
        ::io_uring_prep_read(sqe, wake_fd_, &wake_count_, sizeof wake_count_, 0);
        sqe->user_data = wake_tag;
        wake_armed_ = true;
    }

    int drain(std::span<Completion> completions) {
        int count = 0;
        unsigned seen = 0;
        unsigned head;
        io_uring_cqe* cqe;
        bool wake_done = false;
        io_uring_for_each_cqe(&ring_, head, cqe) {
            if (cqe->user_data == wake_tag) {
                wake_done = true;
            } else if (static_cast<size_t>(count) < completions.size()) {
                completions[static_cast<size_t>(count++)] = {cqe->user_data, cqe->res};
            } else {
                break;
            }
            ++seen;
        }
        ::io_uring_cq_advance(&ring_, seen);
        if (wake_done) {
            woken_ = true;
            wake_armed_ = false;
        }
        if (!wake_armed_) {
            arm_wake();
        }
        return count;
    }

    io_uring ring_{};
    int wake_fd_ = -1;
    uint64_t wake_count_ = 0;
    bool wake_armed_ = false;
    bool woken_ = false;
    std::vector<int> free_slots_;
};

}  // namespace

std::unique_ptr<Engine> make_uring_engine(uint32_t depth) {
    return std::make_unique<UringEngine>(depth);
}

}  // namespace deepnvme::io

#else

namespace deepnvme::io {

std::unique_ptr<Engine> make_uring_engine(uint32_t /*depth*/) {
    throw EngineUnavailable("built without liburing: " DEEPNVME_LIBURING_REASON);
}

}  // namespace deepnvme::io

#endif
