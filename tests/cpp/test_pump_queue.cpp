// Guards: a queue that takes no more is emptied and asked again, not spun on; chunks that wait for
// a staging block get one; an engine that breaks ends its requests; registered memory is used where
// it is to be had.
#include <sys/mman.h>
#include <sys/wait.h>

#include <cerrno>
#include <chrono>
#include <optional>
#include <random>

#include "io/pump.h"
#include "pin/deepspeed_pin_tensor.h"
#include "pump_rig.h"

using namespace deepnvme;
using namespace deepnvme::test;
using io::Path;

namespace {

// Memory that is nowhere aligned, so that what is direct goes through staging blocks.
constexpr size_t kShift = 1;

// Many chunks through a queue with less room than the pump has slots.
void full_queue(bool staged, size_t capacity) {
    constexpr size_t chunks = 200;
    const Bytes data = noise(chunks * kPage, 1);
    const ScratchFile file;
    const Memory memory(data, staged ? kShift : 0);
    Rig rig({.depth = 16});
    rig.engine.capacity = capacity;
    const Started started = rig.start(writing(memory, data.size()), file.path(), {kPage, kPage});
    rig.run();
    CHECK(started.completed() && file.contents() == data);
    CHECK(rig.engine.seen.size() == chunks);
    // Asked again after completions only: about twice for each reap, of up to three transfers.
    CHECK(rig.engine.batches.size() <= 4 * chunks);
    for (size_t i = 1; i < chunks; ++i) {  // what was not taken stays first in line
        CHECK(rig.engine.seen[i].transfer.offset > rig.engine.seen[i - 1].transfer.offset);
    }
}

void partly_taken_batches() {
    const Bytes data = noise(64 * kPage, 2);
    const ScratchFile file(data);
    const Memory memory(data.size());
    Rig rig({.depth = 32});
    rig.engine.at_submit = {5, 0, 1, -EAGAIN, 30, -EINTR, 1, -EBUSY, 2, 0, 0};
    const Started started = rig.start(reading(memory, data.size()), file.path(), {kPage, kPage});
    rig.run();
    CHECK(started.completed() && memory.bytes() == data && rig.engine.seen.size() == 64);
}

void one_call_for_each_transfer() {
    for (bool single : {false, true}) {
        const Bytes data = noise(8 * kPage, 3);
        const ScratchFile file(data);
        const Memory memory(data.size());
        Rig rig({.depth = 8, .single_submit = single});
        const Started started =
            rig.start(reading(memory, data.size()), file.path(), {kPage, kPage});
        rig.run();
        CHECK(started.completed());
        CHECK(rig.engine.batches == (single ? std::vector<size_t>(8, 1) : std::vector<size_t>{8}));
    }
}

// An engine that takes nothing at all: plain calls move the bytes, however many wait for blocks.
void refused_at_every_submission(int error, size_t shift, bool write) {
    const auto started_at = std::chrono::steady_clock::now();
    const Bytes data = noise(12 * kPage, 4);
    const ScratchFile file(write ? Bytes() : data);
    const Memory memory(write ? data : Bytes(data.size()), shift);
    Rig rig({.depth = 8, .staging_bytes = 2 * kPage});
    rig.engine.always_at_submit = -error;
    const Started started =
        rig.start(write ? writing(memory, data.size()) : reading(memory, data.size()), file.path(),
                  {kPage, kPage});
    rig.run();
    CHECK(started.completed() && (write ? file.contents() : memory.bytes()) == data);
    CHECK(rig.engine.batches.size() <= 12 * 64);
    io::LatencyHistogram::Merged latency;
    latency.add(rig.counters.latency);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - started_at;
    CHECK(latency.summary().count == 12);
    CHECK(latency.summary().max <= elapsed.count());  // no transfer takes longer than all of them
}

// An error at submission is the first transfer's alone, and frees its staging block for another.
void errors_at_submission(size_t shift) {
    const Bytes data = noise(12 * kPage, 5);
    const ScratchFile file(data);
    const Memory memory(data.size(), shift);
    Rig rig({.depth = 8, .staging_bytes = 2 * kPage});
    rig.engine.always_at_submit = -EBADF;
    const Started started = rig.start(reading(memory, data.size()), file.path(), {kPage, kPage});
    rig.run();
    CHECK(started.failure().error == EBADF && started.failure().nbytes_done == 0);
    CHECK(rig.engine.batches.size() == 12);
}

void few_staging_blocks(bool write, uint64_t seed) {
    const Bytes data = noise(60 * kPage, seed);
    const ScratchFile file(write ? Bytes() : data);
    const Memory memory(write ? data : Bytes(data.size()), kShift);
    Rig rig({.depth = 16, .staging_bytes = 3 * kPage}, io::make_posix_engine(4));
    rig.engine.reorder(seed);
    rig.engine.capacity = 1 + seed % 4;
    const Started started =
        rig.start(write ? writing(memory, data.size()) : reading(memory, data.size()), file.path(),
                  {kPage, kPage});
    rig.run();
    CHECK(started.completed() && (write ? file.contents() : memory.bytes()) == data);
    if (started.file->refused_at_open() || !ScratchFile().takes_direct()) {
        return;
    }
    CHECK(rig.moved(write, Path::staged) == data.size());
    std::vector<const std::byte*> blocks;
    for (const auto& seen : rig.engine.seen) {
        blocks.push_back(seen.transfer.data);
    }
    std::sort(blocks.begin(), blocks.end());
    blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
    CHECK(blocks.size() <= 3);
}

int no_mappings(const char* call) { return std::string_view(call) == "mmap" ? ENOMEM : 0; }

void no_memory_for_staging() {
    const Bytes data = noise(6 * kPage, 6);
    const ScratchFile file(data);
    const Memory memory(data.size(), kShift);
    const Memory aligned(data.size());
    Rig rig({.depth = 4});
    const Started staged = rig.start(reading(memory, data.size()), file.path(), {kPage, kPage});
    const Started direct = rig.start(reading(aligned, data.size()), file.path(), {kPage, kPage});
    sys::set_fault_hook(no_mappings);
    rig.run();
    sys::set_fault_hook(nullptr);
    CHECK(direct.completed() && aligned.bytes() == data);
    if (ScratchFile().takes_direct()) {
        CHECK(staged.failure().error == ENOMEM && staged.failure().nbytes_done == 0);
    }
}

// A chunk that no staging block could ever hold fails, instead of waiting for one.
void larger_than_all_staging() {
    const Bytes data = noise(4 * kPage, 7);
    const ScratchFile file(data);
    const Memory memory(2 * data.size());
    io::Request request = reading(memory, data.size());
    request.layout = std::make_shared<io::Layout>(std::vector<int64_t>{4, kPage},
                                                  std::vector<int64_t>{2 * kPage, 1}, size_t{1});
    Rig rig({.depth = 4, .staging_bytes = 3 * kPage});
    const Started started = rig.start(std::move(request), file.path(), {4 * kPage, 4 * kPage});
    rig.run();
    CHECK(started.failure().error == ENOMEM && started.failure().nbytes_done == 0);
}

// How a worker knows that it has copied enough for the drive to start on.
void copies_are_counted_until_submitted() {
    const Bytes data = noise(4 * kPage, 10);
    const ScratchFile file;
    const Memory memory(data, kShift);
    Rig rig({.depth = 4});
    const Started started = rig.start(writing(memory, data.size()), file.path(), {kPage, kPage});
    if (!started.file->direct()) {
        return;
    }
    rig.add();
    CHECK(rig.pump.copied_waiting() == data.size());
    rig.run();
    CHECK(rig.pump.copied_waiting() == 0 && started.completed());
}

// Interrupted reaps are tried again; one that fails for good ends every request, and those to come.
void interrupted_reaps() {
    const Bytes data = noise(8 * kPage, 7);
    const ScratchFile file(data);
    const Memory memory(data.size());
    Rig rig({.depth = 4});
    rig.engine.at_reap = {-EINTR, -EAGAIN, -EINTR, -EBADF, -EIO, -EINTR};
    const Started started = rig.start(reading(memory, data.size()), file.path(), {kPage, kPage});
    rig.run();
    CHECK(started.completed() && memory.bytes() == data);
}

void broken_engine(size_t shift) {
    const Bytes data = noise(8 * kPage, 8);
    const ScratchFile file(data);
    const Memory memory(data.size(), shift);
    std::optional<Rig> made(io::PumpOptions{.depth = 4});
    Rig& rig = *made;
    rig.engine.always_at_reap = -EBADF;
    const Started started = rig.start(reading(memory, data.size()), file.path(), {kPage, kPage});
    rig.pump.submit();
    for (int turn = 0; turn < 100'000 && !started.group->done(); ++turn) {
        rig.turn();
    }
    CHECK(started.failure().error == EBADF && started.failure().nbytes_done == 0);
    const Started later = rig.start(reading(memory, kPage), file.path());
    rig.turn();
    CHECK(later.failure().error == EBADF && rig.pump.idle());
    // What the kernel may still write to outlives the pump.
    const std::vector<ScriptedEngine::Seen> seen = rig.engine.seen;
    made.reset();
    CHECK(seen.size() == 4);
    for (const auto& [transfer, direct] : seen) {
        const auto at = reinterpret_cast<uintptr_t>(transfer.data) / kPage * kPage;
        unsigned char resident = 0;
        CHECK(::mincore(reinterpret_cast<void*>(at), kPage, &resident) == 0);
    }
}

// In a child that ends without a look for leaks: memory that the kernel may still write to is kept
// for ever on purpose.
void broken_engine_in_a_child() {
    const pid_t child = ::fork();
    CHECK(child >= 0);
    if (child == 0) {
        broken_engine(0);
        broken_engine(kShift);
        ::_exit(0);
    }
    int status = 0;
    CHECK(::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

void registered_memory(int register_error, bool kernel_refuses) {
    auto& registry = pin::deepspeed_pin_tensor_t::instance();
    constexpr size_t nbytes = 512 << 10;  // a mapping of its own
    const Bytes data = noise(nbytes, 9);
    const ScratchFile file(data);
    auto region = registry.allocate(nbytes, "test");
    const uint64_t serial = region->mapping()->serial;
    Rig rig({.depth = 8});
    rig.engine.registers = true;
    rig.engine.register_error = register_error;
    if (kernel_refuses) {
        rig.engine.fate = [](const io::Transfer& t) {
            return t.buffer_index >= 0 ? Fate::fail(EFAULT) : Fate::pass();
        };
    }
    for (int round = 0; round < 2; ++round) {
        std::fill_n(region->data(), nbytes, std::byte{0});
        io::Request request;
        request.data = region->data();
        request.nbytes = nbytes;
        request.region = registry.use(region->data(), nbytes);
        CHECK(request.region);
        const Started started = rig.start(std::move(request), file.path(), {64 << 10, 64 << 10});
        rig.run();
        CHECK(started.completed());
        CHECK(std::equal(data.begin(), data.end(), region->data()));
    }
    if (!ScratchFile().takes_direct()) {
        return;
    }
    const bool fixed = register_error == 0 && !kernel_refuses;
    CHECK(rig.moved(false, Path::fixed) == (fixed ? 2 * nbytes : 0));
    CHECK(rig.moved(false, Path::direct) == (fixed ? 0 : 2 * nbytes));
    CHECK(rig.engine.registrations_asked == 1);  // and not for each transfer, even when refused
    rig.pump.forget_mapping(serial);
    rig.pump.forget_mapping(serial);
    CHECK(rig.engine.unregistered == rig.engine.registered);
    CHECK(rig.engine.registered.size() == (register_error == 0 ? 1 : 0));
}

}  // namespace

int main() {
    for (bool staged : {false, true}) {
        for (size_t capacity : {size_t{1}, size_t{3}}) {
            full_queue(staged, capacity);
        }
    }
    partly_taken_batches();
    one_call_for_each_transfer();
    interrupted_reaps();
    broken_engine_in_a_child();
    no_memory_for_staging();
    larger_than_all_staging();
    copies_are_counted_until_submitted();
    for (uint64_t seed = 0; seed < 20; ++seed) {
        few_staging_blocks(seed % 2 == 0, seed);
    }
    registered_memory(0, false);
    registered_memory(-EOPNOTSUPP, false);
    registered_memory(-ENOMEM, false);
    registered_memory(0, true);
    pin::deepspeed_pin_tensor_t::instance().empty_cache();
    for (size_t shift : {size_t{0}, kShift}) {
        errors_at_submission(shift);
        for (int error : {EAGAIN, EINTR, EBUSY}) {
            refused_at_every_submission(error, shift, false);
            refused_at_every_submission(error, shift, true);
        }
    }
    return 0;
}
