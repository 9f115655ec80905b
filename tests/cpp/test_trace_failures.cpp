// Guards: what stops the writing of a trace is told once, and while it is written; a file that
// cannot be cut to size is told too, and one that cannot be begun leaves nothing behind; however
// many threads call, each has its name in the trace.
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <string>
#include <string_view>
#include <thread>

#include "check.h"
#include "io/trace.h"
#include "io/traced_call.h"
#include "scratch_file.h"
#include "sys/syscalls.h"

using namespace deepnvme;
using test::Bytes;
using test::ScratchFile;

namespace {

// Calls of one kind fail, from the one of this number on.
std::string_view failing;
std::atomic<int> works{0};  // calls that still do
int error_of(const char* call) { return failing == call && works-- <= 0 ? EDQUOT : 0; }

void fail(std::string_view call, int after) {
    failing = call;
    works = after;
    sys::set_fault_hook(error_of);
}

std::string text_of(const ScratchFile& file) {
    std::string text;
    for (const std::byte byte : file.contents()) {
        text += static_cast<char>(byte);
    }
    return text;
}

size_t count(std::string_view text, std::string_view what) {
    size_t found = 0;
    for (size_t at = text.find(what); at != std::string_view::npos; at = text.find(what, at + 1)) {
        ++found;
    }
    return found;
}

// `calls` at a time, of which one write is not full, or more than one is.
void told_once_and_at_once(size_t calls) {
    const ScratchFile scratch;
    io::Trace& trace = io::Trace::open(scratch.path());
    CHECK(trace.take_failure() == 0);
    fail("pwrite", 0);
    const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    int told = 0;
    while (told == 0) {
        for (size_t i = 0; i < calls; ++i) {
            const io::TracedCall call(&trace, "call");
        }
        CHECK(std::chrono::steady_clock::now() < patience);
        told = trace.take_failure();
        std::this_thread::yield();
    }
    CHECK(told == EDQUOT);
    sys::set_fault_hook(nullptr);
    trace.close();
    CHECK(trace.take_failure() == 0);
    CHECK(text_of(scratch).ends_with("\n]\n"));
}

// The last write, of the end.
void told_at_the_end() {
    const ScratchFile scratch;
    io::Trace& trace = io::Trace::open(scratch.path());
    fail("ftruncate", 0);
    trace.close();
    sys::set_fault_hook(nullptr);
    CHECK(trace.take_failure() == EDQUOT && trace.take_failure() == 0);
}

void a_file_that_cannot_be_begun() {
    for (const bool known : {false, true}) {
        const ScratchFile scratch;
        ::unlink(scratch.path().c_str());
        if (known) {  // from a trace before, which a reader may have by then
            io::Trace::open(scratch.path()).close();
        }
        fail("ftruncate", 0);
        CHECK_THROWS(io::TraceError, error, io::Trace::open(scratch.path())) {
            CHECK(error.error == EDQUOT && error.path == scratch.path());
        }
        sys::set_fault_hook(nullptr);
        CHECK((::access(scratch.path().c_str(), F_OK) == 0) == known);
        io::Trace& trace = io::Trace::open(scratch.path());  // nobody holds the lock of the file
        CHECK(trace.take_failure() == 0);
        trace.close();
    }
}

void more_threads_than_are_remembered() {
    constexpr size_t threads = 4100;
    const ScratchFile scratch;
    io::Trace& trace = io::Trace::open(scratch.path(), 64 << 20);
    {
        const io::TracedCall call(&trace, "first");
    }
    for (size_t i = 0; i < threads; ++i) {
        std::thread([&] { const io::TracedCall call(&trace, "other"); }).join();
    }
    {
        const io::TracedCall call(&trace, "last");
    }
    trace.close();
    const std::string text = text_of(scratch);
    CHECK(count(text, R"("name":"other")") == threads);
    CHECK(count(text, R"("name":"thread_name")") == 1 + threads + 1);
    CHECK(count(text, R"("main thread")") == 2);  // it had been forgotten
}

}  // namespace

int main() {
    told_once_and_at_once(1);
    told_once_and_at_once(1000);
    told_at_the_end();
    a_file_that_cannot_be_begun();
    more_threads_than_are_remembered();
    return 0;
}
