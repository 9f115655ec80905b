// Guards: a file is direct as long as its descriptor is; one that asks direct I/O for units larger
// than a staging block holds goes through the page cache, instead of waiting for a block that never
// comes, and one that asks for less moves every byte.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "check.h"
#include "pump_rig.h"

using namespace deepnvme;
using namespace deepnvme::test;

namespace {

constexpr uint32_t MiB = uint32_t{1} << 20;

// What every file asks for, in bytes; 0 for what is true.
struct Asked {
    uint32_t memory = 0;
    uint32_t offset = 0;
    uint32_t block = 4096;
} asked;

}  // namespace

extern "C" int statx(int fd, const char* path, int flags, unsigned mask,
                     struct statx* out) noexcept {
    const auto result = static_cast<int>(::syscall(SYS_statx, fd, path, flags, mask, out));
    if (result == 0 && asked.offset != 0) {
        out->stx_mask |= 0x2000;  // STATX_DIOALIGN
        out->stx_blksize = asked.block;
        auto* fields = reinterpret_cast<std::byte*>(out) + 0x98;
        std::memcpy(fields, &asked.memory, sizeof asked.memory);
        std::memcpy(fields + sizeof asked.memory, &asked.offset, sizeof asked.offset);
    }
    return result;
}

namespace {

void moved_whole(const Asked& wanted, bool direct) {
    static const Bytes data = noise(MiB + 5, 4);
    static const ScratchFile file(data);
    const bool takes_direct = file.takes_direct();
    asked = wanted;
    for (size_t shift : {size_t{0}, size_t{1}}) {
        const Memory memory(data.size(), shift);
        Rig rig;
        const Started started = rig.start(reading(memory, data.size()), file.path());
        CHECK(started.file->direct() == (direct && takes_direct));
        const uint32_t granule = started.file->alignment().granule;
        CHECK(granule >= std::max(wanted.memory, wanted.offset));
        CHECK((granule >= wanted.block) ==
              (wanted.block <= 64 << 10));  // else it only prefers that
        rig.run();
        CHECK(started.completed() && memory.bytes() == data);
    }
    asked = {};
}

// Engines want no O_NONBLOCK, which files are opened with. Nothing else of the descriptor changes.
void blocking_and_still_direct(uint64_t nbytes) {
    const ScratchFile file(noise(nbytes, 1));
    const auto opened = io::File::open({file.path(), -1}, false, nbytes, 0, {});
    const bool direct = nbytes >= kPage && file.takes_direct();
    const auto flags = [&] { return ::fcntl(opened->direct_descriptor(), F_GETFL); };
    CHECK(opened->direct() == direct && (flags() & O_NONBLOCK) != 0);
    for (int times = 0; times < 2; ++times) {
        CHECK(opened->make_blocking() == 0);
        CHECK((flags() & O_NONBLOCK) == 0 && opened_direct(opened->direct_descriptor()) == direct);
    }
    CHECK(opened->refuse_direct() == direct && !opened->refuse_direct());
    CHECK(!opened->direct() && !opened_direct(opened->direct_descriptor()));
}

const char* refused_call = "";
int refused_error = 0;
int refuse(const char* call) { return std::string_view(call) == refused_call ? refused_error : 0; }

// Room that cannot be had is told; a file system that does not reserve any is no error.
void room_is_reserved_or_refused() {
    const ScratchFile file;
    const auto opened = io::File::open({file.path(), -1}, true, kPage, 0, {});
    CHECK(opened->reserve(0, kPage) == 0);
    refused_call = "fallocate";
    sys::set_fault_hook(refuse);
    for (int error : {ENOSPC, EDQUOT, EFBIG, EOPNOTSUPP, ENOSYS, EINVAL}) {
        refused_error = error;
        const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
        CHECK(opened->reserve(0, kPage) == (full ? error : 0));
    }
    sys::set_fault_hook(nullptr);
}

// It is opened with O_DIRECT and says only then that it takes none: that has to come off again.
void direct_io_that_stays_on() {
    const ScratchFile file(noise(2 * kPage, 1));
    asked = {512, 2 * MiB};
    refused_call = "fcntl";
    refused_error = EPERM;
    sys::set_fault_hook(refuse);
    if (file.takes_direct()) {
        CHECK_THROWS(io::IoError, error,
                     io::File::open({file.path(), -1}, false, 2 * kPage, 0, {})) {
            CHECK(error.failure.error == EPERM && error.failure.path == file.path());
        }
    }
    sys::set_fault_hook(nullptr);
    asked = {};
}

void size_as_it_is_now() {
    ScratchFile file(noise(kPage, 3));
    const auto opened = io::File::open({file.path(), -1}, false, kPage, 0, {});
    file.truncate(3 * kPage);
    CHECK(opened->size() == kPage && opened->current_size() == 3 * kPage);
}

}  // namespace

int main() {
    blocking_and_still_direct(100);
    blocking_and_still_direct(2 * kPage);
    room_is_reserved_or_refused();
    direct_io_that_stays_on();
    size_as_it_is_now();
    moved_whole({512, 512}, true);
    moved_whole({512, 512, 16 << 10}, true);
    moved_whole({512, 512, MiB}, true);
    moved_whole({512, MiB}, true);
    moved_whole({MiB, 4096}, true);
    moved_whole({512, 2 * MiB}, false);
    moved_whole({2 * MiB, 4096}, false);
    return 0;
}
