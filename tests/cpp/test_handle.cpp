// Guards: a handle is made in one thread, used by many and ended in another, with each engine;
// every request ends once, in its own group, whatever is closed or destroyed meanwhile; nothing is
// left.
#include <dirent.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"
#include "handle_rig.h"
#include "io/inline_pumps.h"
#include "io/io_handle.h"
#include "io/operation_group.h"
#include "io/probe.h"
#include "pin/deepspeed_pin_tensor.h"
#include "scratch_file.h"

using namespace deepnvme;
using io::IoHandle;
using io::OperationGroup;
using test::Bytes;
using test::make_handle;
using test::move;
using test::noise;
using test::request;
using test::ScratchFile;

namespace {

constexpr size_t kPart =
    300'001;  // bytes of a thread's own part of the file: no multiple of anything
constexpr size_t kThreads = 4;

size_t entries(const char* directory) {
    DIR* opened = ::opendir(directory);
    CHECK(opened != nullptr);
    size_t count = 0;
    while (::readdir(opened) != nullptr) {
        ++count;
    }
    ::closedir(opened);
    return count;
}

void write_and_read_back(IoHandle& handle, const std::string& path, size_t part, uint64_t seed) {
    const Bytes data = noise(kPart, seed);
    Bytes source = data;
    for (int round = 0; round < 4; ++round) {
        const bool at_once = round % 2 == 0;
        // Small enough for the calling thread, and too large.
        const size_t nbytes = round < 2 ? kPart : 5000;
        const auto written = move(handle, path, source.data(), nbytes, part * kPart, true, at_once);
        CHECK(written.completed == 1 && written.nbytes == nbytes && written.failures.empty());
        Bytes back(nbytes);
        const auto read = move(handle, path, back.data(), nbytes, part * kPart, false, at_once);
        CHECK(read.completed == 1 && read.nbytes == nbytes && read.failures.empty());
        CHECK(std::equal(back.begin(), back.end(), data.begin()));
    }
}

void made_used_and_ended_in_different_threads(const std::string& engine, uint32_t workers) {
    const ScratchFile file;
    std::unique_ptr<IoHandle> handle;
    std::jthread([&] { handle = make_handle(engine, workers); }).join();
    {
        std::vector<std::jthread> users;
        for (size_t i = 0; i < kThreads; ++i) {
            users.emplace_back([&, i] { write_and_read_back(*handle, file.path(), i, i); });
        }
    }
    const auto stats = handle->stats();
    CHECK(stats.requests[0] == 4 * kThreads && stats.requests[1] == 4 * kThreads);
    CHECK(stats.failed == 0 && stats.in_flight == 0);
    std::jthread([&] { handle.reset(); }).join();
    for (size_t i = 0; i < kThreads; ++i) {
        const Bytes expected = noise(kPart, i);
        const Bytes contents = file.contents();
        CHECK(contents.size() == kThreads * kPart);
        CHECK(std::equal(expected.begin(), expected.end(),
                         contents.begin() + static_cast<std::ptrdiff_t>(i * kPart)));
    }
}

// The handle goes while everything is still in line.
void destroying_drains(const std::string& engine, uint32_t workers) {
    const Bytes data = noise(64 * 20'000, 1);
    const ScratchFile file;
    Bytes source = data;
    const auto group = std::make_shared<OperationGroup>();
    std::atomic<int> told{0};
    std::weak_ptr<void> memory;
    std::vector<std::shared_ptr<io::Operation>> operations;  // which outlive their end
    {
        const auto handle = make_handle(engine, workers);
        const auto keepalive = std::make_shared<int>(0);
        memory = keepalive;
        for (size_t i = 0; i < 64; ++i) {
            auto wanted = request(source.data() + i * 20'000, 20'000, i * 20'000, true);
            wanted.keepalive = keepalive;
            operations.push_back(handle->prepare(std::move(wanted), {file.path(), -1}, group, {}));
        }
        group->when_done([&] { ++told; });
        handle->enqueue(operations);
    }
    CHECK(group->done() && told == 1 && memory.expired());
    CHECK(group->outcome().completed == 64 && group->outcome().nbytes == data.size());
    CHECK(file.contents() == data);
}

// Half the threads submit until they are told that it is over; two close.
void closed_while_in_use(const std::string& engine) {
    const ScratchFile file;
    const auto handle = make_handle(engine, 2);
    std::atomic<size_t> begun{0};
    {
        std::vector<std::jthread> threads;
        for (size_t i = 0; i < kThreads; ++i) {
            threads.emplace_back([&, i] {
                Bytes source = noise(kPart, i);
                try {
                    for (;;) {
                        const auto outcome = move(*handle, file.path(), source.data(), kPart,
                                                  i * kPart, true, i % 2 == 0);
                        CHECK(outcome.completed + outcome.failures.size() == 1);
                        for (const auto& failure : outcome.failures) {
                            CHECK(failure.error == ECANCELED && failure.nbytes_done == 0);
                        }
                        ++begun;
                        begun.notify_all();
                    }
                } catch (const io::HandleClosed&) {
                    CHECK(handle->closed());
                }
            });
        }
        for (size_t i = 0; i < 2; ++i) {
            threads.emplace_back([&] {
                for (size_t seen = begun; seen < 2 * kThreads; seen = begun) {
                    begun.wait(seen);
                }
                handle->close();
                CHECK(handle->closed());
            });
        }
    }
    CHECK(handle->stats().in_flight == 0);
    Bytes one(1);
    CHECK_THROWS(io::HandleClosed, error,
                 move(*handle, file.path(), one.data(), 1, 0, true, true)) {}
}

// The largest request that the calling thread does itself, all of it copied through one block.
void largest_on_the_calling_thread() {
    constexpr size_t nbytes = io::InlinePumps::largest_request;
    const Bytes data = noise(nbytes, 6);
    const ScratchFile file(data);
    const auto handle = make_handle("posix", 1, nbytes);
    CHECK(handle->runs_inline(nbytes) && !handle->runs_inline(nbytes + 1));
    Bytes rows(2 * nbytes);
    auto wanted = request(rows.data(), nbytes, 0, false);
    wanted.layout = std::make_shared<io::Layout>(std::vector<int64_t>{2, nbytes / 2},
                                                 std::vector<int64_t>{nbytes, 1}, size_t{1});
    const auto group = std::make_shared<OperationGroup>();
    handle->run(handle->prepare(std::move(wanted), {file.path(), -1}, group, {}), *group, {});
    CHECK(group->outcome().completed == 1);
    for (size_t row = 0; row < 2; ++row) {
        CHECK(std::equal(rows.data() + row * nbytes, rows.data() + row * nbytes + nbytes / 2,
                         data.data() + row * nbytes / 2));
    }
}

// Failures of one thread's requests, beside the successes of others.
void failures_stay_in_their_group(const std::string& engine) {
    const Bytes data = noise(kPart, 2);
    ScratchFile file(data);
    const auto handle = make_handle(engine, 2);
    const int readable = ::open(file.path().c_str(), O_RDONLY | O_CLOEXEC);
    {
        std::vector<std::jthread> threads;
        for (size_t i = 0; i < kThreads; ++i) {
            threads.emplace_back([&, i] {
                for (int round = 0; round < 20; ++round) {
                    Bytes back(kPart);
                    if (i % 2 == 0) {
                        const auto outcome =
                            move(*handle, file.path(), back.data(), kPart, 0, false, false);
                        CHECK(outcome.completed == 1 && back == data);
                        continue;
                    }
                    const auto group = std::make_shared<OperationGroup>();
                    CHECK_THROWS(io::IoError, error,
                                 handle->prepare(request(back.data(), kPart, 1, false),
                                                 {file.path(), -1}, group, {})) {
                        CHECK(error.failure.error == ENODATA);
                    }
                    CHECK_THROWS(io::IoError, error,
                                 handle->prepare(request(back.data(), kPart, 0, true),
                                                 {"", readable}, group, {})) {
                        CHECK(error.failure.error == EBADF);
                    }
                    CHECK(group->done());
                }
            });
        }
    }
    ::close(readable);
    // In flight: the file shrinks between prepare() and enqueue().
    Bytes back(kPart);
    const auto group = std::make_shared<OperationGroup>();
    const auto operation =
        handle->prepare(request(back.data(), kPart, 0, false), {file.path(), -1}, group, {});
    file.truncate(kPart / 2);
    handle->enqueue({&operation, 1});
    group->wait({});
    const auto outcome = group->outcome();
    CHECK(outcome.completed == 0 && outcome.failures.size() == 1);
    CHECK(outcome.failures[0].error == ENODATA && outcome.failures[0].nbytes == kPart);
    CHECK(handle->stats().failed == 1 && handle->stats().in_flight == 0);
}

// Pinned memory comes and goes while workers hold it registered.
void pinned_memory_comes_and_goes(const std::string& engine) {
    const ScratchFile file(noise(kThreads * kPart, 3));
    const Bytes expected = file.contents();
    const auto handle = make_handle(engine, 2);
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < kThreads; ++i) {
        threads.emplace_back([&, i] {
            auto& registry = pin::deepspeed_pin_tensor_t::instance();
            for (int round = 0; round < 15; ++round) {
                auto region = registry.allocate(kPart, "test");
                std::byte* data = region->data();
                const auto group = std::make_shared<OperationGroup>();
                const auto operation = handle->prepare(request(data, kPart, i * kPart, false),
                                                       {file.path(), -1}, group, {});
                handle->enqueue({&operation, 1});
                if (round % 3 == 0) {
                    CHECK(registry.release(data));  // under the request
                }
                group->wait({});
                CHECK(group->outcome().completed == 1);
                CHECK(std::equal(data, data + kPart,
                                 expected.begin() + static_cast<std::ptrdiff_t>(i * kPart)));
                region.reset();
                if (round % 4 == 0) {
                    registry.empty_cache();
                }
            }
        });
    }
}

void a_worker_that_cannot_start() {
    std::atomic<int> asked{0};
    io::HandleOptions options;
    options.intra_op_parallelism = 3;
    const io::Backend inner = io::backends_named("posix").front();
    const auto make = [&](uint32_t depth) {
        if (++asked == 3) {
            throw io::EngineUnavailable("the third");
        }
        return inner.make(depth);
    };
    CHECK_THROWS(io::EngineUnavailable, error,
                 std::make_unique<IoHandle>(options, io::Backend{"posix", make})) {
        CHECK(std::string(error.what()) == "the third");
    }
    CHECK(asked == 3);
}

}  // namespace

int main() {
    a_worker_that_cannot_start();
    largest_on_the_calling_thread();
    const size_t descriptors = entries("/proc/self/fd");
    const size_t threads = entries("/proc/self/task");
    for (const io::EngineReport& report : io::probe_engines()) {
        if (!report.usable) {
            std::fprintf(stderr, "%s: %s\n", report.name.c_str(), report.reason.c_str());
            continue;
        }
        for (uint32_t workers : {1U, 3U}) {
            made_used_and_ended_in_different_threads(report.name, workers);
            destroying_drains(report.name, workers);
        }
        closed_while_in_use(report.name);
        failures_stay_in_their_group(report.name);
        pinned_memory_comes_and_goes(report.name);
    }
    pin::deepspeed_pin_tensor_t::instance().empty_cache();
    CHECK(entries("/proc/self/fd") == descriptors);
    // The kernel takes a joined thread off the list a moment later.
    for (int tries = 0; entries("/proc/self/task") != threads; ++tries) {
        CHECK(tries < 1'000'000);
        std::this_thread::yield();
    }
    return 0;
}
