// The requests of one handle that have chunks left to start, shared by its workers. First come,
// first served; every worker takes from the front, so that many small requests run as deep as one
// large one.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "io/engine.h"
#include "io/pump.h"

namespace deepnvme::io {

class WorkQueue {
public:
    explicit WorkQueue(size_t workers) : workers_(workers) {}

    // What the queue knows of a worker; its members are under the queue's lock.
    struct Worker {
        Engine* engine = nullptr;        // to wake it; null before it starts and after it ends
        bool blocked_with_room = false;  // it waits for completions but could start more
        std::vector<uint64_t> released_mappings;  // to be taken out of its engine
    };
    void join(Worker& worker, Engine& engine);
    void leave(Worker& worker);

    void push(std::span<const std::shared_ptr<Operation>> operations);
    // Lets the workers end once nothing is left to start.
    void stop();

    // Moves up to `room` chunks to `pieces`. A worker takes no more than its fair part of what is
    // left, so that the others find some.
    void take(size_t room, std::vector<Piece>& pieces);
    // The same after waiting for something to do: chunks, released mappings, or the end (false).
    bool wait(Worker& worker);
    // To be called before a blocking reap: false when there is something to start (or to
    // unregister) first.
    bool may_block(Worker& worker, bool has_room);
    std::vector<uint64_t> unblocked(Worker& worker);  // after it; the mappings released meanwhile

    void mapping_released(Worker& worker, uint64_t serial);

    uint64_t chunks_waiting() const;  // that no worker has taken

private:
    void rouse(Worker& worker);

    const size_t workers_;
    mutable std::mutex mutex_;
    std::condition_variable work_;
    std::deque<std::shared_ptr<Operation>> operations_;
    std::vector<Worker*> joined_;
    uint64_t chunks_waiting_ = 0;
    size_t idle_ = 0;
    bool stopping_ = false;
};

}  // namespace deepnvme::io
