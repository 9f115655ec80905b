// A pump over a scripted engine, and operations on scratch files to drive through it.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "check.h"
#include "io/posix_engine.h"
#include "io/pump.h"
#include "pin/page_alloc.h"
#include "scratch_file.h"
#include "scripted_engine.h"
#include "sys/syscalls.h"

namespace deepnvme::test {

constexpr size_t kPage = 4096;

// Page-aligned memory of exactly the pages that are needed, `shift` bytes in.
class Memory {
public:
    explicit Memory(size_t nbytes, size_t shift = 0)
        : pages_(nbytes + shift + 1, pin::PageMapping::Residency::unlocked),
          shift_(shift),
          nbytes_(nbytes) {}
    explicit Memory(const Bytes& bytes, size_t shift = 0) : Memory(bytes.size(), shift) {
        std::copy(bytes.begin(), bytes.end(), data());
    }
    std::byte* data() const { return pages_.data() + shift_; }
    Bytes bytes() const { return Bytes(data(), data() + nbytes_); }

private:
    pin::PageMapping pages_;
    size_t shift_;
    size_t nbytes_;
};

// One operation in a group of its own.
struct Started {
    std::shared_ptr<io::OperationGroup> group = std::make_shared<io::OperationGroup>();
    std::shared_ptr<io::File> file;
    std::shared_ptr<io::Operation> operation;

    bool completed() const {
        const auto outcome = group->outcome();
        return group->done() && outcome.completed == 1 && outcome.failures.empty();
    }
    io::Failure failure() const {
        const auto outcome = group->outcome();
        CHECK(group->done() && outcome.completed == 0 && outcome.failures.size() == 1);
        return outcome.failures[0];
    }
};

class Rig {
public:
    explicit Rig(const io::PumpOptions& options = {},
                 std::unique_ptr<io::Engine> inner = io::make_inline_engine(0))
        : engine(std::move(inner)), pump(engine, options, counters) {}

    // Puts the chunks of a request in line; run() moves them.
    Started start(io::Request request, const std::string& path, const io::PlanLimits& limits = {},
                  std::shared_ptr<io::File> file = nullptr) {
        Started started;
        started.file = file != nullptr ? std::move(file)
                                       : io::File::open({path, -1}, request.write, request.nbytes,
                                                        request.offset, {});
        const auto plan = io::Plan::make(reinterpret_cast<uintptr_t>(request.data), request.nbytes,
                                         request.offset, started.file->alignment(),
                                         started.file->direct(), request.layout != nullptr, limits);
        if (io::is_ragged(request.nbytes, request.offset, started.file->alignment().granule)) {
            started.file->need_buffered();
        }
        started.operation = std::make_shared<io::Operation>(std::move(request), started.file, plan,
                                                            started.group, activity);
        for (io::Chunk chunk; started.operation->next(chunk);) {
            line_.push_back({started.operation, chunk});
        }
        return started;
    }

    // What a worker does, until nothing is left. A pump that stops making progress is a failure.
    void run() {
        for (int turns = 0; !line_.empty() || !pump.idle(); ++turns) {
            CHECK(turns < 100'000);
            turn();
        }
        CHECK(activity->in_flight == 0 && engine.in_flight == 0);
    }
    void add() {
        while (pump.room() > 0 && !line_.empty()) {
            pump.add(std::move(line_.front()));
            line_.pop_front();
        }
    }
    void turn() {
        add();
        pump.submit();
        if (!pump.idle()) {
            pump.reap(true);
        }
    }

    uint64_t moved(bool write, io::Path path) const {
        return counters.nbytes[write][static_cast<size_t>(path)].get();
    }
    uint64_t moved(bool write) const {
        uint64_t total = 0;
        for (size_t path = 0; path < io::path_count; ++path) {
            total += counters.nbytes[write][path].get();
        }
        return total;
    }

    io::Counters counters;
    std::shared_ptr<io::Activity> activity = std::make_shared<io::Activity>();
    ScriptedEngine engine;
    io::Pump pump;

private:
    std::deque<io::Piece> line_;
};

inline io::Request reading(const Memory& memory, uint64_t nbytes, off_t offset = 0) {
    io::Request request;
    request.data = memory.data();
    request.nbytes = nbytes;
    request.offset = offset;
    return request;
}

inline io::Request writing(const Memory& memory, uint64_t nbytes, off_t offset = 0) {
    io::Request request = reading(memory, nbytes, offset);
    request.write = true;
    return request;
}

}  // namespace deepnvme::test
