#include "io/worker.h"

#include <exception>
#include <future>
#include <optional>

#include "sys/thread.h"

namespace deepnvme::io {
namespace {

// Bytes; the drive starts on the first while the next are copied.
constexpr size_t copies_before_submit = 256 << 10;

}  // namespace

Worker::Worker(WorkQueue& queue, const HandleOptions& options, const EngineFactory& make_engine,
               std::shared_ptr<TraceTrack> track)
    : queue_(queue), options_(options), track_(std::move(track)) {
    auto made = std::make_shared<std::promise<void>>();
    std::future<void> ready = made->get_future();
    thread_ = sys::start_thread("dnvme-worker", [this, make_engine, made] {
        std::unique_ptr<Engine> engine;
        std::optional<Pump> pump;
        try {
            // Here: a ring belongs to the thread that makes it.
            engine = make_engine(options_.queue_depth);
            const PumpOptions limits{options_.queue_depth, Staging::default_bytes,
                                     options_.single_submit};
            pump.emplace(*engine, limits, counters_, track_);
        } catch (...) {
            made->set_exception(std::current_exception());
            return;
        }
        made->set_value();
        run(*engine, *pump);
    });
    try {
        ready.get();
    } catch (...) {
        join();
        throw;
    }
}

Worker::~Worker() { join(); }

void Worker::join() {
    if (thread_.joinable()) {
        thread_.join();
    }
}

void Worker::run(Engine& engine, Pump& pump) {
    queue_.join(entry_, engine);
    auto& registry = pin::deepspeed_pin_tensor_t::instance();
    const uint64_t listener = registry.add_release_listener(
        [this](uint64_t serial) { queue_.mapping_released(entry_, serial); });
    std::vector<Piece> pieces;
    for (;;) {
        for (uint64_t serial : queue_.unblocked(entry_)) {
            pump.forget_mapping(serial);
        }
        if (options_.overlap_events || pump.idle()) {
            queue_.take(pump.room(), pieces);
        }
        for (Piece& piece : pieces) {
            pump.add(std::move(piece));
            if (pump.copied_waiting() >= copies_before_submit) {
                pump.submit();
            }
        }
        pieces.clear();
        pump.submit();
        if (!pump.idle()) {
            const bool could_take = options_.overlap_events && pump.room() > 0;
            pump.reap(queue_.may_block(entry_, could_take));
        } else if (!queue_.wait(entry_)) {
            break;
        }
    }
    registry.remove_release_listener(listener);
    queue_.leave(entry_);
}

}  // namespace deepnvme::io
