#include "sys/syscalls.h"

#include <linux/fs.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace deepnvme::sys {
namespace {

std::atomic<FaultHook> fault_hook{nullptr};

template <typename Result>
Result or_errno(Result result) {
    return result < 0 ? static_cast<Result>(-errno) : result;
}

// Restarts on EINTR, with bounds: for calls that have no effect when they are interrupted.
template <typename Call>
auto restarted(Call call) {
    auto result = call();
    for (int tries = 0; result < 0 && errno == EINTR && tries < 100; ++tries) {
        result = call();
    }
    return or_errno(result);
}

}  // namespace

void set_fault_hook(FaultHook hook) { fault_hook.store(hook, std::memory_order_release); }

int injected_fault(const char* call) {
    FaultHook hook = fault_hook.load(std::memory_order_relaxed);
    return hook == nullptr ? 0 : hook(call);
}

#define DEEPNVME_INJECT(call)                  \
    if (int injected = injected_fault(call)) { \
        return static_cast<int>(-injected);    \
    }

void* map_anonymous(size_t nbytes, int* error) {
    *error = injected_fault("mmap");
    if (*error != 0) {
        return MAP_FAILED;
    }
    void* address = ::mmap(nullptr, nbytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *error = address == MAP_FAILED ? errno : 0;
    return address;
}

int unmap(void* address, size_t nbytes) { return or_errno(::munmap(address, nbytes)); }

int lock_on_fault(void* address, size_t nbytes) {
    DEEPNVME_INJECT("mlock")
    return or_errno(static_cast<int>(::syscall(SYS_mlock2, address, nbytes, MLOCK_ONFAULT)));
}

int lock(void* address, size_t nbytes) {
    DEEPNVME_INJECT("mlock")
    return or_errno(static_cast<int>(::syscall(SYS_mlock, address, nbytes)));
}

int unlock(void* address, size_t nbytes) {
    DEEPNVME_INJECT("munlock")
    // Not libc's: under a sanitizer mlock and munlock do nothing, and mlock2 is not known to it.
    return or_errno(static_cast<int>(::syscall(SYS_munlock, address, nbytes)));
}

int advise(void* address, size_t nbytes, int advice) {
    DEEPNVME_INJECT("madvise")
    return or_errno(::madvise(address, nbytes, advice));
}

int open(const char* path, int flags, mode_t mode) {
    DEEPNVME_INJECT("open")
    return restarted([&] { return ::open(path, flags | O_CLOEXEC, mode); });
}

// Never restarted: on Linux the descriptor is gone even when close reports EINTR (close(2)).
int close(int fd) { return or_errno(::close(fd)); }

int set_status_flags(int fd, int flags) {
    DEEPNVME_INJECT("fcntl")
    return or_errno(::fcntl(fd, F_SETFL, flags));
}

int get_status_flags(int fd) {
    DEEPNVME_INJECT("fcntl")
    return or_errno(::fcntl(fd, F_GETFL));
}

int duplicate(int fd) {
    DEEPNVME_INJECT("dup")
    return or_errno(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

int statx(int fd, unsigned mask, struct ::statx* out) {
    DEEPNVME_INJECT("statx")
    return restarted([&] { return ::statx(fd, "", AT_EMPTY_PATH, mask, out); });
}

int64_t filesystem_magic(int fd) {
    DEEPNVME_INJECT("fstatfs")
    struct statfs info{};
    int result = restarted([&] { return ::fstatfs(fd, &info); });
    return result < 0 ? result : static_cast<int64_t>(static_cast<uint32_t>(info.f_type));
}

int64_t block_device_size(int fd) {
    DEEPNVME_INJECT("ioctl")
    uint64_t nbytes = 0;
    int result = or_errno(::ioctl(fd, BLKGETSIZE64, &nbytes));
    return result < 0 ? result : static_cast<int64_t>(nbytes);
}

int allocate(int fd, off_t offset, off_t nbytes) {
    DEEPNVME_INJECT("fallocate")
    return restarted([&] { return ::fallocate(fd, 0, offset, nbytes); });
}

int sync(int fd) {
    DEEPNVME_INJECT("fsync")
    return restarted([&] { return ::fsync(fd); });
}

int lock_file(int fd) {
    DEEPNVME_INJECT("flock")
    return restarted([&] { return ::flock(fd, LOCK_EX | LOCK_NB); });
}

int truncate(int fd, off_t nbytes) {
    DEEPNVME_INJECT("ftruncate")
    return restarted([&] { return ::ftruncate(fd, nbytes); });
}

int unlink(const char* path) {
    DEEPNVME_INJECT("unlink")
    return or_errno(::unlink(path));
}

ssize_t pread(int fd, void* data, size_t nbytes, off_t offset) {
    DEEPNVME_INJECT("pread")
    return or_errno(::pread(fd, data, nbytes, offset));
}

ssize_t pwrite(int fd, const void* data, size_t nbytes, off_t offset) {
    DEEPNVME_INJECT("pwrite")
    return or_errno(::pwrite(fd, data, nbytes, offset));
}

int event_descriptor(bool nonblocking) {
    DEEPNVME_INJECT("eventfd")
    return or_errno(::eventfd(0, EFD_CLOEXEC | (nonblocking ? EFD_NONBLOCK : 0)));
}

int event_signal(int fd) {
    uint64_t one = 1;
    return static_cast<int>(restarted([&] { return ::write(fd, &one, sizeof one); }));
}

int event_drain(int fd) {
    uint64_t count = 0;
    return static_cast<int>(restarted([&] { return ::read(fd, &count, sizeof count); }));
}

#undef DEEPNVME_INJECT

size_t page_size() {
    static const size_t size = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    return size;
}

}  // namespace deepnvme::sys
