// The interface between the queue and the kernel: submit a batch of transfers, reap completions.
// An engine has one owner: every call except wake() comes from the thread that made it. Wrap an
// engine (fault injection, monitoring) instead of adding options to one.
#pragma once

#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>

namespace deepnvme::io {

struct Transfer {
    std::byte* data;
    off_t offset;
    uint64_t tag;
    uint32_t nbytes;  // at most max_transfer_bytes
    int fd;
    int buffer_index;  // of register_buffer, or -1
    bool write;
};

struct Completion {
    uint64_t tag;
    int64_t result;  // bytes moved, or -errno
};

class Engine {
public:
    virtual ~Engine() = default;  // called with nothing in flight

    // Starts transfers in order. Returns how many were started, perhaps fewer than given, or -errno
    // (never both: an error is reported only when none was started). -EAGAIN asks to reap first.
    virtual int submit(std::span<const Transfer> transfers) = 0;

    // Stores completions that are ready; with `block`, waits until there is at least one, wake()
    // was called, or a signal came (-EINTR). Returns how many were stored, or -errno.
    virtual int reap(std::span<Completion> completions, bool block) = 0;

    // Makes the current or the next blocking reap() return early. Any thread.
    virtual void wake() = 0;

    // Fixed buffers: an index for Transfer::buffer_index, or -errno where that is not to be had.
    // `nbytes` is at most max_registered_bytes.
    virtual int register_buffer(std::byte* /*data*/, size_t /*nbytes*/) { return -EOPNOTSUPP; }
    virtual void unregister_buffer(int /*index*/) {}
};

// Linux moves at most 0x7ffff000 bytes a call (read(2)); io_uring registers at most 1 GiB a buffer
// (io_uring_register(2)). One limit serves for both.
inline constexpr size_t max_transfer_bytes = size_t{1} << 30;
inline constexpr size_t max_registered_bytes = size_t{1} << 30;

// Makes an engine for `depth` transfers in flight. Throws EngineUnavailable.
using EngineFactory = std::function<std::unique_ptr<Engine>(uint32_t depth)>;

class EngineUnavailable : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

}  // namespace deepnvme::io
