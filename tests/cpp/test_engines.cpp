// Guards: an engine has room again for all that it has answered, whatever the answer was; a wake
// ends one wait and no other; a place for a fixed buffer that was given back, or could not be
// filled, can be had again.
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <thread>

#include "check.h"
#include "io/engine.h"
#include "io/posix_engine.h"
#include "io/probe.h"
#include "pin/page_alloc.h"
#include "scratch_file.h"
#include "sys/syscalls.h"

using namespace deepnvme;
using namespace deepnvme::test;

namespace {

constexpr uint32_t kDepth = 4;
constexpr int kRounds = 20;
constexpr int kBuffers = 3000;  // more than any table of fixed buffers has places

// An address where nothing is, for good: the page may not be touched.
std::byte* nowhere() {
    void* page = ::mmap(nullptr, sys::page_size(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED);
    return static_cast<std::byte*>(page);
}

// kDepth transfers like the first, whose memory lies one behind the other.
void fill_and_empty(io::Engine& engine, const io::Transfer& first, int64_t result) {
    std::vector<io::Transfer> transfers(kDepth, first);
    for (uint32_t i = 0; i < kDepth; ++i) {
        transfers[i].data += size_t{i} * first.nbytes;
        transfers[i].tag = i;
    }
    for (int round = 0; round < kRounds; ++round) {
        CHECK(engine.submit(transfers) == static_cast<int>(kDepth));
        std::vector<io::Completion> found(kDepth);
        for (uint32_t answered = 0; answered < kDepth;) {
            const int count = engine.reap(found, true);
            CHECK(count >= 0 || count == -EINTR);
            for (int i = 0; i < count; ++i) {
                CHECK(found[static_cast<size_t>(i)].tag < kDepth);
                CHECK(found[static_cast<size_t>(i)].result == result);
                ++answered;
            }
        }
    }
}

void room_after_any_answer(io::Engine& engine, std::byte* forbidden) {
    const Bytes data = noise(100, 1);
    const ScratchFile file(data);
    const int fd = ::open(file.path().c_str(), O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    Bytes found(kDepth * data.size());
    fill_and_empty(engine, {found.data(), 0, 0, 100, fd, -1, false}, 100);
    for (size_t i = 0; i < kDepth; ++i) {
        CHECK(std::equal(data.begin(), data.end(), found.begin() + i * data.size()));
    }
    fill_and_empty(engine, {found.data(), 50, 0, 100, fd, -1, false}, 50);   // short
    fill_and_empty(engine, {found.data(), 4096, 0, 100, fd, -1, false}, 0);  // beyond the end
    fill_and_empty(engine, {forbidden, 0, 0, 100, fd, -1, false}, -EFAULT);
    CHECK(::close(fd) == 0);
}

void a_wake_ends_one_wait(io::Engine& engine) {
    const ScratchFile file(noise(100, 2));
    const int fd = ::open(file.path().c_str(), O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    Bytes data(100);
    const io::Transfer transfer{data.data(), 0, 7, 100, fd, -1, false};
    std::vector<io::Completion> found(kDepth);
    for (int round = 0; round < kRounds; ++round) {
        engine.wake();
        if (round % 2 == 0) {
            CHECK(engine.reap(found, false) == 0);  // no wait: the wake is for the next
        }
        CHECK(engine.reap(found, true) == 0);
        for (int i = 0; i < kRounds; ++i) {
            CHECK(engine.submit({&transfer, 1}) == 1);
            CHECK(engine.reap(found, true) == 1 && found[0].tag == 7);
        }
    }
    CHECK(::close(fd) == 0);
}

size_t threads() {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return static_cast<size_t>(std::distance(begin(tasks), end(tasks)));
}

void threads_are_no_more_than_transfers() {
    constexpr uint32_t depth = 2;
    std::thread([] {}).join();  // with the first one ThreadSanitizer starts one of its own
    const size_t before = threads();
    const auto engine = io::make_posix_engine(depth);
    const ScratchFile file(noise(100, 3));
    const int fd = ::open(file.path().c_str(), O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    Bytes data(100);
    const std::vector<io::Transfer> transfers(20, {data.data(), 0, 0, 100, fd, -1, false});
    CHECK(engine->submit(transfers) == 20);
    CHECK(threads() <= before + depth);
    std::vector<io::Completion> found(20);
    for (int answered = 0; answered < 20;) {
        answered += engine->reap(found, true);
    }
    CHECK(::close(fd) == 0);
}

void places_for_buffers_come_back(io::Engine& engine, std::byte* forbidden) {
    const pin::PageMapping page(sys::page_size(), pin::PageMapping::Residency::unlocked);
    const int first = engine.register_buffer(page.data(), page.size());
    if (first < 0) {
        std::printf("%s: no fixed buffers here (error %d)\n", engine.name().data(), -first);
        return;
    }
    engine.unregister_buffer(first);
    for (int i = 0; i < kBuffers; ++i) {
        CHECK(engine.register_buffer(forbidden, sys::page_size()) == -EFAULT);
        const int index = engine.register_buffer(page.data(), page.size());
        CHECK(index >= 0);
        engine.unregister_buffer(index);
    }
}

}  // namespace

int main() {
    threads_are_no_more_than_transfers();
    std::byte* forbidden = nowhere();
    for (const io::EngineReport& report : io::probe_engines()) {
        if (!report.usable) {
            std::printf("%s cannot run here: %s\n", report.name.c_str(), report.reason.c_str());
            continue;
        }
        const std::unique_ptr<io::Engine> engine = io::backends_named(report.name)[0].make(kDepth);
        room_after_any_answer(*engine, forbidden);
        a_wake_ends_one_wait(*engine);
        places_for_buffers_come_back(*engine, forbidden);
    }
    CHECK(::munmap(forbidden, sys::page_size()) == 0);
    return 0;
}
