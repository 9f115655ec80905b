// Which engines work here, and why the others do not.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "io/engine.h"

namespace deepnvme::io {

struct EngineReport {
    std::string name;
    bool built = false;   // compiled in
    bool usable = false;  // an engine could be made on this machine just now
    std::string reason;   // why not; empty when usable
};

// Every engine, best first. Makes and destroys one of each.
std::vector<EngineReport> probe_engines();

// The factory of a backend by name: "io_uring", "libaio", "posix", or "auto" for the first that is
// usable. Throws std::invalid_argument for another name, EngineUnavailable when a named one cannot
// run here.
struct Backend {
    std::string name;
    EngineFactory make;
};
Backend choose_backend(std::string_view name, uint32_t depth);

}  // namespace deepnvme::io
