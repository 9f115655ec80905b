// Guards: one mapping is all or nothing: aligned, exactly charged, resident, and gone after any
// failure.
#include <sys/mman.h>
#include <sys/resource.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "check.h"
#include "locked_bytes.h"
#include "pin/page_alloc.h"
#include "sys/syscalls.h"

using namespace deepnvme;
using pin::PageMapping;
using pin::PinError;
using test::locked_bytes;

namespace {

constexpr size_t MiB = size_t{1} << 20;

// Fails the calls numbered [from, until) of one system call.
struct Fault {
    std::string_view call;
    int error = 0;
    int from = 0;
    int until = 0;
} fault;
std::atomic<int> calls{0};

int inject(const char* call) {
    if (fault.call != call) {
        return 0;
    }
    const int number = calls++;
    return number >= fault.from && number < fault.until ? fault.error : 0;
}

class Injected {
public:
    explicit Injected(const Fault& wanted) {
        fault = wanted;
        calls = 0;
        sys::set_fault_hook(inject);
    }
    ~Injected() { sys::set_fault_hook(nullptr); }
};

bool resident(const PageMapping& mapping) {
    std::vector<unsigned char> pages(mapping.size() / sys::page_size());
    CHECK(::mincore(mapping.data(), mapping.size(), pages.data()) == 0);
    for (unsigned char page : pages) {
        if ((page & 1) == 0) {
            return false;
        }
    }
    return true;
}

void charged_by_the_page() {
    const size_t before = locked_bytes();
    for (size_t nbytes :
         {size_t{1}, size_t{4096}, size_t{4097}, 2 * MiB - 1, 2 * MiB, 3 * MiB + 1}) {
        PageMapping mapping(nbytes, PageMapping::Residency::locked);
        CHECK(mapping.size() == pin::round_up_to_page(nbytes));
        CHECK(mapping.size() - nbytes < sys::page_size());
        CHECK(locked_bytes() - before == mapping.size());
        CHECK(reinterpret_cast<uintptr_t>(mapping.data()) %
                  (nbytes >= 2 * MiB ? 2 * MiB : sys::page_size()) ==
              0);
        CHECK(mapping.locked() && resident(mapping));
        std::memset(mapping.data(), 0x5A, mapping.size());
        PageMapping moved(std::move(mapping));
        CHECK(mapping.data() == nullptr && !mapping.locked());
        moved.unlock();
        moved.unlock();
        CHECK(!moved.locked() && locked_bytes() == before);
        CHECK(moved.data()[nbytes - 1] == std::byte{0x5A});  // still mapped
    }
    CHECK(locked_bytes() == before);
}

void populated_in_parallel_or_alone() {
    for (const Fault& wanted :
         {Fault{}, Fault{"clone", EAGAIN, 0, 9}, Fault{"clone", EAGAIN, 1, 9}}) {
        const Injected injected(wanted);
        const PageMapping mapping(70 * MiB + 1, PageMapping::Residency::unlocked);
        CHECK(!mapping.locked() && resident(mapping));
    }
}

void works_on_older_kernels() {
    const size_t before = locked_bytes();
    for (const Fault& wanted :
         {Fault{"mlock", ENOSYS, 0, 1}, Fault{"mlock", EINVAL, 0, 1}, Fault{"mlock", EPERM, 0, 1},
          Fault{"madvise", EINVAL, 0, 99}, Fault{"madvise", EINTR, 1, 4}}) {
        const Injected injected(wanted);
        const PageMapping mapping(3 * MiB, PageMapping::Residency::locked);
        CHECK(calls >= wanted.until || wanted.until == 99);
        CHECK(resident(mapping) && locked_bytes() - before == mapping.size());
    }
    CHECK(locked_bytes() == before);
}

void refused_at_every_step() {
    const size_t before = locked_bytes();
    for (const Fault& wanted :
         {Fault{"mmap", ENOMEM, 0, 1}, Fault{"mlock", ENOMEM, 0, 1}, Fault{"mlock", EPERM, 0, 2},
          Fault{"mlock", EAGAIN, 0, 1}, Fault{"madvise", ENOMEM, 1, 2},
          Fault{"madvise", EFAULT, 1, 2}, Fault{"madvise", EHWPOISON, 1, 2}}) {
        const Injected injected(wanted);
        CHECK_THROWS(PinError, error, PageMapping(3 * MiB, PageMapping::Residency::locked)) {
            const std::string_view message = error.what();
            CHECK(error.error == wanted.error && error.nbytes == 3 * MiB && error.locked == before);
            CHECK(message.find("could not page-lock 3145728 bytes") == 0);
            CHECK(message.find(std::strerror(wanted.error)) != std::string_view::npos);
        }
        CHECK(locked_bytes() == before);
    }
    for (size_t nbytes : {SIZE_MAX, SIZE_MAX / 2, size_t{1} << 60}) {
        CHECK_THROWS(PinError, error, PageMapping(nbytes, PageMapping::Residency::locked)) {
            CHECK(error.nbytes == nbytes && error.error == ENOMEM);
        }
    }
}

void a_failure_leaves_nothing() {
    refused_at_every_step();  // the heap may grow the first time
    const size_t maps = test::mappings();
    refused_at_every_step();
    CHECK(test::mappings() == maps);
    // One piece of several fails, on whichever thread has it.
    const Injected injected(Fault{"madvise", ENOMEM, 3, 4});
    CHECK_THROWS(std::bad_alloc, error, PageMapping(96 * MiB, PageMapping::Residency::unlocked)) {}
}

void a_refused_unlock_is_told() {
    const size_t before = locked_bytes();
    {
        PageMapping mapping(MiB, PageMapping::Residency::locked);
        const Injected injected(Fault{"munlock", ENOMEM, 0, 1});
        mapping.unlock();
        CHECK(mapping.locked());
    }
    CHECK(locked_bytes() == before);  // unmapping unlocks
}

// Without a descriptor for /proc the limit is known all the same; what is locked is not.
void no_descriptor_to_look_with() {
    const PageMapping mapping(MiB, PageMapping::Residency::locked);
    CHECK(pin::locked_memory().locked == locked_bytes());
    rlimit limit{};
    CHECK(::getrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    const Injected injected(Fault{"open", EMFILE, 0, 1});
    const pin::LockedMemory memory = pin::locked_memory();
    CHECK(calls == 1 && memory.locked == 0);
    CHECK(memory.limit == (limit.rlim_cur == RLIM_INFINITY ? SIZE_MAX : limit.rlim_cur));
}

}  // namespace

int main() {
    charged_by_the_page();
    populated_in_parallel_or_alone();
    works_on_older_kernels();
    a_failure_leaves_nothing();
    a_refused_unlock_is_told();
    no_descriptor_to_look_with();
    return 0;
}
