#include "io/pump.h"

#include <algorithm>
#include <cerrno>
#include <new>

#include "sys/clock.h"
#include "sys/syscalls.h"

namespace deepnvme::io {
namespace {

constexpr uint32_t patience = 16;  // tries without progress before a plain blocking call
// Failures of the engine itself, in a row, before it is given up.
constexpr uint32_t reap_patience = 10'000;
constexpr size_t completions_at_once = 128;

bool transient(int64_t result) { return result == -EAGAIN || result == -EINTR || result == -EBUSY; }

}  // namespace

Pump::Pump(Engine& engine, const PumpOptions& options, Counters& counters,
           std::shared_ptr<TraceTrack> track)
    : engine_(engine),
      counters_(counters),
      batch_limit_(options.single_submit ? 1 : options.depth),
      staging_(options.staging_bytes),
      fixed_(engine),
      track_(std::move(track)),
      slots_(options.depth),
      completions_(std::min<size_t>(options.depth, completions_at_once)) {
    free_.reserve(options.depth);
    for (uint32_t index = options.depth; index-- > 0;) {
        free_.push_back(index);
    }
}

Pump::~Pump() = default;

void Pump::add(Piece piece) {
    const uint32_t index = free_.back();
    free_.pop_back();
    Slot& slot = slots_[index];
    slot = Slot{};
    slot.direct = piece.chunk.direct && piece.operation->file().direct();
    slot.piece = std::move(piece);
    if (broken_ != 0) {
        fail(index, broken_, "the engine has failed for good");
        return;
    }
    // In order: whoever waits for a staging block already goes first.
    if (slot.piece.chunk.staged && !starved_.empty()) {
        starved_.push_back(index);
    } else if (prepare(index)) {
        ready_.push_back(index);
    } else if (slot.piece.operation != nullptr) {
        starved_.push_back(index);
    }
}

// False with the slot still taken: no block is free. False with the slot given up: it failed.
bool Pump::prepare(uint32_t index) {
    Slot& slot = slots_[index];
    Operation& operation = *slot.piece.operation;
    const Chunk& chunk = slot.piece.chunk;
    if (chunk.staged) {
        try {
            slot.block = staging_.take(chunk.nbytes);
        } catch (const std::bad_alloc&) {
            fail(index, ENOMEM, "no memory for staging blocks");
            return false;
        }
        if (slot.block == nullptr) {
            return false;
        }
        counters_.staging.set(staging_.mapping().size());
        if (operation.write()) {
            operation.copy_out(chunk, slot.block);
            copied_waiting_ += chunk.nbytes;
        }
        // Serial 0 is no mapping of the registry's: it stands for the staging blocks.
        slot.fixed = fixed_.index_of(0, staging_.mapping().data(), staging_.mapping().size(),
                                     slot.block, chunk.nbytes);
    } else if (slot.direct && operation.region()) {
        const pin::PageMapping& pages = operation.region()->mapping()->pages;
        slot.fixed = fixed_.index_of(operation.region()->mapping()->serial, pages.data(),
                                     pages.size(), operation.data(chunk), chunk.nbytes);
    }
    return true;
}

void Pump::prepare_starved() {
    while (!starved_.empty()) {
        const uint32_t index = starved_.front();
        if (prepare(index)) {
            ready_.push_back(index);
        } else if (slots_[index].piece.operation != nullptr) {
            return;
        }
        starved_.pop_front();
    }
}

Transfer Pump::transfer(uint32_t index) const {
    const Slot& slot = slots_[index];
    Operation& operation = *slot.piece.operation;
    const Chunk& chunk = slot.piece.chunk;
    std::byte* start = slot.block != nullptr ? slot.block : operation.data(chunk);
    File& file = operation.file();
    return {start + slot.done,
            operation.offset(chunk) + slot.done,
            index,
            chunk.nbytes - slot.done,
            slot.direct ? file.direct_descriptor() : file.buffered_descriptor(),
            slot.fixed,
            operation.write()};
}

void Pump::submit() {
    copied_waiting_ = 0;
    uint32_t refusals = 0;
    for (;;) {
        if (ready_.empty()) {
            prepare_starved();  // what ended since may have given staging blocks back
        }
        if (ready_.empty()) {
            return;
        }
        batch_.clear();
        for (size_t i = 0; i < std::min<size_t>(ready_.size(), batch_limit_); ++i) {
            Slot& slot = slots_[ready_[i]];
            slot.direct = slot.direct && slot.piece.operation->file().direct();
            batch_.push_back(transfer(ready_[i]));
        }
        const uint64_t started = sys::monotonic_ns();
        const int taken = engine_.submit(batch_);
        if (taken > 0) {
            for (int i = 0; i < taken; ++i) {
                slots_[ready_.front()].started = started;
                ready_.pop_front();
            }
            in_engine_ += static_cast<size_t>(taken);
            counters_.in_flight.set(in_engine_);
            refusals = 0;
            continue;
        }
        if (taken == 0 || transient(taken)) {
            counters_.retries.add(1);
            if (in_engine_ > 0) {
                return;  // reaping makes room; the rest is still first in line
            }
            if (++refusals > patience) {
                const uint32_t index = ready_.front();
                ready_.pop_front();
                move_by_blocking_call(index);
                refusals = 0;
            }
            continue;
        }
        // An error at submission is about the first transfer (io_submit(2)).
        const uint32_t index = ready_.front();
        ready_.pop_front();
        complete(index, taken);
    }
}

void Pump::reap(bool block) {
    const int count = engine_.reap(completions_, block && in_engine_ > 0);
    if (count < 0) {
        counters_.retries.add(1);
        if (!transient(count) && ++broken_reaps_ > reap_patience) {
            abandon_all(-count);
        }
        return;
    }
    broken_reaps_ = 0;
    for (int i = 0; i < count; ++i) {
        const Completion& completion = completions_[static_cast<size_t>(i)];
        --in_engine_;
        counters_.in_flight.set(in_engine_);
        complete(static_cast<uint32_t>(completion.tag), completion.result);
        if (!starved_.empty()) {
            submit();  // at once: the next copy takes a while
        }
    }
    submit();
}

void Pump::complete(uint32_t index, int64_t result) {
    Slot& slot = slots_[index];
    if (result > 0) {
        advance(index, static_cast<uint32_t>(result));
    } else if (transient(result)) {
        retry(index);
    } else if ((result == -EINVAL || result == -EOPNOTSUPP) && slot.direct) {
        if (slot.piece.operation->file().refuse_direct()) {
            counters_.direct_refused.add(1);
        }
        slot.direct = false;
        count_retry(index);
        again(index);
    } else if ((result == -EFAULT || result == -EOPNOTSUPP) && slot.fixed >= 0) {
        slot.fixed = -1;  // some kernels fail certain fixed-buffer transfers (liburing issue 994)
        count_retry(index);
        again(index);
    } else if (result < 0) {
        fail(index, static_cast<int>(-result));
    } else if (slot.piece.operation->write()) {
        fail(index, EIO, "the kernel wrote nothing");
    } else {
        fail(index, ENODATA, "end of file");
    }
}

// A transfer has moved `nbytes` (> 0).
void Pump::advance(uint32_t index, uint32_t nbytes) {
    Slot& slot = slots_[index];
    Operation& operation = *slot.piece.operation;
    const Chunk& chunk = slot.piece.chunk;
    const uint32_t before = slot.done;
    slot.stalls = 0;
    slot.done += nbytes;
    if (slot.done >= chunk.nbytes) {
        succeed(index);
        return;
    }
    counters_.short_transfers.add(1);
    ++slot.short_transfers;
    if (slot.direct) {
        const int64_t size = operation.write() ? -1 : operation.file().current_size();
        if (size >= 0 && operation.offset(chunk) + slot.done >= size) {
            fail(index, ENODATA, "end of file");
            return;
        }
        // Direct I/O goes on from an aligned position only: the bytes behind it move once more.
        // Where that would be no progress, the page cache takes over.
        slot.done &= ~(operation.file().alignment().granule - 1);
        if (slot.done <= before) {
            slot.done = before;
            if (!leave_direct(index)) {
                return;
            }
        }
    }
    again(index);
}

// Once more in line.
void Pump::again(uint32_t index) {
    Slot& slot = slots_[index];
    slot.first_started = slot.first_started == 0 ? slot.started : slot.first_started;
    ready_.push_back(index);
}

void Pump::count_retry(uint32_t index) {
    counters_.retries.add(1);
    ++slots_[index].retries;
}

// The rest of this chunk goes through the page cache. False when the file cannot be had that way:
// the chunk has failed.
bool Pump::leave_direct(uint32_t index) {
    try {
        slots_[index].piece.operation->file().need_buffered();
    } catch (const IoError& error) {
        fail(index, error.failure.error, "no second descriptor for the rest of a short transfer");
        return false;
    }
    slots_[index].direct = false;
    return true;
}

void Pump::retry(uint32_t index) {
    count_retry(index);
    if (++slots_[index].stalls <= patience) {
        again(index);
    } else {
        move_by_blocking_call(index);
    }
}

// The last resort for a transfer that an engine does not take: slow, but it moves or says why not.
void Pump::move_by_blocking_call(uint32_t index) {
    const Transfer t = transfer(index);
    Slot& slot = slots_[index];
    slot.first_started = slot.first_started == 0 ? slot.started : slot.first_started;
    slot.started = sys::monotonic_ns();
    for (uint32_t tries = 0;; ++tries) {
        const ssize_t result = t.write ? sys::pwrite(t.fd, t.data, t.nbytes, t.offset)
                                       : sys::pread(t.fd, t.data, t.nbytes, t.offset);
        if (!transient(result)) {
            complete(index, result);
            return;
        }
        if (tries == patience) {
            fail(index, static_cast<int>(-result));
            return;
        }
        count_retry(index);
    }
}

void Pump::succeed(uint32_t index) {
    Slot& slot = slots_[index];
    Operation& operation = *slot.piece.operation;
    const Chunk& chunk = slot.piece.chunk;
    const Path path = this->path(slot);
    const uint64_t ended = sys::monotonic_ns();
    counters_.latency.record(ended - slot.started);
    if (slot.block != nullptr && !operation.write()) {
        operation.copy_in(chunk, slot.block);
    }
    counters_.nbytes[operation.write()][static_cast<size_t>(path)].add(chunk.nbytes);
    counters_.transfers[operation.write()][static_cast<size_t>(path)].add(1);
    if (track_ != nullptr) [[unlikely]] {
        trace(index, ended, 0);
    }
    release(index, chunk.nbytes);
}

Path Pump::path(const Slot& slot) const {
    return slot.block != nullptr ? Path::staged
           : !slot.direct        ? Path::buffered
           : slot.fixed >= 0     ? Path::fixed
                                 : Path::direct;
}

void Pump::trace(uint32_t index, uint64_t ended, int error) {
    const Slot& slot = slots_[index];
    const Operation& operation = *slot.piece.operation;
    const uint64_t started = slot.first_started != 0 ? slot.first_started : slot.started;
    TraceEvent event;
    event.write = operation.write();
    event.path = path(slot);
    event.error = error;
    event.begin = started != 0 ? started : ended;  // 0: it failed before it could start
    event.end = ended;
    event.offset = operation.offset(slot.piece.chunk);
    event.nbytes = slot.piece.chunk.nbytes;
    event.nbytes_done = error == 0 ? slot.piece.chunk.nbytes : slot.done;
    event.retries = slot.retries;
    event.short_transfers = slot.short_transfers;
    track_->record(event, index, *operation.traced());
}

void Pump::fail(uint32_t index, int error, const char* detail) {
    Slot& slot = slots_[index];
    slot.piece.operation->fail(error, detail);
    if (track_ != nullptr) {
        trace(index, sys::monotonic_ns(), error);
    }
    // Bytes of a staged read that stayed in the staging block did not reach the tensor.
    const bool reached = !slot.piece.chunk.staged || slot.piece.operation->write();
    release(index, reached ? slot.done : 0);
}

void Pump::release(uint32_t index, uint64_t nbytes) {
    Slot& slot = slots_[index];
    if (slot.block != nullptr) {
        staging_.give_back(slot.block, slot.piece.chunk.nbytes);
        slot.block = nullptr;
    }
    const std::shared_ptr<Operation> operation = std::move(slot.piece.operation);
    free_.push_back(index);
    counters_.devices[operation->file().device_place()][operation->write()].add(nbytes);
    operation->finish(1, nbytes);
}

// The engine fails for good. What it holds may still be carried out by the kernel, so that memory
// is never let go.
void Pump::abandon_all(int error) {
    broken_ = error;
    for (uint32_t index = 0; index < slots_.size(); ++index) {
        if (slots_[index].piece.operation == nullptr) {
            continue;
        }
        slots_[index].piece.operation->leak_memory();
        slots_[index].block = nullptr;
        fail(index, error, "the engine has failed for good");
    }
    staging_.leak();
    ready_.clear();
    starved_.clear();
    in_engine_ = 0;
    counters_.in_flight.set(0);
}

}  // namespace deepnvme::io
