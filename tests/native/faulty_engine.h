// A shipped engine to which happens what the schedule says.
#pragma once

#include <sys/mman.h>

#include <list>
#include <unordered_map>

#include "schedule.h"
#include "scripted_engine.h"
#include "sys/syscalls.h"

namespace deepnvme::test {

class FaultyEngine final : public io::Engine {
public:
    explicit FaultyEngine(std::unique_ptr<io::Engine> inner) : scripted_(std::move(inner)) {
        scripted_.fate = [this](const io::Transfer& t) { return schedule_.next_fate(t); };
    }

    // What a broken engine holds may still be carried out, so its memory must be there.
    ~FaultyEngine() override {
        for (const auto& [tag, transfer] : in_flight_) {
            const auto first = reinterpret_cast<uintptr_t>(transfer.data);
            const uintptr_t page = first & ~(sys::page_size() - 1);
            if (::msync(reinterpret_cast<void*>(page), first + transfer.nbytes - page, MS_ASYNC)) {
                schedule_.saw_unmapped();
            }
        }
    }

    int submit(std::span<const io::Transfer> transfers) override {
        scripted_.at_submit.push_back(schedule_.next_submit(transfers.front()));
        const int taken = scripted_.submit(transfers);
        for (int i = 0; i < taken; ++i) {
            const io::Transfer& transfer = transfers[static_cast<size_t>(i)];
            in_flight_[transfer.tag] = transfer;
        }
        schedule_.saw_in_flight(in_flight_.size());
        scripted_.seen.clear();
        scripted_.batches.clear();
        return taken;
    }

    int reap(std::span<io::Completion> completions, bool block) override {
        if (const int answer = schedule_.next_reap(); answer <= 0) {
            return answer;
        }
        if (scripted_.in_flight > 0) {
            collect(completions.size(), block && next_ready() == held_.end());
        }
        return deliver(completions);
    }

    void wake() override { scripted_.wake(); }

    int register_buffer(std::byte* data, size_t nbytes) override {
        const int answer = schedule_.next_register();
        return answer < 0 ? answer : scripted_.register_buffer(data, nbytes);
    }
    void unregister_buffer(int index) override { scripted_.unregister_buffer(index); }

private:
    struct Held {
        io::Completion completion;
        int waits_for;  // completions that go first
    };

    std::list<Held>::iterator next_ready() {
        return std::find_if(held_.begin(), held_.end(),
                            [](const Held& held) { return held.waits_for <= 0; });
    }

    void collect(size_t at_most, bool block) {
        std::vector<io::Completion> found(at_most);
        const int count = scripted_.reap(found, block);
        for (int i = 0; i < count; ++i) {
            held_.push_back({found[static_cast<size_t>(i)], schedule_.next_hold()});
        }
    }

    int deliver(std::span<io::Completion> completions) {
        size_t count = 0;
        while (count < completions.size() && !held_.empty()) {
            auto next = next_ready();
            if (next == held_.end()) {
                // Whoever waits for the others would wait for ever once there are none.
                if (count > 0 || scripted_.in_flight > 0) {
                    break;
                }
                next = held_.begin();
            }
            completions[count++] = next->completion;
            in_flight_.erase(next->completion.tag);
            held_.erase(next);
            for (Held& held : held_) {
                --held.waits_for;
            }
        }
        return static_cast<int>(count);
    }

    Schedule& schedule_ = Schedule::instance();
    ScriptedEngine scripted_;
    std::list<Held> held_;
    std::unordered_map<uint64_t, io::Transfer> in_flight_;
};

}  // namespace deepnvme::test
