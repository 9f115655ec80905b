// One call of the program as a span on the track of its thread. Without a trace it does nothing.
#pragma once

#include <exception>
#include <string>

#include "io/failure.h"
#include "io/file.h"
#include "io/operation.h"
#include "io/trace.h"
#include "io/trace_format.h"
#include "sys/clock.h"

namespace deepnvme::io {

class TracedCall {
public:
    // `name` is a literal.
    TracedCall(Trace* trace, const char* name, uint64_t operations = 0) : trace_(trace) {
        if (trace_ != nullptr) {
            event_.name = name;
            event_.operations = operations;
            event_.begin = sys::monotonic_ns();
            exceptions_ = std::uncaught_exceptions();
        }
    }
    ~TracedCall() {
        if (trace_ != nullptr) {
            event_.end = sys::monotonic_ns();
            event_.raised = event_.error == 0 && std::uncaught_exceptions() > exceptions_;
            trace_->record_call(event_, text_);
        }
    }
    TracedCall(const TracedCall&) = delete;
    TracedCall& operator=(const TracedCall&) = delete;

    // What the call is about, where that is one request.
    void about(const Request& request, const FileName& file) {
        if (trace_ != nullptr) {
            event_.write = request.write;
            event_.offset = request.offset;
            event_.nbytes = request.nbytes;
            text_ = json_text(file.opened != nullptr ? file.opened->path() : file.text());
        }
    }

    // Does the work, and remembers the error that it throws.
    template <typename Work>
    void watch(Work work) {
        try {
            work();
        } catch (const IoError& error) {
            event_.error = error.failure.error;
            event_.failed = event_.operations;
            throw;
        }
    }

    // What became of the requests that it waited for.
    void ended(const OperationGroup& group) {
        if (trace_ != nullptr) {
            const OperationGroup::Outcome outcome = group.outcome();
            ended(outcome);
        }
    }
    void ended(const OperationGroup::Outcome& outcome) {
        event_.operations = outcome.completed + outcome.failures.size();
        event_.failed = outcome.failures.size();
        event_.error = outcome.failures.empty() ? 0 : outcome.failures.front().error;
    }

private:
    Trace* const trace_;
    TraceEvent event_;
    std::string text_;
    int exceptions_ = 0;
};

}  // namespace deepnvme::io
