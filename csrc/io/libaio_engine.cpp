// Linux native AIO through libaio.
//   1. Contexts count against fs.aio-max-nr, machine-wide: io_setup's EAGAIN is reported as that
//      limit.
//   2. An IOCB_CMD_POLL on an eventfd is always in flight, so that wake() from another thread ends
//      a blocking wait.
//   3. io_event.res is unsigned in libaio's header: it is read as signed here, so that a failure is
//      a failure.
#include "io/libaio_engine.h"

#include "sys/syscalls.h"

#if DEEPNVME_HAVE_LIBAIO

#include <libaio.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace deepnvme::io {
namespace {

class LibaioEngine final : public Engine {
public:
    explicit LibaioEngine(uint32_t depth) : control_blocks_(depth), free_(depth) {
        for (uint32_t i = 0; i < depth; ++i) {
            free_[i] = &control_blocks_[i];
        }
        int result = -sys::injected_fault("io_setup");
        if (result == 0) {
            result = ::io_setup(static_cast<int>(depth) + 1, &context_);  // and the wake-up poll
        }
        if (result < 0) {
            std::string hint;
            if (result == -EAGAIN) {
                hint =
                    " (fs.aio-max-nr is used up on this machine; raise it with sysctl, or lower "
                    "queue_depth)";
            }
            throw EngineUnavailable(std::string("io_setup failed: ") + std::strerror(-result) +
                                    hint);
        }
        wake_fd_ = sys::event_descriptor(true);
        result = wake_fd_ < 0 ? wake_fd_ : arm_wake();
        if (result < 0) {
            release();
            throw EngineUnavailable(std::string("eventfd or IOCB_CMD_POLL failed: ") +
                                    std::strerror(-result));
        }
    }

    ~LibaioEngine() override { release(); }

    int submit(std::span<const Transfer> transfers) override {
        batch_.clear();
        for (const Transfer& t : transfers) {
            if (batch_.size() == free_.size()) {
                break;
            }
            iocb* control = free_[free_.size() - 1 - batch_.size()];
            if (t.write) {
                ::io_prep_pwrite(control, t.fd, t.data, t.nbytes, t.offset);
            } else {
                ::io_prep_pread(control, t.fd, t.data, t.nbytes, t.offset);
            }
            control->data = reinterpret_cast<void*>(t.tag);
            batch_.push_back(control);
        }
        if (batch_.empty()) {
            return transfers.empty() ? 0 : -EAGAIN;
        }
        int started = -sys::injected_fault("io_submit");
        if (started == 0) {
            started = ::io_submit(context_, static_cast<long>(batch_.size()), batch_.data());
        }
        if (started > 0) {
            free_.resize(free_.size() - static_cast<size_t>(started));
        }
        return started;
    }

    int reap(std::span<Completion> completions, bool block) override {
        if (!wake_armed_) {
            arm_wake();
        }
        const bool wait = block && !std::exchange(woken_, false);
        timespec now{0, 0};
        const long room = static_cast<long>(std::min(completions.size(), events_.size()));
        int result = -sys::injected_fault("io_getevents");
        if (result == 0) {
            // Without a poll in flight nothing but a completion would end the wait; a bounded wait
            // cannot miss wake().
            timespec bounded{0, 1'000'000};
            timespec* timeout = !wait ? &now : wake_armed_ ? nullptr : &bounded;
            result = ::io_getevents(context_, wait ? 1 : 0, room, events_.data(), timeout);
        }
        if (result < 0) {
            return result;
        }
        int count = 0;
        for (int i = 0; i < result; ++i) {
            const io_event& event = events_[static_cast<size_t>(i)];
            if (event.obj == &wake_block_) {
                sys::event_drain(wake_fd_);
                wake_armed_ = false;
                woken_ = !wait;
                continue;
            }
            free_.push_back(event.obj);
            completions[static_cast<size_t>(count++)] = {reinterpret_cast<uint64_t>(event.data),
                                                         static_cast<int64_t>(event.res)};
        }
        return count;
    }

    void wake() override { sys::event_signal(wake_fd_); }

private:
    int arm_wake() {
        ::io_prep_poll(&wake_block_, wake_fd_, POLLIN);
        iocb* block = &wake_block_;
        int result = -EINTR;
        for (int tries = 0; tries < 16 && (result == -EINTR || result == -EAGAIN); ++tries) {
            result = -sys::injected_fault("io_submit");
            if (result == 0) {
                result = ::io_submit(context_, 1, &block);
            }
        }
        wake_armed_ = result == 1;
        return result;
    }

    void release() {
        ::io_destroy(context_);  // also cancels the wake-up poll
        if (wake_fd_ >= 0) {
            sys::close(wake_fd_);
        }
    }

    io_context_t context_{};
    int wake_fd_ = -1;
    bool wake_armed_ = false;
    bool woken_ = false;
    iocb wake_block_{};
    std::vector<iocb> control_blocks_;
    std::vector<iocb*> free_;
    std::vector<iocb*> batch_;
    std::array<io_event, 128> events_{};
};

}  // namespace

std::unique_ptr<Engine> make_libaio_engine(uint32_t depth) {
    return std::make_unique<LibaioEngine>(depth);
}

}  // namespace deepnvme::io

#else

namespace deepnvme::io {

std::unique_ptr<Engine> make_libaio_engine(uint32_t /*depth*/) {
    throw EngineUnavailable("built without libaio: " DEEPNVME_LIBAIO_REASON);
}

}  // namespace deepnvme::io

#endif
