#include "io/inline_pumps.h"

#include "io/posix_engine.h"
#include "io/pump.h"

namespace deepnvme::io {
namespace {

constexpr uint32_t depth = 4;

}  // namespace

struct InlinePumps::InlinePump {
    explicit InlinePump(Counters& counters)
        : engine(make_inline_engine(depth)),
          pump(*engine, {depth, largest_request, false}, counters) {}
    std::unique_ptr<Engine> engine;
    Pump pump;
};

InlinePumps::InlinePumps() = default;
InlinePumps::~InlinePumps() = default;

void InlinePumps::run(const std::shared_ptr<Operation>& operation) {
    std::unique_ptr<InlinePump> own = take();
    Pump& pump = own->pump;
    Chunk chunk;
    while (operation->next(chunk)) {
        while (pump.room() == 0) {
            pump.reap(true);
        }
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
    return std::make_unique<InlinePump>(*counters_.back());
}

}  // namespace deepnvme::io
