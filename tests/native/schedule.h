// What goes wrong, and when: written by a Python test, consumed by the engines and system calls of
// this process, in the order in which they ask. Once an answer list is used up, nothing goes wrong.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "io/engine.h"
#include "scripted_engine.h"

namespace deepnvme::test {

// Answers to successive questions; `otherwise` after the last.
template <typename Answer>
class Answers {
public:
    explicit Answers(Answer otherwise, std::vector<Answer> answers = {})
        : answers_(std::move(answers)), otherwise_(otherwise) {}
    Answer next() { return position_ < answers_.size() ? answers_[position_++] : otherwise_; }

private:
    std::vector<Answer> answers_;
    size_t position_ = 0;
    Answer otherwise_;
};

constexpr int64_t all_bytes = INT64_MAX;  // a fate: nothing happens to the transfer
constexpr int all_transfers = INT32_MAX;  // of a submit()
constexpr int as_usual = 1;               // of a reap()
constexpr int spurious = 0;               // of a reap(): returns at once, with nothing

struct Faults {
    Answers<int> submits{all_transfers};  // take at most so many, or -errno
    Answers<int> reaps{as_usual};         // as_usual, spurious, or -errno
    Answers<int64_t> fates{all_bytes};    // of a transfer: move at most so many bytes, or -errno
    Answers<int> holds{0};                // others that a completion lets pass first
    Answers<int> registers{0};            // of register_buffer(): 0, or -errno
    bool refuse_direct = false;           // EINVAL for every transfer on an O_DIRECT descriptor
    bool refuse_fixed = false;            // EFAULT for every transfer from a registered buffer
    int64_t dies_after = -1;              // reaps, after which every one fails with EIO

    // Calls first .. first + count - 1 of `call` ("*": of any) fail with `error`.
    struct Call {
        std::string call;
        uint64_t first;
        uint64_t count;
        int error;
        uint64_t seen = 0;
    };
    std::vector<Call> calls;
};

class Schedule {
public:
    static Schedule& instance();

    // `engines`: whether engines made from now on ask this schedule.
    void install(Faults faults, bool engines);
    void clear();  // nothing goes wrong from here on; the report stays

    bool wraps_engines();
    int next_submit(const io::Transfer& first);
    int next_reap();
    Fate next_fate(const io::Transfer& transfer);
    int next_hold();
    int next_register();
    int next_call(const char* call);

    // A fault that a transfer met.
    struct Met {
        std::string path;
        io::Transfer transfer;
        bool direct;
        int64_t result;  // bytes, or -errno
    };
    struct Report {
        std::vector<Met> transfers;
        std::vector<std::string> calls;  // every system call, in order
        std::vector<std::pair<std::string, int>> failed_calls;
        size_t most_in_flight = 0;  // in one engine
        size_t unmapped = 0;        // transfers of a dead engine whose memory was gone before it
    };
    Report report();
    void saw_in_flight(size_t transfers);
    void saw_unmapped();

private:
    void meet(const io::Transfer& transfer, int64_t result);

    std::mutex mutex_;
    Faults faults_;
    Report report_;
    bool engines_ = false;
    int64_t reaps_ = 0;
};

}  // namespace deepnvme::test
