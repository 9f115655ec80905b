#include "io/probe.h"

#include "io/libaio_engine.h"
#include "io/posix_engine.h"
#include "io/uring_engine.h"

#ifndef DEEPNVME_HAVE_LIBURING
#define DEEPNVME_HAVE_LIBURING 0
#endif
#ifndef DEEPNVME_HAVE_LIBAIO
#define DEEPNVME_HAVE_LIBAIO 0
#endif

namespace deepnvme::io {
namespace {

struct Candidate {
    const char* name;
    bool built;
    std::unique_ptr<Engine> (*make)(uint32_t depth);
};

constexpr Candidate candidates[] = {
    {"io_uring", DEEPNVME_HAVE_LIBURING, make_uring_engine},
    {"libaio", DEEPNVME_HAVE_LIBAIO, make_libaio_engine},
    {"posix", true, make_posix_engine},
};

}  // namespace

std::vector<EngineReport> probe_engines() {
    std::vector<EngineReport> reports;
    for (const Candidate& candidate : candidates) {
        EngineReport report{candidate.name, candidate.built, true, {}};
        try {
            candidate.make(1);
        } catch (const std::exception& error) {
            report.usable = false;
            report.reason = error.what();
        }
        reports.push_back(report);
    }
    return reports;
}

std::vector<Backend> backends_named(std::string_view name) {
    std::vector<Backend> backends;
    for (const Candidate& candidate : candidates) {
        if (name == "auto" || name == candidate.name) {
            backends.push_back({candidate.name, candidate.make});
        }
    }
    if (backends.empty()) {
        throw std::invalid_argument("backend '" + std::string(name) +
                                    "' is not known; use auto, io_uring, libaio or posix");
    }
    return backends;
}

}  // namespace deepnvme::io
