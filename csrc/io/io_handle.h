// A handle: its options, its workers, and the way of a request into the queue. Every public method
// may be called from any thread of the process that made it; a forked child gets an exception, and
// destroying the handle there does nothing.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "io/counters.h"
#include "io/handle_options.h"
#include "io/interruptible_wait.h"
#include "io/operation.h"
#include "io/probe.h"
#include "io/trace.h"
#include "sys/process.h"

namespace deepnvme::io {

class InlinePumps;
class WorkQueue;
class Worker;

// Throws std::invalid_argument unless nbytes at offset can be part of a file (off_t).
void check_file_range(uint64_t nbytes, off_t offset);

class IoHandle {
public:
    // Starts the workers, each with an engine of its own. Throws what the factory throws; nothing
    // is left behind then.
    IoHandle(const HandleOptions& options, Backend backend);
    ~IoHandle();  // drains

    const HandleOptions& options() const { return options_; }
    const std::string& backend() const { return backend_.name; }
    uint64_t number() const { return number_; }  // of the handles that this process has made
    Trace* trace() const;                        // null without one

    // Files that one call over many requests has opened, so that each is opened once.
    using OpenFiles = std::unordered_map<std::string, std::weak_ptr<File>>;

    // Opens a file for requests within nbytes at offset. Waits and throws as prepare() does.
    std::shared_ptr<File> open(const FileName& name, bool write, uint64_t nbytes, off_t offset,
                               const Waiting& waiting, OpenFiles* open_files = nullptr);

    // Opens the file and checks the range. Waits while too many files are held open by earlier
    // requests. Throws std::invalid_argument, IoError, or what `waiting` throws; the group does
    // not expect the operation then.
    std::shared_ptr<Operation> prepare(Request request, const FileName& name,
                                       const std::shared_ptr<OperationGroup>& group,
                                       const Waiting& waiting, OpenFiles* open_files = nullptr);
    // Starts what prepare() made; each operation ends in its group, whatever happens.
    void enqueue(std::span<const std::shared_ptr<Operation>> operations);

    // Whether run() does a request of this size on the calling thread, which then holds the memory
    // itself.
    bool runs_inline(uint64_t nbytes) const;
    // Carries out what prepare() made and waits for it.
    void run(const std::shared_ptr<Operation>& operation, OperationGroup& group,
             const Interrupt& interrupt);

    // fsync(2) of a file. Throws IoError.
    void sync_file(const FileName& name);

    bool is_of_this_process() const { return process_.is_this_one(); }
    void require_owner() const;   // throws sys::WrongProcess in a forked child
    void require_usable() const;  // that, or HandleClosed

    // Waits for everything started, then ends the workers. Later requests throw. Repeating it is
    // harmless.
    void close();
    bool closed() const;

    struct Stats {
        std::array<uint64_t, 2> requests{};  // [write]
        uint64_t failed = 0;
        uint64_t in_flight = 0;
        std::array<std::array<uint64_t, path_count>, 2> nbytes{};     // [write][path]
        std::array<std::array<uint64_t, path_count>, 2> transfers{};  // [write][path]
        DeviceBytes devices{};
        uint64_t transfers_in_flight = 0;
        uint64_t transfers_waiting = 0;
        uint64_t staging = 0;
        uint64_t retries = 0;
        uint64_t short_transfers = 0;
        uint64_t direct_refused = 0;
        LatencyHistogram::Summary latency;
    };
    Stats stats() const;

private:
    // Everything that a forked child must leave alone.
    struct Parts;

    Parts& usable() const;  // throws in a forked child and after close()
    const HandleOptions options_;
    const Backend backend_;
    const sys::OwnerProcess process_;
    const uint64_t number_;
    std::unique_ptr<Parts> parts_;
};

// A handle on the first engine of that name that works here ("auto" tries all). Throws
// EngineUnavailable with the reason of each that does not.
std::unique_ptr<IoHandle> make_handle(const HandleOptions& options, std::string_view backend);

// A handle is closed.
class HandleClosed : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

}  // namespace deepnvme::io
