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

// Engines by name, to be tried in order: the one of that name, or all for "auto". Throws
// std::invalid_argument for a name that there is not.
struct Backend {
    std::string name;
    EngineFactory make;
};
std::vector<Backend> backends_named(std::string_view name);

}  // namespace deepnvme::io
