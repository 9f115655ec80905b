#include "io/io_handle.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include "io/descriptor_budget.h"
#include "io/inline_pumps.h"
#include "io/work_queue.h"
#include "io/worker.h"
#include "sys/syscalls.h"

namespace deepnvme::io {
namespace {

constexpr size_t most_open_files = 1024;

std::atomic<uint64_t> next_number{1};

// A quarter of what the process may have open: several handles and the program itself share it.
size_t open_file_limit() {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    return std::clamp<size_t>(limit.rlim_cur / 4, 4, most_open_files);
}

// Nothing can be read beyond the end of a file, nor written beyond that of a device.
void check_end(const File& file, bool write, uint64_t nbytes, off_t offset) {
    const uint64_t end = static_cast<uint64_t>(offset) + nbytes;
    if (nbytes > 0 && end > file.size() && (!write || !file.regular())) {
        throw IoError(file.failure(write, offset, nbytes, write ? ENOSPC : ENODATA,
                                   "it ends at byte " + std::to_string(end) + ", but there are " +
                                       std::to_string(file.size()) + " bytes"));
    }
}

// Of a request that came too late.
void cancel(Operation& operation) {
    operation.fail(ECANCELED, "the handle was closed meanwhile");
    operation.finish(operation.abandon_rest(), 0);
}

// A handle's part in a trace; null when it is not traced.
class TraceUse {
public:
    explicit TraceUse(const std::string& path)
        : trace_(path.empty() ? nullptr : &Trace::open(path)) {}
    ~TraceUse() { close(); }
    TraceUse(const TraceUse&) = delete;
    TraceUse& operator=(const TraceUse&) = delete;

    Trace* get() const { return trace_; }
    void close() {
        if (trace_ != nullptr && !std::exchange(closed_, true)) {
            trace_->close();
        }
    }

private:
    Trace* const trace_;
    bool closed_ = false;
};

}  // namespace

void check_file_range(uint64_t nbytes, off_t offset) {
    constexpr uint64_t last = INT64_MAX;
    if (offset < 0) {
        throw std::invalid_argument("file_offset is " + std::to_string(offset) +
                                    ", but must not be negative; give the byte of the file to "
                                    "start at");
    }
    if (nbytes > last - static_cast<uint64_t>(offset)) {
        throw std::invalid_argument("file_offset " + std::to_string(offset) + " plus " +
                                    std::to_string(nbytes) + " bytes is beyond " +
                                    std::to_string(last) +
                                    ", the end of any file; use a smaller file_offset");
    }
}

struct IoHandle::Parts {
    Parts(const HandleOptions& options, const std::string& name)
        : trace(options.trace),
          queue(options.intra_op_parallelism),
          inline_pumps(trace.get(), name),
          budget(std::make_shared<DescriptorBudget>(open_file_limit())) {}

    TraceUse trace;
    WorkQueue queue;
    std::vector<std::unique_ptr<Worker>> workers;
    InlinePumps inline_pumps;
    std::shared_ptr<DescriptorBudget> budget;
    std::shared_ptr<Activity> activity = std::make_shared<Activity>();
    std::atomic<uint64_t> refused_at_open{0};
    // Shared by whoever starts requests, or runs one inline; exclusive for close(), once it is
    // `closed`: what was started before is drained, what comes after is refused.
    std::shared_mutex closing;
    std::atomic<bool> closed{false};
    std::mutex ending;  // of the workers, by one closer
};

IoHandle::IoHandle(const HandleOptions& options, Backend backend)
    : options_(options), backend_(std::move(backend)), number_(next_number.fetch_add(1)) {
    options_.check();
    const std::string name = "handle " + std::to_string(number_);
    parts_ = std::make_unique<Parts>(options_, name);
    try {
        for (uint32_t i = 0; i < options_.intra_op_parallelism; ++i) {
            std::shared_ptr<TraceTrack> track;
            if (Trace* trace = this->trace(); trace != nullptr) {
                track =
                    trace->add_track(name + " worker " + std::to_string(i), options_.queue_depth);
            }
            parts_->workers.push_back(
                std::make_unique<Worker>(parts_->queue, options_, backend_.make, std::move(track)));
        }
    } catch (...) {
        close();
        throw;
    }
}

IoHandle::~IoHandle() {
    if (process_.is_this_one()) {
        close();
    } else {
        static_cast<void>(parts_.release());  // its threads and rings are the parent's
    }
}

Trace* IoHandle::trace() const { return parts_->trace.get(); }

void IoHandle::require_owner() const { process_.require("handle"); }

void IoHandle::require_usable() const { static_cast<void>(usable()); }

IoHandle::Parts& IoHandle::usable() const {
    require_owner();
    if (parts_->closed.load(std::memory_order_acquire)) {
        throw HandleClosed("this handle is closed; create a new one");
    }
    return *parts_;
}

std::shared_ptr<File> IoHandle::open(const FileName& name, bool write, uint64_t nbytes,
                                     off_t offset, const Waiting& waiting, OpenFiles* open_files) {
    Parts& parts = usable();
    check_file_range(nbytes, offset);
    std::weak_ptr<File>* known = nullptr;
    if (open_files != nullptr && name.descriptor < 0) {
        // Small requests are opened without O_DIRECT, which large ones want: two entries.
        const bool large = has_whole_unit(nbytes, offset, static_cast<uint32_t>(sys::page_size()));
        known = &(*open_files)[name.path + (large ? '\1' : '\0')];
    }
    std::shared_ptr<File> file;
    while (file == nullptr) {
        const uint64_t releases = parts.budget->releases();  // before the attempt: none is missed
        std::shared_ptr<File> found = name.opened;
        if (found == nullptr && known != nullptr) {
            found = known->lock();
        }
        try {
            const bool anew = found == nullptr;
            if (anew) {
                found = File::open(name, write, nbytes, offset, parts.budget->acquire(waiting));
                if (found->refused_at_open()) {
                    parts.refused_at_open.fetch_add(1, std::memory_order_relaxed);
                }
            }
            if (is_ragged(nbytes, offset, found->alignment().granule)) {
                found->need_buffered();  // here, where a lack of descriptors can be waited for
            }
            if (anew) {
                found->count_as_open();
            }
            file = std::move(found);
        } catch (IoError& error) {
            found.reset();  // held here it could not be given back
            // Descriptors held by requests in flight come back; others do not.
            const bool out_of_descriptors =
                error.failure.error == EMFILE || error.failure.error == ENFILE;
            if (!out_of_descriptors || name.opened != nullptr ||
                !parts.budget->wait_for_release(releases, waiting)) {
                error.failure.offset = offset;
                error.failure.nbytes = nbytes;
                throw;
            }
        }
    }
    check_end(*file, write, nbytes, offset);
    if (known != nullptr) {
        *known = file;
    }
    return file;
}

std::shared_ptr<Operation> IoHandle::prepare(Request request, const FileName& name,
                                             const std::shared_ptr<OperationGroup>& group,
                                             const Waiting& waiting, OpenFiles* open_files) {
    const std::shared_ptr<File> file =
        open(name, request.write, request.nbytes, request.offset, waiting, open_files);
    const uint64_t end = static_cast<uint64_t>(request.offset) + request.nbytes;
    const PlanLimits limits{options_.block_size,
                            std::min<size_t>(options_.block_size, PlanLimits{}.staged_block)};
    auto plan =
        Plan::make(reinterpret_cast<uintptr_t>(request.data), request.nbytes, request.offset,
                   file->alignment(), file->direct(), request.layout != nullptr, limits);
    // Blocks first: transfers then run side by side instead of extending the file one after the
    // other, and a full disk is known before a byte has moved.
    if (request.write && file->regular() && end > file->size() && plan.chunks_left() > 1) {
        if (const int error = file->reserve(request.offset, request.nbytes); error != 0) {
            throw IoError(file->failure(true, request.offset, request.nbytes, error));
        }
    }
    auto traced = trace() != nullptr ? trace()->begin_request(file->path()) : nullptr;
    return std::make_shared<Operation>(std::move(request), file, plan, group, parts_->activity,
                                       std::move(traced));
}

void IoHandle::enqueue(std::span<const std::shared_ptr<Operation>> operations) {
    std::vector<std::shared_ptr<Operation>> with_work;
    with_work.reserve(operations.size());
    for (const auto& operation : operations) {
        if (operation->chunks_left() == 0) {
            operation->finish(0, 0);
        } else if (const int error = operation->file().make_blocking(); error != 0) {
            operation->fail(error);
            operation->finish(operation->abandon_rest(), 0);
        } else {
            with_work.push_back(operation);
        }
    }
    const std::shared_lock lock(parts_->closing);
    if (parts_->closed.load(std::memory_order_acquire)) {
        for (const auto& operation : with_work) {
            cancel(*operation);
        }
        return;
    }
    parts_->queue.push(with_work);
}

bool IoHandle::runs_inline(uint64_t nbytes) const {
    return options_.inline_small &&
           nbytes <= std::min<uint64_t>(options_.block_size, InlinePumps::largest_request);
}

void IoHandle::run(const std::shared_ptr<Operation>& operation, OperationGroup& group,
                   const Interrupt& interrupt) {
    if (operation->chunks_left() > 0 && runs_inline(operation->nbytes())) {
        const std::shared_lock lock(parts_->closing);
        if (parts_->closed.load(std::memory_order_acquire)) {
            cancel(*operation);
        } else {
            parts_->inline_pumps.run(operation);
        }
    } else {
        enqueue({&operation, 1});
    }
    group.wait(interrupt);
}

void IoHandle::sync_file(const FileName& name) {
    static_cast<void>(usable());
    // The caller's descriptor as it is: fsync needs neither reading nor writing.
    const bool own = name.descriptor < 0;
    const int descriptor =
        own ? sys::open(name.path.c_str(), O_RDONLY | O_NONBLOCK) : name.descriptor;
    int result = descriptor;
    if (descriptor >= 0) {
        result = sys::sync(descriptor);
        if (own) {
            sys::close(descriptor);
        }
    }
    if (result < 0) {
        throw IoError({-result, {}, name.text(), 0, 0, 0, Action::sync});
    }
}

void IoHandle::close() {
    require_owner();
    parts_->closed.store(true, std::memory_order_release);
    {
        const std::unique_lock nobody_starts(parts_->closing);
    }
    const std::lock_guard lock(parts_->ending);
    parts_->queue.stop();
    for (auto& worker : parts_->workers) {
        worker->join();
    }
    parts_->trace.close();
}

bool IoHandle::closed() const {
    return !process_.is_this_one() || parts_->closed.load(std::memory_order_acquire);
}

IoHandle::Stats IoHandle::stats() const {
    require_owner();
    Stats stats;
    // First: what is over by then is counted in all that follows.
    stats.in_flight = parts_->activity->in_flight.load(std::memory_order_acquire);
    stats.failed = parts_->activity->failed.load(std::memory_order_relaxed);
    for (size_t write = 0; write < 2; ++write) {
        stats.requests[write] = parts_->activity->requests[write].load(std::memory_order_relaxed);
    }
    LatencyHistogram::Merged latency;
    const auto add = [&](const Counters& counters) {
        for (size_t write = 0; write < 2; ++write) {
            for (size_t path = 0; path < path_count; ++path) {
                stats.nbytes[write][path] += counters.nbytes[write][path].get();
                stats.transfers[write][path] += counters.transfers[write][path].get();
            }
        }
        for (size_t place = 0; place < DeviceTable::capacity; ++place) {
            for (size_t write = 0; write < 2; ++write) {
                stats.devices[place][write] += counters.devices[place][write].get();
            }
        }
        stats.transfers_in_flight += counters.in_flight.get();
        stats.staging += counters.staging.get();
        stats.retries += counters.retries.get();
        stats.short_transfers += counters.short_transfers.get();
        stats.direct_refused += counters.direct_refused.get();
        latency.add(counters.latency);
    };
    for (const auto& worker : parts_->workers) {
        add(worker->counters());
    }
    parts_->inline_pumps.visit_counters(add);
    stats.transfers_waiting = parts_->queue.chunks_waiting();
    stats.direct_refused += parts_->refused_at_open.load(std::memory_order_relaxed);
    stats.latency = latency.summary();
    return stats;
}

std::unique_ptr<IoHandle> make_handle(const HandleOptions& options, std::string_view backend) {
    std::string reasons;
    for (const Backend& candidate : backends_named(backend)) {
        try {
            return std::make_unique<IoHandle>(options, candidate);
        } catch (const EngineUnavailable& error) {
            reasons += (reasons.empty() ? "" : "; ") + candidate.name + ": " + error.what();
        }
    }
    throw EngineUnavailable("backend '" + std::string(backend) + "' cannot run here: " + reasons);
}

}  // namespace deepnvme::io
