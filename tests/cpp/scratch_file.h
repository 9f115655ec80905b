// A file that is gone at the end, in a directory of a drive where there is one.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "check.h"

namespace deepnvme::test {

using Bytes = std::vector<std::byte>;

inline Bytes noise(size_t nbytes, uint64_t seed) {
    std::mt19937_64 random(seed);
    Bytes bytes(nbytes);
    std::generate(bytes.begin(), bytes.end(), [&] { return std::byte(random() & 0xFF); });
    return bytes;
}

class ScratchFile {
public:
    ScratchFile() {
        const char* directory = std::getenv("TMPDIR");
        path_ = std::string(directory != nullptr ? directory : "/tmp") + "/deepnvme-XXXXXX";
        descriptor_ = ::mkostemp(path_.data(), O_CLOEXEC);
        CHECK(descriptor_ >= 0);
    }
    explicit ScratchFile(const Bytes& bytes) : ScratchFile() { fill(bytes); }
    ~ScratchFile() {
        ::close(descriptor_);
        ::unlink(path_.c_str());
    }
    ScratchFile(const ScratchFile&) = delete;
    ScratchFile& operator=(const ScratchFile&) = delete;

    const std::string& path() const { return path_; }

    void fill(const Bytes& bytes) {
        truncate(0);
        for (size_t done = 0; done < bytes.size();) {
            const ssize_t moved = ::pwrite(descriptor_, bytes.data() + done, bytes.size() - done,
                                           static_cast<off_t>(done));
            CHECK(moved > 0);
            done += static_cast<size_t>(moved);
        }
    }
    void truncate(size_t nbytes) {
        CHECK(::ftruncate(descriptor_, static_cast<off_t>(nbytes)) == 0);
    }
    Bytes contents() const {
        struct stat info{};
        CHECK(::fstat(descriptor_, &info) == 0);
        Bytes bytes(static_cast<size_t>(info.st_size));
        for (size_t done = 0; done < bytes.size();) {
            const ssize_t moved = ::pread(descriptor_, bytes.data() + done, bytes.size() - done,
                                          static_cast<off_t>(done));
            CHECK(moved > 0);
            done += static_cast<size_t>(moved);
        }
        return bytes;
    }
    // Whether the drive takes direct I/O.
    bool takes_direct() const {
        const int fd = ::open(path_.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
        if (fd >= 0) {
            ::close(fd);
        }
        return fd >= 0;
    }

private:
    std::string path_;
    int descriptor_ = -1;
};

}  // namespace deepnvme::test
