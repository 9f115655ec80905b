// Guards: a trace's rings lose nothing but what finds no room, and count that; its file is JSON
// after every write, on a full disk and with two handles; the writer races with nobody (thread
// sanitizer); a forked child writes nothing.
#include <sys/wait.h>

#include <atomic>
#include <cerrno>
#include <semaphore>
#include <system_error>
#include <thread>
#include <vector>

#include "check.h"
#include "io/io_handle.h"
#include "io/trace.h"
#include "io/traced_call.h"
#include "scratch_file.h"
#include "sys/syscalls.h"

using namespace deepnvme;
using io::TraceEvent;
using test::Bytes;
using test::ScratchFile;

namespace {

// ---- a reader of what the writer may write: an array of objects, one a line ----

struct Read {
    bool ended = false;                // with its bracket
    std::vector<std::string> objects;  // in order
    size_t spans = 0, flows = 0;
    std::string last;

    size_t number(const std::string& key) const {  // of the last object
        const size_t at = last.find("\"" + key + "\":");
        CHECK(at != std::string::npos);
        return std::stoull(last.substr(at + key.size() + 3));
    }
};

Read parse(const Bytes& bytes) {
    std::string text(bytes.size(), '\0');
    std::transform(bytes.begin(), bytes.end(), text.begin(),
                   [](std::byte byte) { return static_cast<char>(byte); });
    Read read;
    CHECK(text.starts_with("[\n{"));
    size_t at = 2;
    for (;;) {
        size_t end = text.find('\n', at);
        end = end == std::string::npos ? text.size() : end;
        std::string line = text.substr(at, end - at);
        while (!line.empty() && (line.back() == ' ' || line.back() == ',')) {
            line.pop_back();
        }
        CHECK(line.starts_with("{\"ph\":\"") && line.ends_with("}"));
        CHECK(at / 4096 == (at + line.size() - 1) / 4096);  // in one page
        read.objects.push_back(line);
        read.spans += line.starts_with("{\"ph\":\"X\"") ? 1 : 0;
        read.flows += line.starts_with("{\"ph\":\"f\"") ? 1 : 0;
        if (end == text.size()) {
            break;
        }
        at = end + 1;
        if (std::string_view(text).substr(at) == "]\n") {
            read.ended = true;
            break;
        }
    }
    read.last = read.objects.back();
    return read;
}

// ---- rings ----

void a_ring_keeps_order_and_counts_what_it_drops() {
    io::TraceRing ring(10 * io::TraceRing::record_bytes(7) + 5);  // records wrap everywhere
    TraceEvent event;
    std::string text;
    uint64_t pushed = 0, popped = 0, dropped = 0;
    for (int round = 0; round < 1000; ++round) {
        for (int i = 0; i < round % 14; ++i) {
            event.request = pushed;
            if (ring.push(event, std::string(static_cast<size_t>(round) % 9, 'x'))) {
                ++pushed;
            } else {
                ring.count_dropped();
                ++dropped;
            }
        }
        while (ring.pop(event, text)) {
            CHECK(event.request == popped++);
            CHECK(text == std::string(static_cast<size_t>(round) % 9, 'x'));
        }
    }
    CHECK(pushed == popped && dropped == ring.dropped() && dropped > 0);
}

// ---- the file ----

std::atomic<int> writes_allowed{-1};
std::atomic<int> write_error{0};

int fail_writes(const char* call) {
    if (std::string_view(call) != "pwrite" || writes_allowed < 0) {
        return 0;
    }
    return writes_allowed-- > 0 ? 0 : (++writes_allowed, write_error.load());
}

std::string object(size_t nbytes) { return R"({"ph":"X",)" + std::string(nbytes, '.') + "}"; }

void the_file_is_whole_at_any_failure() {
    sys::set_fault_hook(fail_writes);
    write_error = ENOSPC;
    for (int allowed = 0; allowed < 12; ++allowed) {
        const ScratchFile scratch;
        const int descriptor = ::open(scratch.path().c_str(), O_WRONLY | O_CLOEXEC);
        io::TraceFile file;
        writes_allowed = -1;
        CHECK(file.start(descriptor, R"({"ph":"M"})") == 0);
        writes_allowed = allowed;
        size_t added = 0;
        for (int i = 0; i < 400; ++i) {
            file.add(object(static_cast<size_t>(i * 37 % 3000)), true);
            ++added;
            if (i % 40 == 7) {
                file.flush();
                CHECK(parse(scratch.contents()).spans <= added);
            }
        }
        writes_allowed = writes_allowed > 0 ? -1 : 2;  // room for the end, and for what was there
        file.finish([&] { return R"({"ph":"i","events":)" + std::to_string(file.events()) + "}"; });
        writes_allowed = -1;
        const Read read = parse(scratch.contents());
        CHECK(read.ended && read.number("events") == read.spans && read.spans <= added);
        CHECK((file.error() == 0) == (read.spans == added));
        ::close(descriptor);
    }
    sys::set_fault_hook(nullptr);
}

// Without room even for its end the file is an array that has none.
void a_full_disk_that_stays_full() {
    sys::set_fault_hook(fail_writes);
    const ScratchFile scratch;
    const int descriptor = ::open(scratch.path().c_str(), O_WRONLY | O_CLOEXEC);
    io::TraceFile file;
    CHECK(file.start(descriptor, R"({"ph":"M"})") == 0);
    for (int i = 0; i < 100; ++i) {
        file.add(object(1000), true);
    }
    file.flush();
    writes_allowed = 0;
    file.add(object(10), true);
    file.finish([] { return std::string(R"({"ph":"i"})"); });
    writes_allowed = -1;
    sys::set_fault_hook(nullptr);
    const Read read = parse(scratch.contents());
    CHECK(!read.ended && read.spans > 80 && read.spans == file.events());
    CHECK(file.error() == ENOSPC);
    ::close(descriptor);
}

// ---- traces ----

// Producers and the writer run into each other; small rings, so that some is dropped.
void nothing_is_lost_but_what_is_counted(size_t ring_bytes, bool all_fits) {
    constexpr size_t workers = 3, callers = 2, each = 3000;
    const ScratchFile scratch;
    io::Trace& trace = io::Trace::open(scratch.path(), ring_bytes);
    {
        std::vector<std::jthread> threads;
        for (size_t i = 0; i < workers; ++i) {
            threads.emplace_back([&trace, i] {
                const auto track = trace.add_track("worker " + std::to_string(i), 8);
                for (uint32_t n = 0; n < each; ++n) {
                    const auto request = trace.begin_request("/some/path");
                    TraceEvent event;
                    event.nbytes = n;
                    track->record(event, n % 8, *request);
                }
            });
        }
        for (size_t i = 0; i < callers; ++i) {
            threads.emplace_back([&trace] {
                for (size_t n = 0; n < each; ++n) {
                    const io::TracedCall call(&trace, "call");
                }
            });
        }
    }
    trace.close();
    const Read read = parse(scratch.contents());
    CHECK(read.ended && read.number("events") == read.spans);
    CHECK(read.spans + read.number("dropped") == each * (workers + callers));
    CHECK(!all_fits || read.number("dropped") == 0);
    CHECK(read.flows <= workers * each);
}

std::counting_semaphore<> disk(0);
int slow_disk(const char* call) {
    if (std::string_view(call) == "pwrite") {
        disk.acquire();
        disk.release();
    }
    return 0;
}

// While the disk stands still, rings fill up and the rest is dropped: memory is bounded.
void a_disk_that_stands_still() {
    constexpr size_t count = 20'000;
    const ScratchFile scratch;
    io::Trace& trace = io::Trace::open(scratch.path(), 64 << 10);
    sys::set_fault_hook(slow_disk);
    const auto track = trace.add_track("worker", 1);
    const auto request = trace.begin_request("/p");
    for (size_t n = 0; n < count; ++n) {
        TraceEvent event;
        track->record(event, 0, *request);
    }
    disk.release();
    trace.close();
    sys::set_fault_hook(nullptr);
    const Read read = parse(scratch.contents());
    CHECK(read.ended && read.spans + read.number("dropped") == count);
    // The ring, and what the writer may have taken out before it met the disk.
    CHECK(read.number("dropped") > 0);
}

void handles_share_a_file_one_after_the_other() {
    const ScratchFile scratch, other;
    io::Trace& first = io::Trace::open(scratch.path());
    io::Trace& second = io::Trace::open(scratch.path());
    CHECK(&first == &second);
    for (int i = 0; i < 3; ++i) {
        const io::TracedCall call(&first, "call");
    }
    first.close();
    CHECK(!parse(scratch.contents()).ended);
    second.close();
    CHECK(parse(scratch.contents()).spans == 3);
    {
        const io::TracedCall call(&first, "after the end");
    }
    io::Trace& third = io::Trace::open(scratch.path());
    CHECK(!parse(scratch.contents()).ended);  // nor is anything left behind what comes now
    {
        const io::TracedCall call(&third, "call");
    }
    third.close();
    const Read read = parse(scratch.contents());
    CHECK(read.ended && read.spans == 4 && read.number("events") == 4);
    // What somebody else has written meanwhile is no trace to go on with.
    ScratchFile& mine = const_cast<ScratchFile&>(scratch);
    mine.fill(Bytes(100'000));
    io::Trace::open(scratch.path()).close();
    CHECK(parse(scratch.contents()).spans == 0);
}

int no_threads(const char* call) { return std::string_view(call) == "clone" ? EAGAIN : 0; }

// What was finished before stays so.
int no_fork_handlers(const char* call) {
    return std::string_view(call) == "pthread_atfork" ? ENOMEM : 0;
}

void the_first_can_fail_before_anything_is_opened() {
    const ScratchFile scratch;
    ::unlink(scratch.path().c_str());
    sys::set_fault_hook(no_fork_handlers);
    CHECK_THROWS(std::system_error, error, io::Trace::open(scratch.path())) {
        CHECK(error.code().value() == ENOMEM);
    }
    sys::set_fault_hook(nullptr);
    CHECK(::access(scratch.path().c_str(), F_OK) != 0);
    io::Trace::open(scratch.path()).close();
    CHECK(::access(scratch.path().c_str(), F_OK) == 0);
}

void no_thread_for_the_writer() {
    const ScratchFile scratch;
    io::Trace& trace = io::Trace::open(scratch.path());
    {
        const io::TracedCall call(&trace, "call");
    }
    trace.close();
    sys::set_fault_hook(no_threads);
    CHECK_THROWS(std::system_error, error, io::Trace::open(scratch.path())) {}
    sys::set_fault_hook(nullptr);
    const Read before = parse(scratch.contents());
    CHECK(before.ended && before.spans == 1);
    io::Trace::open(scratch.path()).close();
    CHECK(parse(scratch.contents()).spans == 1);
}

void other_processes_are_kept_out() {
    const ScratchFile scratch;
    io::Trace& trace = io::Trace::open(scratch.path());
    const pid_t child = ::fork();
    if (child == 0) {
        CHECK_THROWS(io::TraceError, error, io::Trace::open(scratch.path())) {
            CHECK(error.error == EBUSY);
        }
#if !defined(__SANITIZE_THREAD__)  // whose children start no threads
        const ScratchFile own;
        io::Trace::open(own.path()).close();
        CHECK(parse(own.contents()).ended);
        ::unlink(own.path().c_str());
#endif
        std::_Exit(0);
    }
    int status = -1;
    CHECK(::waitpid(child, &status, 0) == child && status == 0);
    {
        const io::TracedCall call(&trace, "call");
    }
    trace.close();
    const Read read = parse(scratch.contents());
    CHECK(read.ended && read.spans == 1);
    CHECK_THROWS(io::TraceError, error, io::Trace::open("/nowhere/at/all")) {
        CHECK(error.error == ENOENT);
    }
    CHECK_THROWS(io::TraceError, error, io::Trace::open("/dev/null")) {
        CHECK(error.error == EINVAL);
    }
}

// Handles with workers and callers, and one that closes while others go on.
void handles_in_threads() {
    constexpr size_t part = 100'000, users = 3;
    const ScratchFile scratch;
    const ScratchFile data(test::noise(users * part, 1));
    io::HandleOptions options;
    options.block_size = 8192;
    options.queue_depth = 4;
    options.intra_op_parallelism = 2;
    options.trace = scratch.path();
    uint64_t transfers = 0;
    {
        std::vector<std::unique_ptr<io::IoHandle>> handles;
        for (size_t i = 0; i < users; ++i) {
            handles.push_back(io::make_handle(options, "posix"));
        }
        {
            std::vector<std::jthread> threads;
            for (size_t i = 0; i < users; ++i) {
                threads.emplace_back([&, i] {
                    for (const size_t nbytes : {part, size_t{5000}, part}) {
                        Bytes memory(nbytes);
                        io::Request request;
                        request.data = memory.data();
                        request.nbytes = nbytes;
                        request.offset = static_cast<off_t>(i * part);
                        const auto group = std::make_shared<io::OperationGroup>();
                        const auto operation =
                            handles[i]->prepare(std::move(request), {data.path(), -1}, group, {});
                        handles[i]->run(operation, *group, {});
                        CHECK(group->outcome().completed == 1);
                    }
                    handles[i]->close();
                });
            }
        }
        for (const auto& handle : handles) {
            const io::IoHandle::Stats stats = handle->stats();
            for (const uint64_t count : stats.transfers[0]) {
                transfers += count;
            }
        }
    }
    const Read read = parse(scratch.contents());
    CHECK(read.ended && read.spans == transfers && read.flows == transfers);
    CHECK(read.number("dropped") == 0);
}

}  // namespace

int main() {
    the_first_can_fail_before_anything_is_opened();
    a_ring_keeps_order_and_counts_what_it_drops();
    the_file_is_whole_at_any_failure();
    a_full_disk_that_stays_full();
    nothing_is_lost_but_what_is_counted(4 << 20, true);
    nothing_is_lost_but_what_is_counted(2000, false);
    a_disk_that_stands_still();
    handles_share_a_file_one_after_the_other();
    no_thread_for_the_writer();
    handles_in_threads();
    other_processes_are_kept_out();
    return 0;
}
