#include "io/inline_pumps.h"

#include <utility>

#include "io/posix_engine.h"
#include "io/pump.h"

namespace deepnvme::io {
namespace {

// The chunks of a request that is no larger than a block: what is ragged at its ends, and the rest.
constexpr uint32_t depth = 3;

}  // namespace

struct InlinePumps::InlinePump {
    InlinePump(Counters& counters, std::shared_ptr<TraceTrack> track)
        : engine(make_inline_engine(depth)),
          pump(*engine, {depth, largest_request, false}, counters, std::move(track)) {}
    std::unique_ptr<Engine> engine;
    Pump pump;
};

InlinePumps::InlinePumps(Trace* trace, std::string name) : trace_(trace), name_(std::move(name)) {}
InlinePumps::~InlinePumps() = default;

void InlinePumps::run(const std::shared_ptr<Operation>& operation) {
    std::unique_ptr<InlinePump> own = take();
    Pump& pump = own->pump;
    Chunk chunk;
    while (operation->next(chunk)) {
        pump.add({operation, chunk});
        pump.submit();
    }
    while (!pump.idle()) {
        pump.reap(true);
    }
    std::lock_guard lock(mutex_);
    free_.push_back(std::move(own));
}

std::unique_ptr<InlinePumps::InlinePump> InlinePumps::take() {
    std::lock_guard lock(mutex_);
    if (!free_.empty()) {
        std::unique_ptr<InlinePump> own = std::move(free_.back());
        free_.pop_back();
        return own;
    }
    counters_.push_back(std::make_unique<Counters>());
    std::shared_ptr<TraceTrack> track;
    if (trace_ != nullptr) {
        const std::string number = std::to_string(counters_.size() - 1);
        track = trace_->add_track(name_ + " inline " + number, depth);
    }
    return std::make_unique<InlinePump>(*counters_.back(), std::move(track));
}

}  // namespace deepnvme::io
