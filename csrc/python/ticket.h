// One request, or many, that the caller holds on to: what an IOFuture waits for.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "io/completion_channel.h"
#include "io/operation_group.h"
#include "io/trace.h"
#include "sys/process.h"

namespace deepnvme::python {

// All but result() throw sys::WrongProcess in a forked child. Needs the GIL.
class Ticket {
public:
    Ticket(std::shared_ptr<io::OperationGroup> group, io::Trace* trace);

    bool done() const;
    // True when done, false after `timeout` seconds.
    bool wait(std::optional<double> timeout) const;
    // Bytes moved; raises AioError for failures.
    uint64_t result() const;
    void notify(std::shared_ptr<io::CompletionChannel> channel, uint64_t token) const;

private:
    std::shared_ptr<io::OperationGroup> group_;
    io::Trace* trace_;
    sys::OwnerProcess process_;
};

}  // namespace deepnvme::python
