// An engine around another one, which does to transfers what a test's script says: takes only some,
// refuses, moves fewer bytes, fails, and answers late and in another order. It also checks what the
// pump asks of it.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "io/engine.h"

namespace deepnvme::test {

inline bool opened_direct(int fd) { return (::fcntl(fd, F_GETFL) & O_DIRECT) != 0; }

// What becomes of one transfer.
struct Fate {
    enum class Kind { moved, cut, failed } kind = Kind::moved;
    uint32_t nbytes = 0;  // cut: bytes that are moved, really and no others
    int error = 0;        // failed: without moving anything

    static Fate pass() { return {}; }
    static Fate cut(uint32_t nbytes) { return {Kind::cut, nbytes, 0}; }
    static Fate fail(int error) { return {Kind::failed, 0, error}; }
};

class ScriptedEngine final : public io::Engine {
public:
    explicit ScriptedEngine(std::unique_ptr<io::Engine> inner) : inner_(std::move(inner)) {}

    // ---- the script ----

    // The answers of the next calls of submit(): take at most so many, or -errno. Afterwards all
    // are taken.
    std::deque<int> at_submit;
    int always_at_submit = 0;    // -errno of every call of submit()
    size_t capacity = SIZE_MAX;  // -EAGAIN when so many are in flight
    std::deque<int> at_reap;     // the -errnos of the next calls of reap()
    int always_at_reap = 0;
    // Asked instead of the lists: how many to take, or -errno; and 0, or -errno.
    std::function<int(std::span<const io::Transfer>)> answer_submit;
    std::function<int()> answer_reap;
    std::function<Fate(const io::Transfer&)> fate;  // of each transfer that is taken
    // A number below the one given. Where there is one, completions wait for their turn: reap()
    // gives out one to three of those there are, in the order that it picks.
    std::function<size_t(size_t)> pick;
    void reorder(uint64_t seed) {
        pick = [random = std::mt19937_64(seed)](size_t below) mutable { return random() % below; };
    }
    // register_buffer answers indices 0, 1, ... instead of what the inner engine says.
    bool registers = false;
    int register_error = 0;  // -errno of every call of register_buffer()

    // ---- what it has seen ----

    struct Seen {
        io::Transfer transfer;
        bool direct;  // the descriptor was O_DIRECT
    };
    std::vector<Seen> seen;       // transfers taken, in order
    std::vector<size_t> batches;  // transfers offered by each call of submit()
    std::vector<int> registered;  // indices, in order
    std::vector<int> unregistered;
    size_t registrations_asked = 0;
    size_t in_flight = 0;

    // ---- Engine ----

    int submit(std::span<const io::Transfer> transfers) override {
        CHECK(!transfers.empty());
        batches.push_back(transfers.size());
        if (always_at_submit != 0) {
            return always_at_submit;
        }
        size_t limit = transfers.size();
        if (answer_submit || !at_submit.empty()) {
            const int answer = answer_submit ? answer_submit(transfers) : next_of(at_submit);
            if (answer < 0) {
                return answer;
            }
            limit = std::min(limit, static_cast<size_t>(answer));
        }
        if (in_flight >= capacity) {
            return -EAGAIN;
        }
        limit = std::min(limit, capacity - in_flight);
        for (const io::Transfer& transfer : transfers.first(limit)) {
            take(transfer);
        }
        return static_cast<int>(limit);
    }

    int reap(std::span<io::Completion> completions, bool block) override {
        CHECK(!completions.empty());
        if (always_at_reap != 0) {
            return always_at_reap;
        }
        if (!at_reap.empty()) {
            return next_of(at_reap);
        }
        if (const int answer = answer_reap ? answer_reap() : 0; answer != 0) {
            return answer;
        }
        CHECK(!block || in_flight > 0);  // it would wait for ever
        collect(completions.size(), block && done_.empty());
        size_t count = std::min(done_.size(), completions.size());
        if (pick && count > 0) {
            count = std::min<size_t>(count, 1 + pick(3));
        }
        for (size_t i = 0; i < count; ++i) {
            const size_t next = pick ? pick(done_.size()) : 0;
            completions[i] = done_[next];
            done_.erase(done_.begin() + static_cast<std::ptrdiff_t>(next));
        }
        in_flight -= count;
        return static_cast<int>(count);
    }

    void wake() override { inner_->wake(); }

    int register_buffer(std::byte* data, size_t nbytes) override {
        ++registrations_asked;
        if (register_error != 0) {
            return register_error;
        }
        if (!registers) {
            return inner_->register_buffer(data, nbytes);
        }
        const auto index = static_cast<int>(buffers_.size());
        buffers_[index] = {data, nbytes};
        registered.push_back(index);
        return index;
    }

    void unregister_buffer(int index) override {
        if (!registers) {
            inner_->unregister_buffer(index);
            return;
        }
        CHECK(buffers_.at(index).second > 0);  // once
        buffers_[index].second = 0;
        unregistered.push_back(index);
    }

private:
    static int next_of(std::deque<int>& answers) {
        const int answer = answers.front();
        answers.pop_front();
        return answer;
    }

    void take(io::Transfer transfer) {
        CHECK(transfer.nbytes > 0 && transfer.nbytes <= io::max_transfer_bytes);
        const bool direct = opened_direct(transfer.fd);
        if (direct) {
            CHECK(transfer.offset % 512 == 0 && transfer.nbytes % 512 == 0);
        }
        if (registers && transfer.buffer_index >= 0) {
            const auto& [data, nbytes] = buffers_.at(transfer.buffer_index);
            CHECK(transfer.data >= data && transfer.data + transfer.nbytes <= data + nbytes);
        }
        seen.push_back({transfer, direct});
        ++in_flight;
        const Fate what = fate ? fate(transfer) : Fate::pass();
        if (what.kind == Fate::Kind::failed) {
            done_.push_back({transfer.tag, -what.error});
        } else if (what.kind == Fate::Kind::cut && what.nbytes < transfer.nbytes) {
            done_.push_back({transfer.tag, move_exactly(transfer, what.nbytes)});
        } else {
            if (registers) {
                transfer.buffer_index = -1;  // the inner engine does not know it
            }
            CHECK(inner_->submit({&transfer, 1}) == 1);
            ++in_inner_;
        }
    }

    // Through another descriptor without O_DIRECT: only so can the kernel be made to move a part of
    // a sector and leave the rest.
    static int64_t move_exactly(const io::Transfer& t, size_t nbytes) {
        const std::string path = "/proc/self/fd/" + std::to_string(t.fd);
        const int fd = ::open(path.c_str(), (t.write ? O_WRONLY : O_RDONLY) | O_CLOEXEC);
        CHECK(fd >= 0);
        const ssize_t moved = t.write ? ::pwrite(fd, t.data, nbytes, t.offset)
                                      : ::pread(fd, t.data, nbytes, t.offset);
        CHECK(moved == static_cast<ssize_t>(nbytes));
        ::close(fd);
        return moved;
    }

    void collect(size_t at_most, bool block) {
        std::vector<io::Completion> found(at_most);
        while (in_inner_ > 0) {
            const int count = inner_->reap(found, block);
            CHECK(count >= 0);
            done_.insert(done_.end(), found.begin(), found.begin() + count);
            in_inner_ -= static_cast<size_t>(count);
            if (count == 0 || block) {
                return;
            }
        }
    }

    std::unique_ptr<io::Engine> inner_;
    size_t in_inner_ = 0;
    std::deque<io::Completion> done_;
    std::map<int, std::pair<std::byte*, size_t>> buffers_;
};

}  // namespace deepnvme::test
