// Guards: validation finds any byte of the file that is not that of memory, however few bytes each
// read gives, and finds none where there is none.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "check.h"
#include "pump_rig.h"

using namespace deepnvme;
using namespace deepnvme::test;

namespace {

size_t most_bytes = SIZE_MAX;  // that one read gives
off_t changed_at = -1;         // byte of the file that is read as another,
int changed_by = 0;            // by so much

}  // namespace

extern "C" ssize_t pread(int fd, void* data, size_t nbytes, off_t offset) {
    const ssize_t count = ::syscall(SYS_pread64, fd, data, std::min(nbytes, most_bytes), offset);
    if (changed_at >= offset && changed_at < offset + count) {
        static_cast<unsigned char*>(data)[changed_at - offset] += changed_by;
    }
    return count;
}

namespace {

void validated(size_t most) {
    constexpr size_t nbytes = 3 * kPage + 5;
    constexpr off_t offset = 1000;
    const Bytes data(nbytes, std::byte{0x40});
    const Memory memory(data);
    most_bytes = most;
    for (int by : {0, 1, -1}) {
        for (off_t at : {offset, offset + off_t{kPage}, offset + off_t{nbytes} - 1}) {
            const ScratchFile file;
            Rig rig;
            io::Request request = writing(memory, nbytes, offset);
            request.validate = true;
            const Started started = rig.start(std::move(request), file.path());
            changed_at = at;
            changed_by = by;
            rig.run();
            changed_at = -1;
            if (by == 0) {
                CHECK(started.completed());
            } else {
                CHECK(started.failure().error == EIO);
                CHECK(started.failure().detail.find("differ") != std::string::npos);
            }
        }
    }
    most_bytes = SIZE_MAX;
}

}  // namespace

int main() {
    for (size_t most : {SIZE_MAX, kPage, size_t{1000}}) {
        validated(most);
    }
    return 0;
}
