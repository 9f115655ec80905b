// One thread of a handle: makes its engine, takes chunks from the queue, keeps its pump full.
#pragma once

#include <thread>

#include "io/counters.h"
#include "io/handle_options.h"
#include "io/work_queue.h"

namespace deepnvme::io {

class Worker {
public:
    // Throws what the factory throws, or std::system_error when no thread can be had.
    Worker(WorkQueue& queue, const HandleOptions& options, const EngineFactory& make_engine,
           std::shared_ptr<TraceTrack> track = nullptr);
    ~Worker();
    Worker(const Worker&) = delete;
    Worker& operator=(const Worker&) = delete;

    // After WorkQueue::stop(): waits until nothing is left to do. Repeating it is harmless.
    void join();
    const Counters& counters() const { return counters_; }

private:
    void run(Engine& engine, Pump& pump);

    WorkQueue& queue_;
    const HandleOptions options_;
    Counters counters_;
    WorkQueue::Worker entry_;
    std::shared_ptr<TraceTrack> track_;
    std::thread thread_;
};

}  // namespace deepnvme::io
