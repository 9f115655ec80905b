// One anonymous mapping: huge-page advised, pre-faulted in parallel, locked on request; all of it
// or nothing.
//
// Protocol of a locked mapping:
//   1. mmap address space with room to align the base to a huge page; trim what is over.
//   2. madvise(MADV_HUGEPAGE) (advice: failure is not an error).
//   3. mlock2(MLOCK_ONFAULT): charges RLIMIT_MEMLOCK at once, so a limit is met before gigabytes
//      are faulted.
//   4. MADV_POPULATE_WRITE in parallel pieces (touching pages where the kernel lacks it): the pages
//      arrive locked.
//   5. Any failure unmaps everything, which also takes back the charge.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>

namespace deepnvme::pin {

// Page-locking failed: says the bytes asked, the bytes locked by this process, the limit, and what
// to do.
class PinError : public std::runtime_error {
public:
    PinError(const std::string& message, int error, size_t nbytes, size_t locked, size_t limit);
    int error;      // errno
    size_t nbytes;  // bytes asked
    size_t locked;  // bytes that this process had locked (VmLck)
    size_t limit;   // RLIMIT_MEMLOCK, bytes; SIZE_MAX when unlimited or not enforced
};

// The page-locked memory of this process as the kernel counts it, in bytes. Reads /proc: not for a
// fast path.
struct LockedMemory {
    size_t locked;  // VmLck
    size_t limit;   // RLIMIT_MEMLOCK; SIZE_MAX when unlimited, or not enforced (CAP_IPC_LOCK)
};
LockedMemory locked_memory();

size_t round_up_to_page(size_t nbytes);

class PageMapping {
public:
    enum class Residency { locked, unlocked };

    PageMapping() = default;
    // Maps and faults in nbytes (rounded up to a page, nbytes > 0). Throws PinError when
    // `residency` is locked, std::bad_alloc otherwise, when the kernel refuses any step.
    PageMapping(size_t nbytes, Residency residency);
    ~PageMapping();
    PageMapping(PageMapping&& other) noexcept;
    PageMapping& operator=(PageMapping&& other) noexcept;

    std::byte* data() const { return data_; }
    size_t size() const { return size_; }  // bytes, a multiple of the page size
    bool locked() const { return locked_; }
    // Idempotent; the memory stays mapped and readable. Still locked() when the kernel refuses (it
    // may need a mapping more than vm.max_map_count allows): then unmapping is what unlocks.
    void unlock();

private:
    std::byte* data_ = nullptr;
    size_t size_ = 0;
    bool locked_ = false;
};

}  // namespace deepnvme::pin
