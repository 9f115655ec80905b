// Guards: close() returns when nothing is under way any more, also on the threads of callers; what
// is run or put in line after it ends without having moved a byte.
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "check.h"
#include "handle_rig.h"
#include "scratch_file.h"
#include "sys/syscalls.h"

using namespace deepnvme;
using namespace deepnvme::test;

namespace {

// A small synchronous request is under way on the calling thread when another closes the handle.
struct {
    std::mutex mutex;
    std::condition_variable changed;
    const io::IoHandle* handle = nullptr;
    bool entered = false;
    bool closed = false;  // close() has returned
} closing;

int hold_reads(const char* call) {
    if (std::string_view(call) != "pread") {
        return 0;
    }
    std::unique_lock lock(closing.mutex);
    closing.entered = true;
    closing.changed.notify_all();
    // Once the handle refuses others, close() has all the time it may need to return too early.
    closing.changed.wait(lock, [] { return closing.handle->closed(); });
    closing.changed.wait_for(lock, std::chrono::milliseconds(50), [] { return closing.closed; });
    CHECK(!closing.closed);
    return 0;
}

void closing_waits_for_requests_of_the_calling_thread() {
    const Bytes data = noise(5000, 4);
    const ScratchFile file(data);
    const auto handle = make_handle("posix", 1);
    closing.handle = handle.get();
    Bytes back(data.size());
    sys::set_fault_hook(hold_reads);
    {
        const std::jthread reader([&] {
            const auto outcome =
                test::move(*handle, file.path(), back.data(), back.size(), 0, false, true);
            CHECK(outcome.completed == 1);
        });
        std::unique_lock lock(closing.mutex);
        closing.changed.wait(lock, [] { return closing.entered; });
        const std::jthread closer([&] {
            handle->close();
            const std::lock_guard held(closing.mutex);
            closing.closed = true;
            closing.changed.notify_all();
        });
        while (!handle->closed()) {
            std::this_thread::yield();
        }
        closing.changed.notify_all();
        lock.unlock();
    }
    sys::set_fault_hook(nullptr);
    CHECK(back == data && handle->stats().in_flight == 0);
}

void what_comes_too_late_is_cancelled(size_t nbytes, bool at_once) {
    const Bytes data = noise(nbytes, 5);
    const ScratchFile file(data);
    const auto handle = make_handle("posix", 1);
    Bytes back(nbytes);
    const auto group = std::make_shared<io::OperationGroup>();
    auto wanted = request(back.data(), nbytes, 0, false);
    const auto keepalive = std::make_shared<int>();
    wanted.keepalive = keepalive;
    const auto operation = handle->prepare(std::move(wanted), {file.path(), -1}, group, {});
    handle->close();
    if (at_once) {
        handle->run(operation, *group, {});
    } else {
        handle->enqueue({&operation, 1});
    }
    CHECK(group->done() && group->outcome().completed == 0);
    const io::Failure failure = group->outcome().failures.at(0);
    CHECK(failure.error == ECANCELED && failure.nbytes_done == 0 && failure.path == file.path());
    CHECK(back == Bytes(nbytes) && keepalive.use_count() == 1);
    CHECK(handle->stats().in_flight == 0 && handle->stats().failed == 1);
}

}  // namespace

int main() {
    for (size_t nbytes : {5000, 1'000'000}) {  // on the calling thread, and not
        what_comes_too_late_is_cancelled(nbytes, true);
        what_comes_too_late_is_cancelled(nbytes, false);
    }
    closing_waits_for_requests_of_the_calling_thread();
    return 0;
}
