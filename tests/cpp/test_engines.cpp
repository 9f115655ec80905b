// Guards: an engine has room again for all that it has answered, whatever the answer was; what it
// has no room for, or what is not asked for yet, is not lost; a wake ends one wait and no other; a
// place for a fixed buffer that was given back, or could not be filled, can be had again.
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

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

// Each answered once, whatever was offered and asked for at a time. The number of the first taken.
size_t no_more_than_fits(io::Engine& engine, size_t asked_for) {
    constexpr size_t count = 50;
    const Bytes data = noise(count, 4);
    const ScratchFile file(data);
    const int fd = ::open(file.path().c_str(), O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    Bytes found(count);
    std::vector<io::Transfer> transfers;
    for (size_t i = 0; i < count; ++i) {
        transfers.push_back({&found[i], static_cast<off_t>(i), i, 1, fd, -1, false});
    }
    std::span<const io::Transfer> rest = transfers;
    size_t first_taken = 0;
    std::vector<io::Completion> completions(asked_for);
    std::vector<int> answers(count);
    for (size_t answered = 0; answered < count;) {
        for (int taken = 1; taken > 0 && !rest.empty();) {
            taken = engine.submit(rest);
            CHECK(taken > 0 || (taken == -EAGAIN && count - rest.size() > answered));
            first_taken = first_taken == 0 ? static_cast<size_t>(taken) : first_taken;
            rest = rest.subspan(static_cast<size_t>(std::max(taken, 0)));
        }
        const int got = engine.reap(completions, true);
        CHECK(got >= 0 && static_cast<size_t>(got) <= asked_for);
        for (const io::Completion& one : std::span(completions).first(static_cast<size_t>(got))) {
            CHECK(one.result == 1 && ++answers[one.tag] == 1);
        }
        answered += static_cast<size_t>(got);
    }
    CHECK(found == data && engine.reap(completions, false) == 0);
    CHECK(::close(fd) == 0);
    return first_taken;
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

std::string refused_call;
int refused_error = 0;
int refusals = 0;  // left; then it works
int refuse(const char* call) {
    return refused_call == call && refusals > 0 ? (--refusals, refused_error) : 0;
}

void refuse_calls(const char* call, int error, int count) {
    refused_call = call;
    refused_error = error;
    refusals = count;
    sys::set_fault_hook(refuse);
}

// With the threads that there are, and without asking for others again and again.
void threads_that_cannot_be_had() {
    std::thread([] {}).join();
    const auto engine = io::make_posix_engine(kDepth);
    const size_t before = threads();
    refuse_calls("clone", EAGAIN, 1);
    CHECK(no_more_than_fits(*engine, 7) == 50);
    CHECK(refusals == 0 && threads() == before);
    sys::set_fault_hook(nullptr);
}

// While no entry is free the wake-up cannot be asked for again: it is later, and no wake is lost.
void a_wake_while_the_ring_is_full() {
    constexpr uint32_t depth = 3;  // and the wake-up: four entries, all that the ring has
    refuse_calls("io_uring_setup", EINVAL, 2);  // so that the kernel answers by itself, as old ones
    const auto engine = io::backends_named("io_uring")[0].make(depth);
    const Bytes data = noise(depth + 1, 5);
    const ScratchFile file(data);
    const int fd = ::open(file.path().c_str(), O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    Bytes found(data.size());
    std::vector<io::Transfer> transfers;
    for (uint32_t i = 0; i <= depth; ++i) {
        transfers.push_back({&found[i], static_cast<off_t>(i), i, 1, fd, -1, false});
    }
    std::vector<io::Completion> completions(depth + 1);
    CHECK(engine->reap(completions, false) == 0);  // the kernel has the wake-up
    engine->wake();
    refuse_calls("io_uring_enter", EAGAIN, 2);
    CHECK(engine->submit(transfers) == depth + 1 && engine->submit(transfers) == -EAGAIN);
    sys::set_fault_hook(nullptr);
    for (uint32_t answered = 0; answered <= depth;) {
        const int got = engine->reap(completions, true);
        CHECK(got >= 0);
        answered += static_cast<uint32_t>(got);
    }
    CHECK(found == data);
    for (int round = 0; round < 3; ++round) {
        engine->wake();
        CHECK(engine->reap(completions, true) == 0);
    }
    CHECK(::close(fd) == 0);
}

// What keeps io_uring away is said with what helps.
void reasons_have_remedies() {
    for (const auto& [error, remedy] :
         {std::pair(ENOMEM, "ulimit -l"), std::pair(EPERM, "seccomp"),
          std::pair(EACCES, "io_uring_disabled"), std::pair(ENOSYS, "use libaio or posix")}) {
        refuse_calls("io_uring_setup", error, 1);
        CHECK_THROWS(io::EngineUnavailable, told, io::backends_named("io_uring")[0].make(kDepth)) {
            const std::string message = told.what();
            CHECK(
                message.starts_with(std::string("io_uring_setup failed: ") + std::strerror(error)));
            CHECK(message.find(remedy) != std::string::npos);
        }
    }
    sys::set_fault_hook(nullptr);
}

void places_for_buffers_come_back(const std::string& name, io::Engine& engine,
                                  std::byte* forbidden) {
    const pin::PageMapping page(sys::page_size(), pin::PageMapping::Residency::unlocked);
    const int first = engine.register_buffer(page.data(), page.size());
    if (first < 0) {
        std::printf("%s: no fixed buffers here (error %d)\n", name.c_str(), -first);
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

void same_for_every_engine(const std::string& name, io::Engine& engine, std::byte* forbidden) {
    room_after_any_answer(engine, forbidden);
    a_wake_ends_one_wait(engine);
    for (size_t asked_for : {1, 3, 50}) {
        const size_t taken = no_more_than_fits(engine, asked_for);
        CHECK(taken >= kDepth && (name != "libaio" || taken == kDepth));
    }
    places_for_buffers_come_back(name, engine, forbidden);
}

}  // namespace

int main() {
    threads_are_no_more_than_transfers();
    threads_that_cannot_be_had();
    std::byte* forbidden = nowhere();
    same_for_every_engine("inline", *io::make_inline_engine(kDepth), forbidden);
    for (const io::EngineReport& report : io::probe_engines()) {
        if (!report.usable) {
            std::printf("%s cannot run here: %s\n", report.name.c_str(), report.reason.c_str());
            continue;
        }
        same_for_every_engine(report.name, *io::backends_named(report.name)[0].make(kDepth),
                              forbidden);
        if (report.name == "io_uring") {
            reasons_have_remedies();
            a_wake_while_the_ring_is_full();
        }
    }
    CHECK(::munmap(forbidden, sys::page_size()) == 0);
    return 0;
}
