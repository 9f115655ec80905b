// Small synchronous requests on the calling thread: handing one to a worker and waiting costs more
// than the transfer.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "io/counters.h"
#include "io/operation.h"
#include "io/trace.h"

namespace deepnvme::io {

class InlinePumps {
public:
    static constexpr uint64_t largest_request = 256 << 10;  // bytes

    // `trace`: null for none; `name`: of the handle, in it.
    explicit InlinePumps(Trace* trace = nullptr, std::string name = {});
    ~InlinePumps();

    // Carries out the operation; it is over afterwards. Each calling thread has a pump to itself
    // meanwhile.
    void run(const std::shared_ptr<Operation>& operation);
    // Calls visit(counters) for every pump.
    template <typename Visit>
    void visit_counters(Visit visit) const {
        std::lock_guard lock(mutex_);
        for (const auto& counters : counters_) {
            visit(*counters);
        }
    }

private:
    struct InlinePump;
    std::unique_ptr<InlinePump> take();

    Trace* const trace_;
    const std::string name_;
    mutable std::mutex mutex_;
    std::vector<std::unique_ptr<InlinePump>> free_;
    std::vector<std::unique_ptr<Counters>> counters_;
};

}  // namespace deepnvme::io
