#include "pin/page_alloc.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include "sys/syscalls.h"
#include "sys/thread.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; older headers lack the name
#endif

namespace deepnvme::pin {
namespace {

constexpr size_t huge_page = size_t{2} << 20;
constexpr size_t piece_bytes = 8 * huge_page;  // what a populating thread takes at a time
constexpr unsigned populate_threads = 4;       // more are bound by the speed of memory
constexpr unsigned cap_ipc_lock = 14;          // linux/capability.h: RLIMIT_MEMLOCK does not apply

// /proc/self/status, as far as it can be read. Not by a std::ifstream, whose descriptor a process
// that another thread starts would inherit.
std::string process_status() {
    std::string text;
    const int descriptor = sys::open("/proc/self/status", O_RDONLY);
    if (descriptor < 0) {
        return text;
    }
    std::array<char, 4096> part;
    ssize_t count = 0;
    do {
        count = sys::pread(descriptor, part.data(), part.size(), static_cast<off_t>(text.size()));
        text.append(part.data(), static_cast<size_t>(std::max<ssize_t>(count, 0)));
    } while (count > 0);
    sys::close(descriptor);
    return text;
}

PinError pin_error(int error, size_t nbytes) {
    const LockedMemory memory = locked_memory();
    struct rlimit configured{};
    ::getrlimit(RLIMIT_MEMLOCK, &configured);
    const std::string limit = configured.rlim_cur == RLIM_INFINITY
                                  ? "unlimited"
                                  : std::to_string(configured.rlim_cur) + " bytes";
    return PinError(
        "could not page-lock " + std::to_string(nbytes) +
            " bytes: " + std::generic_category().message(error) + "; this process has " +
            std::to_string(memory.locked) + " bytes locked and RLIMIT_MEMLOCK is " + limit +
            (memory.limit == SIZE_MAX
                 ? ", which does not bind it: memory is short; free pinned tensors, or "
                   "empty_cache()"
                 : "; raise it (ulimit -l, LimitMEMLOCK=, docker --ulimit memlock=-1) or free "
                   "pinned tensors / empty_cache()"),
        error, nbytes, memory.locked, memory.limit);
}

// Anonymous memory of `size` bytes, whose base is aligned to a huge page when one fits. 0 or
// -errno.
int map_aligned(size_t size, std::byte** base) {
    const size_t slack = size >= huge_page ? huge_page - sys::page_size() : 0;
    int error = 0;
    void* address = sys::map_anonymous(size + slack, &error);
    if (address == MAP_FAILED) {
        return -error;
    }
    auto* start = static_cast<std::byte*>(address);
    *base = start;
    if (slack == 0) {
        return 0;
    }
    const size_t head = (huge_page - reinterpret_cast<uintptr_t>(start) % huge_page) % huge_page;
    *base = start + head;
    if (const int result = head > 0 ? sys::unmap(start, head) : 0; result < 0) {
        sys::unmap(start, size + slack);
        return result;
    }
    const int result = slack > head ? sys::unmap(*base + size, slack - head) : 0;
    if (result < 0) {
        sys::unmap(*base, size + slack - head);  // not the head: it may be another thread's by now
    }
    return result;
}

int lock(std::byte* data, size_t nbytes) {
    int result = sys::lock_on_fault(data, nbytes);
    // No mlock2, an emulation of it (gVisor) without the flag, or a filter that does not know it.
    if (result == -ENOSYS || result == -EINVAL || result == -EPERM) {
        result = sys::lock(data, nbytes);
    }
    return result;
}

int populate_piece(std::byte* data, size_t nbytes) {
    int result = 0;
    do {
        result = sys::advise(data, nbytes, MADV_POPULATE_WRITE);
    } while (result == -EINTR);
    if (result != -EINVAL) {
        return result;
    }
    // Before Linux 5.14: fault by writing what is there, zero.
    for (size_t at = 0; at < nbytes; at += sys::page_size()) {
        *static_cast<volatile std::byte*>(data + at) = std::byte{0};
    }
    return 0;
}

// Faults every page in, by several threads when there is enough to do. 0 or -errno, once all
// threads are done.
int populate(std::byte* data, size_t nbytes) {
    std::atomic<size_t> next{0};
    std::atomic<int> failure{0};
    auto work = [&] {
        for (size_t at = next.fetch_add(piece_bytes); at < nbytes && failure == 0;
             at = next.fetch_add(piece_bytes)) {
            if (int result = populate_piece(data + at, std::min(piece_bytes, nbytes - at));
                result < 0) {
                failure = result;
            }
        }
    };
    const size_t pieces = (nbytes + piece_bytes - 1) / piece_bytes;
    const size_t wanted =
        std::min<size_t>({std::thread::hardware_concurrency(), populate_threads, pieces});
    std::array<std::thread, populate_threads> threads;
    try {
        for (size_t started = 1; started < wanted; ++started) {
            threads[started] = sys::start_thread("dn-populate", work);
        }
    } catch (const std::system_error&) {
        // No more threads to be had (RLIMIT_NPROC, cgroup): this one takes the pieces they would.
    } catch (const std::bad_alloc&) {
        // Nor memory to start one. Thrown further it would end the process: some have started.
    }
    work();
    for (std::thread& thread : threads) {
        if (thread.joinable()) {
            thread.join();
        }
    }
    return failure;
}

}  // namespace

PinError::PinError(const std::string& message, int error_number, size_t asked, size_t charged,
                   size_t allowed)
    : std::runtime_error(message),
      error(error_number),
      nbytes(asked),
      locked(charged),
      limit(allowed) {}

LockedMemory locked_memory() {
    LockedMemory memory{0, SIZE_MAX};
    uint64_t capabilities = 0;
    std::istringstream status(process_status());
    for (std::string line; std::getline(status, line);) {
        if (line.starts_with("VmLck:")) {
            memory.locked = std::strtoull(line.c_str() + 6, nullptr, 10) * 1024;
        } else if (line.starts_with("CapEff:")) {
            capabilities = std::strtoull(line.c_str() + 7, nullptr, 16);
        }
    }
    struct rlimit limit{};
    const bool enforced = (capabilities >> cap_ipc_lock & 1) == 0;
    if (enforced && ::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        memory.limit = limit.rlim_cur;
    }
    return memory;
}

size_t round_up_to_page(size_t nbytes) {
    const size_t page = sys::page_size();
    return (nbytes + page - 1) / page * page;
}

PageMapping::PageMapping(size_t nbytes, Residency residency) {
    const bool wants_lock = residency == Residency::locked;
    std::byte* base = nullptr;
    size_t size = 0;
    int result = -ENOMEM;
    if (nbytes <= SIZE_MAX - 2 * huge_page) {  // so that rounding and slack cannot wrap
        size = round_up_to_page(nbytes);
        result = map_aligned(size, &base);
    }
    if (result == 0) {
        if (size >= huge_page) {
            sys::advise(base, size, MADV_HUGEPAGE);
        }
        result = wants_lock ? lock(base, size) : 0;
        if (result == 0) {
            result = populate(base, size);
        }
        if (result < 0) {
            sys::unmap(base, size);
        }
    }
    if (result < 0) {
        if (wants_lock) {
            throw pin_error(-result, nbytes);
        }
        throw std::bad_alloc();
    }
    data_ = base;
    size_ = size;
    locked_ = wants_lock;
}

PageMapping::~PageMapping() {
    if (data_ != nullptr) {
        sys::unmap(data_, size_);
    }
}

PageMapping::PageMapping(PageMapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      locked_(std::exchange(other.locked_, false)) {}

PageMapping& PageMapping::operator=(PageMapping&& other) noexcept {
    PageMapping moved(std::move(other));
    std::swap(data_, moved.data_);
    std::swap(size_, moved.size_);
    std::swap(locked_, moved.locked_);
    return *this;
}

void PageMapping::unlock() {
    if (locked_ && sys::unlock(data_, size_) == 0) {
        locked_ = false;
    }
}

}  // namespace deepnvme::pin
