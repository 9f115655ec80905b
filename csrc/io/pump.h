// One engine's transfers in flight: starts chunks, checks every completion, resubmits what is left
// of a short one. Owned by one thread, like its engine.
//
// A chunk's life:
//   1. add() gives it a slot. A staged chunk waits for a staging block; a staged write is copied
//      into it.
//   2. submit() hands slots to the engine. What it does not take stays first in line.
//   3. reap() looks at every result. Moved in full: a staged read is copied out, the chunk is over.
//      Short: the rest goes back in line, from an aligned position. EINTR or EAGAIN: again,
//      `patience` times, then once more by a plain blocking call. EINVAL or EOPNOTSUPP on a direct
//      transfer: the file goes through the page cache from now on. Anything else, or no progress at
//      the end of a file, fails the operation.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "io/counters.h"
#include "io/engine.h"
#include "io/fixed_buffers.h"
#include "io/operation.h"
#include "io/staging.h"
#include "io/trace.h"

namespace deepnvme::io {

// A chunk of an operation, taken from the queue.
struct Piece {
    std::shared_ptr<Operation> operation;
    Chunk chunk;
};

struct PumpOptions {
    uint32_t depth = 128;  // transfers in flight
    size_t staging_bytes = Staging::default_bytes;
    bool single_submit = false;  // one system call for each transfer
};

class Pump {
public:
    // `track`: where a trace shows its transfers; null for none.
    Pump(Engine& engine, const PumpOptions& options, Counters& counters,
         std::shared_ptr<TraceTrack> track = nullptr);
    ~Pump();

    size_t room() const { return free_.size(); }
    bool idle() const { return free_.size() == slots_.size(); }

    void add(Piece piece);  // room() > 0
    void submit();
    // Waits for a completion when `block`; deals with all that are there. Not when idle().
    void reap(bool block);
    // The registry has released a mapping.
    void forget_mapping(uint64_t serial) { fixed_.forget(serial); }
    // Bytes copied for transfers that submit() has not handed over yet.
    size_t copied_waiting() const { return copied_waiting_; }

private:
    struct Slot {
        Piece piece;
        uint32_t done = 0;    // bytes of the chunk moved
        bool direct = false;  // still past the page cache
        int fixed = -1;
        std::byte* block = nullptr;  // staging
        uint32_t stalls = 0;         // tries in a row without progress
        uint64_t started = 0;        // nanoseconds; of this try,
        uint64_t first_started = 0;  // and of the first, where there were several
        uint32_t retries = 0, short_transfers = 0;
    };

    bool prepare(uint32_t index);  // false: no staging block is free
    void prepare_starved();
    Transfer transfer(uint32_t index) const;
    void complete(uint32_t index, int64_t result);
    void advance(uint32_t index, uint32_t nbytes);
    void retry(uint32_t index);
    void again(uint32_t index);
    Path path(const Slot& slot) const;
    void trace(uint32_t index, uint64_t ended, int error);
    void count_retry(uint32_t index);
    bool leave_direct(uint32_t index);
    void move_by_blocking_call(uint32_t index);
    void succeed(uint32_t index);
    void fail(uint32_t index, int error, const char* detail = "");
    void release(uint32_t index, uint64_t nbytes);
    void abandon_all(int error);

    Engine& engine_;
    Counters& counters_;
    const size_t batch_limit_;
    Staging staging_;
    FixedBuffers fixed_;
    const std::shared_ptr<TraceTrack> track_;
    std::vector<Slot> slots_;
    std::vector<uint32_t> free_;
    std::deque<uint32_t> ready_;    // to be submitted, in order
    std::deque<uint32_t> starved_;  // waiting for a staging block
    std::vector<Transfer> batch_;
    std::vector<Completion> completions_;
    size_t in_engine_ = 0;
    size_t copied_waiting_ = 0;
    uint32_t broken_reaps_ = 0;  // failures of reap() in a row
    int broken_ = 0;             // errno of an engine that failed for good
};

}  // namespace deepnvme::io
