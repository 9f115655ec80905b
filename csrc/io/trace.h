// Traces of requests: what each call, and each transfer in flight, did when.
//   1. A file has one Trace in a process: handles that name the same file, at a time or one after
//      the other, write to one array. A lock on the file (flock) keeps other processes out.
//   2. Each pump has a ring, which only its thread fills and only the writer's thread empties.
//      Calls of the program share one, under a lock that no worker takes. A full ring drops events
//      and counts them.
//   3. The writer makes JSON of them ten times a second, or when a ring is half full.
//   4. The file is whole when the last handle that writes to it is closed. A forked child closes
//      its copy of the descriptor and writes nothing.
#pragma once

#include <atomic>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "io/trace_event.h"
#include "io/trace_file.h"
#include "io/trace_ring.h"

namespace deepnvme::io {

class Trace;

// The file of a trace cannot be had.
class TraceError : public std::runtime_error {
public:
    TraceError(int error, std::string path, const std::string& detail)
        : std::runtime_error(detail), error(error), path(std::move(path)) {}
    int error;
    std::string path;
};

// Where one pump's transfers are shown: as many rows as may be in flight, so that the spans of a
// row do not overlap. Owned by the thread of the pump, but for what the writer reads.
class TraceTrack {
public:
    TraceTrack(Trace& trace, std::string name, uint32_t first_row, uint32_t rows,
               size_t ring_bytes);

    void record(TraceEvent& event, uint32_t row, const TracedRequest& request);

private:
    friend class Trace;

    Trace& trace_;
    const std::string name_;
    const uint32_t first_row_;
    TraceRing ring_;
    std::atomic<bool> asked_{false};  // for the writer to come
    std::atomic<bool> ended_{false};  // nothing more will come
    std::vector<bool> named_;         // the writer's: rows that have a name in the file
    uint64_t dropped_ = 0;            // the writer's: what it has said of the ring
};

class Trace {
public:
    static constexpr size_t default_ring_bytes = 1 << 20;

    // The trace of this process in that file, for one more handle. Throws TraceError, or
    // std::system_error when no thread can be had; nothing has changed then. Traces are never
    // destroyed.
    static Trace& open(const std::string& path, size_t ring_bytes = default_ring_bytes);
    // One handle less; the last one's waits for the file to be whole.
    void close();

    // For a pump of up to `rows` transfers in flight, which holds it as long as it lives.
    std::shared_ptr<TraceTrack> add_track(const std::string& name, uint32_t rows);
    // Of the calling thread, now.
    std::unique_ptr<const TracedRequest> begin_request(const std::string& path);
    void record_call(TraceEvent& event, std::string_view text);

    const std::string& path() const { return path_; }
    // The errno that has stopped the writing, once; 0 when there is nothing to be told.
    int take_failure() { return failure_.exchange(0, std::memory_order_relaxed); }

private:
    friend class TraceTrack;
    struct Registry;

    Trace(std::string path, uint64_t device, uint64_t inode);
    int start(int descriptor, bool resume, size_t ring_bytes);  // an errno, or 0
    void stop();
    void end();  // of the file, once there is no writer
    void wake();
    void run();
    void tell_failure();  // the errno that has stopped the writing, once
    bool drain();         // whether there was anything
    bool drain(TraceTrack& track);
    bool drain_calls();
    void name_row(const TraceTrack& track, uint32_t row);
    void write(const TraceEvent& event);
    void note_dropped(uint64_t& known, uint64_t now);
    std::string last_object() const;

    const std::string path_;
    const uint64_t device_, inode_;
    const uint32_t process_;
    std::atomic<uint64_t> next_request_{1};
    std::atomic<int> failure_{0};

    // Under the registry's lock.
    size_t users_ = 0;
    int descriptor_ = -1;
    off_t size_ = -1;  // of the file that was finished last

    std::mutex tracks_mutex_;
    std::list<std::shared_ptr<TraceTrack>> tracks_;
    uint32_t next_row_;
    size_t ring_bytes_ = default_ring_bytes;

    std::mutex calls_mutex_;
    std::unique_ptr<TraceRing> calls_;  // null while no handle writes here
    std::unordered_set<uint32_t> known_threads_;
    std::atomic<bool> calls_asked_{false};  // for the writer to come

    std::mutex wake_mutex_;
    std::condition_variable woken_;
    bool wanted_ = false;
    bool stopping_ = false;
    std::thread writer_;

    // The writer's.
    TraceFile file_;
    bool failure_told_ = false;
    std::string object_, text_;
    uint64_t next_flow_ = 1;
    uint64_t events_ = 0;         // written or refused by the file
    uint64_t dropped_ = 0;        // by rings
    uint64_t calls_dropped_ = 0;  // what it has said of calls_
};

}  // namespace deepnvme::io
