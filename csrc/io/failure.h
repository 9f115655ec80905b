// What went wrong with one request, in full.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace deepnvme::io {

enum class Action : uint8_t { read, write, sync };

struct Failure {
    int error = 0;       // errno
    std::string detail;  // what happened, where errno alone does not say it; may be empty
    std::string path;
    off_t offset = 0;
    uint64_t nbytes = 0;       // asked
    uint64_t nbytes_done = 0;  // moved before it failed
    Action action = Action::read;
};

class IoError : public std::runtime_error {
public:
    explicit IoError(Failure failure)
        : std::runtime_error(failure.detail), failure(std::move(failure)) {}
    Failure failure;
};

}  // namespace deepnvme::io
