#include "python/ticket.h"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "io/traced_call.h"
#include "python/aio_error.h"
#include "python/gil.h"
#include "python/interpreter_exit.h"
#include "python/keep_alive.h"

namespace deepnvme::python {

Ticket::Ticket(std::shared_ptr<io::OperationGroup> group, io::Trace* trace)
    : group_(std::move(group)), trace_(trace) {}

bool Ticket::done() const {
    process_.require("future");
    return group_->done();
}

bool Ticket::wait(std::optional<double> timeout) const {
    process_.require("future");
    if (timeout.has_value() && std::isnan(*timeout)) {
        throw pybind11::value_error(
            "timeout is not a number; give seconds, or None to wait for ever");
    }
    bool done = true;
    {
        const GilReleased unlocked;
        io::TracedCall call(trace_, "wait for a future");
        // A century is for ever, and does not overflow the clock.
        if (timeout.has_value() && *timeout < 3e9) {
            const auto duration = std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                std::chrono::duration<double>(std::max(*timeout, 0.0)));
            done = group_->wait_for(duration, check_signals);
        } else {
            group_->wait(check_signals);
        }
        call.ended(*group_);
    }
    drop_released();
    return done;
}

uint64_t Ticket::result() const {
    const auto outcome = group_->outcome();
    count_or_raise(outcome);
    return outcome.nbytes;
}

void Ticket::notify(std::shared_ptr<io::CompletionChannel> channel, uint64_t token) const {
    process_.require("future");
    group_->when_done([channel = std::move(channel), token] { channel->push(token); });
}

}  // namespace deepnvme::python
