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

// Empty when the engine can be made.
std::string reason_against(const Candidate& candidate, uint32_t depth) {
    try {
        candidate.make(depth);
        return {};
    } catch (const std::exception& error) {
        return error.what();
    }
}

}  // namespace

std::vector<EngineReport> probe_engines() {
    std::vector<EngineReport> reports;
    for (const Candidate& candidate : candidates) {
        std::string reason = reason_against(candidate, 1);
        reports.push_back({candidate.name, candidate.built, reason.empty(), reason});
    }
    return reports;
}

Backend choose_backend(std::string_view name, uint32_t depth) {
    std::string reasons;
    for (const Candidate& candidate : candidates) {
        if (name != "auto" && name != candidate.name) {
            continue;
        }
        std::string reason = reason_against(candidate, depth);
        if (reason.empty()) {
            return {candidate.name, candidate.make};
        }
        reasons += (reasons.empty() ? "" : "; ") + std::string(candidate.name) + ": " + reason;
    }
    if (reasons.empty()) {
        throw std::invalid_argument("backend '" + std::string(name) +
                                    "' is not known; use auto, io_uring, libaio or posix");
    }
    throw EngineUnavailable("backend '" + std::string(name) + "' cannot run here: " + reasons);
}

}  // namespace deepnvme::io
