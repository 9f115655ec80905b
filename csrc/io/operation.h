// One request in flight: its chunks, its bytes done, its first error. It holds the memory until its
// last chunk is over.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>

#include "io/file.h"
#include "io/layout.h"
#include "io/operation_group.h"
#include "io/plan.h"
#include "io/trace_event.h"
#include "pin/deepspeed_pin_tensor.h"

namespace deepnvme::io {

// What a caller asks for.
struct Request {
    std::byte* data = nullptr;  // the first element
    uint64_t nbytes = 0;
    off_t offset = 0;
    bool write = false;
    bool validate = false;            // compare memory and file afterwards
    std::shared_ptr<Layout> layout;   // of strided memory; null for contiguous
    pin::RegionUse region;            // when the memory is pinned
    std::shared_ptr<void> keepalive;  // when it is not: let go by the last chunk
};

// What became of the requests of a handle. Whoever reads `in_flight` first finds all others that
// are over in the rest.
struct Activity {
    std::atomic<uint64_t> requests[2] = {0, 0};  // [write]
    std::atomic<uint64_t> in_flight{0};
    std::atomic<uint64_t> failed{0};
};

class Operation {
public:
    Operation(Request request, std::shared_ptr<File> file, Plan plan,
              std::shared_ptr<OperationGroup> group, std::shared_ptr<Activity> activity,
              std::unique_ptr<const TracedRequest> traced = nullptr);

    File& file() { return *file_; }
    bool write() const { return request_.write; }
    const pin::RegionUse& region() const { return request_.region; }
    std::byte* data(const Chunk& chunk) const { return request_.data + chunk.position; }
    off_t offset(const Chunk& chunk) const {
        return request_.offset + static_cast<off_t>(chunk.position);
    }
    uint64_t nbytes() const { return request_.nbytes; }
    const TracedRequest* traced() const { return traced_.get(); }  // null without a trace

    // Between a chunk's place in memory and a staging block, strides included.
    void copy_out(const Chunk& chunk, std::byte* block) const;
    void copy_in(const Chunk& chunk, const std::byte* block) const;

    // The next chunk to start; false when none is left. The queue's lock guards it.
    bool next(Chunk& chunk) { return plan_.next(chunk); }
    uint64_t chunks_left() const { return plan_.chunks_left(); }
    // Gives up the chunks that were not started; the number of them. The queue's lock guards it.
    uint64_t abandon_rest();

    bool failed() const { return failed_.load(std::memory_order_acquire); }
    void fail(int error, const std::string& detail = {});  // the first call counts
    // `chunks` are over, with `nbytes` moved between them. The last one lets the memory and the
    // file go and reports to the group. A request of no bytes is over with finish(0, 0).
    void finish(uint64_t chunks, uint64_t nbytes);

    // Keeps the memory for ever: for a transfer that the kernel may still carry out although its
    // engine is broken.
    void leak_memory();

private:
    void validate();

    Request request_;
    std::shared_ptr<File> file_;
    std::shared_ptr<OperationGroup> group_;
    std::shared_ptr<Activity> activity_;
    const std::unique_ptr<const TracedRequest> traced_;
    Plan plan_;
    std::atomic<uint64_t> chunks_open_;
    std::atomic<uint64_t> nbytes_done_{0};
    std::atomic<bool> failed_{false};
    std::mutex failure_mutex_;
    std::optional<Failure> failure_;
};

}  // namespace deepnvme::io
