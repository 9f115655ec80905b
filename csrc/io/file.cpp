#include "io/file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <climits>
#include <cstring>

#include "io/device_table.h"
#include "sys/syscalls.h"

namespace deepnvme::io {
namespace {

// Where a file system does not say (STATX_DIOALIGN, statx(2)).
constexpr uint32_t conservative_alignment = 4096;
// Kernels answer this since 6.1; headers that are older than the kernel do not have it.
constexpr unsigned statx_dioalign = 0x2000;  // STATX_DIOALIGN
struct DirectAlignment {
    uint32_t memory;  // stx_dio_mem_align
    uint32_t offset;  // stx_dio_offset_align
};
constexpr size_t direct_alignment_at = 0x98;  // bytes into struct statx
static_assert(sizeof(struct statx) >= direct_alignment_at + sizeof(DirectAlignment));

constexpr uint32_t largest_block = 65536;  // beyond it st_blksize is a preference, not a block size
// A unit has to fit into a staged chunk. Beyond it direct I/O is not used.
constexpr uint32_t largest_granule = PlanLimits{}.staged_block;

std::string proc_path(int descriptor) { return "/proc/self/fd/" + std::to_string(descriptor); }

bool refuses_direct(int error) { return error == -EINVAL || error == -EOPNOTSUPP; }

bool is_memory(int descriptor) {
    const int64_t magic = sys::filesystem_magic(descriptor);
    return magic == TMPFS_MAGIC || magic == RAMFS_MAGIC;
}

}  // namespace

std::shared_ptr<File> File::open(const FileName& name, bool write, uint64_t nbytes, off_t offset,
                                 DescriptorBudget::Token token) {
    std::shared_ptr<File> file(new File(std::move(token)));
    file->name_ = name;
    file->access_ = write ? O_WRONLY : O_RDONLY;
    const bool want_direct =
        has_whole_unit(nbytes, offset, static_cast<uint32_t>(sys::page_size()));
    if (name.descriptor >= 0) {
        file->open_descriptor(name.descriptor, want_direct);
    } else {
        file->open_path(want_direct);
    }
    return file;
}

File::~File() {
    if (primary_ >= 0) {
        sys::close(primary_);
    }
    if (secondary_ >= 0) {
        sys::close(secondary_);
    }
}

void File::open_path(bool want_direct) {
    const int flags = access_ | O_NONBLOCK | (access_ == O_WRONLY ? O_CREAT : 0);
    primary_ = sys::open(name_.path.c_str(), flags | (want_direct ? O_DIRECT : 0), 0600);
    if (want_direct && refuses_direct(primary_)) {
        primary_ = sys::open(name_.path.c_str(), flags, 0600);
        refused_at_open_ = primary_ >= 0;
        want_direct = false;
    }
    if (primary_ < 0) {
        fail(-primary_);
    }
    direct_ = want_direct;
    nonblocking_ = true;
    inspect(primary_);
    if (want_direct && !direct()) {
        if (const int error = set_flags(0); error != 0) {
            fail(error);
        }
    }
}

void File::open_descriptor(int descriptor, bool want_direct) {
    const int flags = sys::get_status_flags(descriptor);
    if (flags < 0) {
        fail(-flags, "the descriptor is not open");
    }
    const int access = flags & O_ACCMODE;
    if (access != O_RDWR && access != access_) {
        fail(EBADF, access_ == O_WRONLY ? "the descriptor is not open for writing"
                                        : "the descriptor is not open for reading");
    }
    inspect(descriptor);  // before it is opened again, which could disturb a FIFO
    direct_ = want_direct && direct();
    primary_ = sys::open(proc_path(descriptor).c_str(), access_ | (direct() ? O_DIRECT : 0));
    if (direct() && refuses_direct(primary_)) {
        refused_at_open_ = true;
        direct_ = false;
        primary_ = sys::open(proc_path(descriptor).c_str(), access_);
    }
    if (primary_ < 0) {
        const int reopening = -primary_;
        if ((flags & (O_APPEND | O_DIRECT)) != 0) {
            fail(reopening, "the descriptor has O_APPEND or O_DIRECT and could not be opened anew");
        }
        direct_ = false;
        primary_ = sys::duplicate(descriptor);
        if (primary_ < 0) {
            fail(-primary_);
        }
    }
}

// Sets size, alignment and direct(); throws for what is neither a regular file nor a block device.
void File::inspect(int descriptor) {
    struct statx info{};
    int result = sys::statx(descriptor, STATX_TYPE | STATX_SIZE | statx_dioalign, &info);
    if (result < 0) {
        fail(-result);
    }
    regular_ = S_ISREG(info.stx_mode);
    const bool block_device = S_ISBLK(info.stx_mode);
    if (!regular_ && !block_device) {
        fail(S_ISDIR(info.stx_mode) ? EISDIR : ESPIPE, "not a regular file or a block device");
    }
    size_ = info.stx_size;
    device_place_ = DeviceTable::instance().place_of(
        block_device ? DeviceNumber{info.stx_rdev_major, info.stx_rdev_minor}
                     : DeviceNumber{info.stx_dev_major, info.stx_dev_minor});
    if (block_device) {
        const int64_t nbytes = sys::block_device_size(descriptor);
        if (nbytes < 0) {
            fail(static_cast<int>(-nbytes));
        }
        size_ = static_cast<uint64_t>(nbytes);
    }
    alignment_.memory = conservative_alignment;
    uint32_t offset_alignment = conservative_alignment;
    const bool says = (info.stx_mask & statx_dioalign) != 0;
    DirectAlignment said{};
    std::memcpy(&said, reinterpret_cast<const char*>(&info) + direct_alignment_at, sizeof(said));
    if (says && said.offset != 0) {
        alignment_.memory = std::bit_ceil(said.memory);
        offset_alignment = std::bit_ceil(said.offset);
    }
    const uint32_t block = std::bit_ceil(info.stx_blksize);
    alignment_.granule = std::max({static_cast<uint32_t>(sys::page_size()), offset_alignment,
                                   alignment_.memory, block <= largest_block ? block : 0});
    // "Says, and says 0" means that this file takes no direct I/O; silence means that the file
    // system is older than the question. On a memory file system direct I/O would be a copy with
    // conditions.
    const bool possible =
        (says ? said.offset != 0 : !is_memory(descriptor)) && alignment_.granule <= largest_granule;
    direct_ = possible && (primary_ < 0 || direct());
}

void File::need_buffered() {
    std::lock_guard lock(mutex_);
    if (!direct() || secondary_ >= 0) {
        return;
    }
    const int descriptor = sys::open(proc_path(primary_).c_str(), access_);
    if (descriptor < 0) {
        fail(-descriptor, "the file could not be opened a second time, without O_DIRECT");
    }
    secondary_.store(descriptor, std::memory_order_release);
}

int File::make_blocking() {
    if (!nonblocking_.load(std::memory_order_acquire)) {
        return 0;
    }
    std::lock_guard lock(mutex_);
    return set_flags(direct() ? O_DIRECT : 0);
}

int File::set_flags(int flags) {
    const int result = sys::set_status_flags(primary_, flags);
    nonblocking_.store(result < 0, std::memory_order_release);
    return -result;
}

int File::reserve(off_t offset, uint64_t nbytes) {
    const int result = sys::allocate(primary_, offset, static_cast<off_t>(nbytes));
    const bool full = result == -ENOSPC || result == -EDQUOT || result == -EFBIG;
    return full ? -result : 0;
}

// The descriptor is changed before direct() says so: nobody may take it for a buffered one earlier.
bool File::refuse_direct() {
    std::lock_guard lock(mutex_);
    if (!direct()) {
        return false;
    }
    set_flags(0);
    direct_ = false;
    return true;
}

int64_t File::current_size() const {
    if (!regular_) {
        return static_cast<int64_t>(size_);
    }
    struct statx info{};
    const int result = sys::statx(primary_, STATX_SIZE, &info);
    return result < 0 ? result : static_cast<int64_t>(info.stx_size);
}

std::string File::path() const {
    return primary_ < 0 ? name_.text() : FileName{name_.path, primary_}.text();
}

std::string FileName::text() const {
    if (!path.empty()) {
        return path;
    }
    char target[PATH_MAX];
    const ssize_t length = ::readlink(proc_path(descriptor).c_str(), target, sizeof target);
    return length > 0 ? std::string(target, static_cast<size_t>(length))
                      : "descriptor " + std::to_string(descriptor);
}

Failure File::failure(bool write, off_t offset, uint64_t nbytes, int error,
                      std::string detail) const {
    return {
        error, std::move(detail), path(), offset, nbytes, 0, write ? Action::write : Action::read};
}

void File::fail(int error, const char* detail) const {
    throw IoError(failure(access_ == O_WRONLY, 0, 0, error, detail));
}

}  // namespace deepnvme::io
