// Guards: the caller's descriptor is opened anew, or duplicated where that is refused, and stays as
// it is; whatever call fails while a file is opened is told, with its errno, and leaves nothing
// open; a device is as large as it says; a range that is in no file is refused before it is opened.
#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "check.h"
#include "handle_rig.h"
#include "io/device_table.h"
#include "pump_rig.h"

using namespace deepnvme;
using namespace deepnvme::test;

namespace {

// Of every file while it is not 0: that it is a block device of so many bytes, or an -errno.
int64_t device_bytes = 0;

}  // namespace

extern "C" int statx(int fd, const char* path, int flags, unsigned mask,
                     struct statx* out) noexcept {
    const auto result = static_cast<int>(::syscall(SYS_statx, fd, path, flags, mask, out));
    if (result == 0 && device_bytes != 0) {
        out->stx_mode = static_cast<uint16_t>((out->stx_mode & ~S_IFMT) | S_IFBLK);
        out->stx_rdev_major = 240;
        out->stx_rdev_minor = 17;
    }
    return result;
}

extern "C" int ioctl(int fd, unsigned long request, ...) noexcept {
    va_list arguments;
    va_start(arguments, request);
    void* argument = va_arg(arguments, void*);
    va_end(arguments);
    if (request != BLKGETSIZE64 || device_bytes == 0) {
        return static_cast<int>(::syscall(SYS_ioctl, fd, request, argument));
    }
    if (device_bytes < 0) {
        errno = static_cast<int>(-device_bytes);
        return -1;
    }
    *static_cast<uint64_t*>(argument) = static_cast<uint64_t>(device_bytes);
    return 0;
}

namespace {

// Calls first .. first + count - 1 of one kind fail.
struct {
    std::string_view call;
    int error = 0;
    int first = 0, count = 0;
    int seen = 0;
} fault;

class Failing {
public:
    Failing(std::string_view call, int error, int first = 0, int count = 1000) {
        fault = {call, error, first, count};
        sys::set_fault_hook([](const char* called) {
            if (fault.call != called) {
                return 0;
            }
            const int number = fault.seen++ - fault.first;
            return number >= 0 && number < fault.count ? fault.error : 0;
        });
    }
    ~Failing() { sys::set_fault_hook(nullptr); }
};

int open_descriptors() {
    int count = 0;
    DIR* directory = ::opendir("/proc/self/fd");
    CHECK(directory != nullptr);
    while (::readdir(directory) != nullptr) {
        ++count;
    }
    ::closedir(directory);
    return count;
}

struct Descriptor {
    Descriptor(const std::string& path, int flags)
        : number(::open(path.c_str(), flags | O_CLOEXEC)) {
        CHECK(number >= 0);
    }
    ~Descriptor() { ::close(number); }
    const int number;
};

constexpr size_t kSize = 4 * kPage;

// Reads through `file`, whose descriptor is no other's.
void holds(io::File& file, int callers, const Bytes& data) {
    const int descriptor = file.buffered_descriptor();
    CHECK(descriptor >= 0 && descriptor != callers && !opened_direct(descriptor));
    CHECK((::fcntl(descriptor, F_GETFD) & FD_CLOEXEC) != 0);
    Bytes found(data.size());
    CHECK(::pread(descriptor, found.data(), found.size(), 0) == static_cast<ssize_t>(found.size()));
    CHECK(found == data);
}

void opened_anew_or_duplicated() {
    const Bytes data = noise(kSize, 1);
    const ScratchFile scratch(data);
    const bool takes_direct = scratch.takes_direct();
    const int before = open_descriptors();
    for (int refused : {0, 1, 2}) {  // with O_DIRECT, and at all
        const Descriptor own(scratch.path(), O_RDONLY);
        const int flags = ::fcntl(own.number, F_GETFL);
        // Of a file that takes none anyway the first call is without it.
        const Failing failing("open", EINVAL, 0, takes_direct ? refused : refused / 2);
        const auto file = io::File::open({"", own.number}, false, kSize, 0, {});
        CHECK(file->direct() == (takes_direct && refused == 0));
        CHECK(file->refused_at_open() == (takes_direct && refused > 0));
        if (!file->direct()) {
            holds(*file, own.number, data);
        }
        CHECK(file->size() == kSize && file->path() == scratch.path());
        CHECK(::fcntl(own.number, F_GETFL) == flags);
    }
    CHECK(open_descriptors() == before);
}

// A duplicate would share what O_APPEND and O_DIRECT do with the caller's.
void what_cannot_be_duplicated() {
    const ScratchFile scratch(noise(kSize, 2));
    const int before = open_descriptors();
    for (int flags : {O_APPEND, O_DIRECT}) {
        if (flags == O_DIRECT && !scratch.takes_direct()) {
            continue;
        }
        const Descriptor own(scratch.path(), O_RDWR | flags);
        const Failing failing("open", EACCES);
        CHECK_THROWS(io::IoError, error, io::File::open({"", own.number}, true, kSize, 0, {})) {
            CHECK(error.failure.error == EACCES && error.failure.path == scratch.path());
            CHECK(error.failure.detail.find("O_APPEND or O_DIRECT") != std::string::npos);
        }
    }
    CHECK(open_descriptors() == before);
}

void refused(const io::FileName& name, int error, std::string_view call, int first = 0) {
    const int before = open_descriptors();
    const Failing failing(call, error, first);
    CHECK_THROWS(io::IoError, told, io::File::open(name, false, kSize, 0, {})) {
        CHECK(told.failure.error == error && told.failure.action == io::Action::read);
    }
    CHECK(fault.seen > first && open_descriptors() == before);
}

void every_call_can_fail() {
    const ScratchFile scratch(noise(kSize, 3));
    const Descriptor own(scratch.path(), O_RDONLY);
    const io::FileName by_path{scratch.path(), -1}, by_descriptor{"", own.number};
    refused(by_path, EIO, "statx");
    refused(by_path, EMFILE, "open");
    refused(by_descriptor, EIO, "statx");
    refused(by_descriptor, EBADF, "fcntl");
    sys::set_fault_hook([](const char* called) {
        const std::string_view call = called;
        return call == "open" ? EACCES : call == "dup" ? EMFILE : 0;
    });
    const int before = open_descriptors();
    CHECK_THROWS(io::IoError, told, io::File::open(by_descriptor, false, kSize, 0, {})) {
        CHECK(told.failure.error == EMFILE && told.failure.path == scratch.path());
    }
    sys::set_fault_hook(nullptr);
    CHECK(open_descriptors() == before);
}

void devices() {
    const ScratchFile scratch(noise(kSize, 4));
    const Descriptor own(scratch.path(), O_RDONLY);
    const io::FileName names[] = {{scratch.path(), -1}, {"", own.number}};
    for (const io::FileName& name : names) {
        for (int error : {ENOMEDIUM, ENXIO}) {
            device_bytes = -error;
            refused(name, error, "none", -1);
        }
        device_bytes = 12'345 * 512;
        const auto file = io::File::open(name, false, kSize, 0, {});
        CHECK(!file->regular() && file->size() == 12'345 * 512);
        device_bytes = 0;
        CHECK(file->current_size() == 12'345 * 512);  // it does not change
        const io::DeviceNumber device = io::DeviceTable::instance().device(file->device_place());
        CHECK(device.major == 240 && device.minor == 17);
    }
}

// The descriptor of a file cannot be made ready for engines: its request fails, the next is done.
void descriptor_that_stays_nonblocking() {
    const Bytes data = noise(kSize, 6);
    const ScratchFile bad(data), good(data);
    const auto handle = make_handle("posix", 1, 1024);
    Bytes first(kSize), second(kSize);
    const auto group = std::make_shared<io::OperationGroup>();
    const std::shared_ptr<io::Operation> operations[] = {
        handle->prepare(request(first.data(), kSize, 0, false), {bad.path(), -1}, group, {}),
        handle->prepare(request(second.data(), kSize, 0, false), {good.path(), -1}, group, {})};
    {
        const Failing failing("fcntl", EPERM, 0, 1);
        handle->enqueue(operations);
        group->wait({});
    }
    CHECK(group->outcome().completed == 1 && second == data && first == Bytes(kSize));
    const io::Failure failure = group->outcome().failures.at(0);
    CHECK(failure.error == EPERM && failure.path == bad.path() && failure.nbytes_done == 0);
}

void no_place_in_any_file() {
    const ScratchFile scratch;
    ::unlink(scratch.path().c_str());
    const auto handle = make_handle("posix", 1);
    Bytes data(100);
    const auto group = std::make_shared<io::OperationGroup>();
    for (off_t offset : {off_t{-1}, off_t{INT64_MIN}, off_t{INT64_MAX - 99}, off_t{INT64_MAX}}) {
        io::Request wanted = request(data.data(), data.size(), 0, true);
        wanted.offset = offset;
        CHECK_THROWS(std::invalid_argument, error,
                     handle->prepare(std::move(wanted), {scratch.path(), -1}, group, {})) {
            CHECK(std::string_view(error.what()).find(std::to_string(offset)) !=
                  std::string_view::npos);
        }
    }
    CHECK(group->done() && handle->stats().requests[1] == 0);
    CHECK(::access(scratch.path().c_str(), F_OK) != 0);
}

}  // namespace

int main() {
    opened_anew_or_duplicated();
    what_cannot_be_duplicated();
    every_call_can_fail();
    devices();
    descriptor_that_stays_nonblocking();
    no_place_in_any_file();
    return 0;
}
