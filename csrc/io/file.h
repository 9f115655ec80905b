// One opened file: its descriptors, its size and what it asks of direct I/O.
//   1. A path is opened once, with O_DIRECT when a request has a whole aligned unit; a file system
//      that answers EINVAL or EOPNOTSUPP gets a plain open instead. O_NONBLOCK keeps the open of a
//      FIFO from hanging, and is taken off again for engines, which would take it as an order.
//   2. The caller's descriptor is reopened through /proc/self/fd, so that neither its flags
//      (O_APPEND, O_DIRECT) nor its closing matter. Where that is refused it is duplicated. The
//      caller's own is never closed.
//   3. The second descriptor, without O_DIRECT, for head and tail, is reopened from the first:
//      never by name, which might mean another file by now.
//   4. A direct request that fails with EINVAL takes O_DIRECT off the descriptor, once, for good.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "io/descriptor_budget.h"
#include "io/failure.h"
#include "io/plan.h"

namespace deepnvme::io {

class File;

// What to open: a path, or the caller's descriptor when `descriptor` is not negative.
struct FileName {
    std::string path;
    int descriptor = -1;
    std::shared_ptr<File> opened = nullptr;  // by IoHandle::open: neither of the two then

    std::string text() const;  // the path, also of a descriptor where it can be had
};

class File {
public:
    // For nbytes at offset, to be read or written (created with mode 0600, never truncated). Throws
    // IoError.
    static std::shared_ptr<File> open(const FileName& name, bool write, uint64_t nbytes,
                                      off_t offset, DescriptorBudget::Token token);
    ~File();
    File(const File&) = delete;
    File& operator=(const File&) = delete;

    const Alignment& alignment() const { return alignment_; }
    // Acquire: whoever sees that it is not, sees the descriptor without O_DIRECT.
    bool direct() const { return direct_.load(std::memory_order_acquire); }
    bool refused_at_open() const { return refused_at_open_; }
    uint64_t size() const { return size_; }  // bytes, when it was opened
    bool regular() const { return regular_; }
    // Of the drive that it lies on, in the DeviceTable; of a block device itself.
    size_t device_place() const { return device_place_; }

    int direct_descriptor() const { return primary_; }
    int buffered_descriptor() const {
        const int secondary = secondary_.load(std::memory_order_acquire);
        return secondary >= 0 ? secondary : primary_;
    }
    // To be called before buffered_descriptor() is used on a file that is direct(). Any thread;
    // throws IoError.
    void need_buffered();

    void count_as_open() { token_.opened(); }  // all that it needs is open: DescriptorBudget

    // Takes O_NONBLOCK off the descriptor: pread(2) does not mind it on these files, but io_uring
    // does.
    int make_blocking();  // 0 or an errno
    // Allocates the blocks of [offset, offset + nbytes): 0, or the errno of a disk that is full. A
    // file system that cannot allocate is no error.
    int reserve(off_t offset, uint64_t nbytes);
    // Direct I/O failed with EINVAL: from now on this file is buffered. True the first time.
    bool refuse_direct();
    // The size now, or -errno.
    int64_t current_size() const;
    std::string path() const;
    // What went wrong with a request on it.
    Failure failure(bool write, off_t offset, uint64_t nbytes, int error,
                    std::string detail = {}) const;

private:
    explicit File(DescriptorBudget::Token token) : token_(std::move(token)) {}
    void open_path(bool want_direct);
    void open_descriptor(int descriptor, bool want_direct);
    void inspect(int descriptor);
    int set_flags(int flags);  // 0 or an errno
    [[noreturn]] void fail(int error, const char* detail = "") const;

    FileName name_;
    int primary_ = -1;
    std::atomic<int> secondary_{-1};
    std::mutex mutex_;  // of changes to the descriptors
    int access_ = 0;    // O_RDONLY or O_WRONLY
    std::atomic<bool> direct_{false};
    bool refused_at_open_ = false;
    bool regular_ = false;
    size_t device_place_ = 0;
    std::atomic<bool> nonblocking_{false};
    uint64_t size_ = 0;
    Alignment alignment_;
    DescriptorBudget::Token token_;
};

}  // namespace deepnvme::io
