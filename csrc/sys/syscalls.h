// Every system call of the library, wrapped once: the value, or -errno. Nothing here throws, logs
// or retries, except that calls documented as restartable are restarted on EINTR where that cannot
// lose an effect.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

struct statx;

namespace deepnvme::sys {

// Called with the name of the system call before it is made; a non-zero result is the errno to fail
// with, and the call is not made. Tests install one; null (the default) costs one relaxed load per
// call.
using FaultHook = int (*)(const char* call);
void set_fault_hook(FaultHook hook);
int injected_fault(const char* call);  // the errno that the hook asks for, or 0

// Memory. map_anonymous returns MAP_FAILED with the errno in *error.
void* map_anonymous(size_t nbytes, int* error);
int unmap(void* address, size_t nbytes);
// mlock2(MLOCK_ONFAULT): charged now, locked as pages arrive.
int lock_on_fault(void* address, size_t nbytes);
int lock(void* address, size_t nbytes);  // mlock: for kernels without mlock2
int unlock(void* address, size_t nbytes);
int advise(void* address, size_t nbytes, int advice);

// Files.
int open(const char* path, int flags, mode_t mode = 0);
int close(int fd);
int set_status_flags(int fd, int flags);
int get_status_flags(int fd);
int duplicate(int fd);  // close-on-exec
int statx(int fd, unsigned mask, struct ::statx* out);
int64_t filesystem_magic(int fd);
int64_t block_device_size(int fd);
int allocate(int fd, off_t offset, off_t nbytes);  // fallocate, mode 0
int sync(int fd);
int lock_file(int fd);  // flock, exclusive: -EWOULDBLOCK where another holds it
int truncate(int fd, off_t nbytes);
int unlink(const char* path);
ssize_t pread(int fd, void* data, size_t nbytes, off_t offset);
ssize_t pwrite(int fd, const void* data, size_t nbytes, off_t offset);

// Events.
int event_descriptor(bool nonblocking);
int event_signal(int fd);
int event_drain(int fd);

size_t page_size();

}  // namespace deepnvme::sys
