// What a trace consists of: made by the thread that does the work, written as JSON by another.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "io/counters.h"

namespace deepnvme::io {

struct TraceEvent {
    enum class Kind : uint8_t {
        transfer,     // a chunk, from its first submission to its end
        call,         // a call of the program, from its begin to its end
        thread_name,  // `text` is what the thread is called
    };

    Kind kind = Kind::transfer;
    bool write = false;
    bool raised = false;          // call: by an exception that is no IoError
    Path path = Path::direct;     // transfer: how it travelled
    uint32_t thread = 0;          // call: the caller; transfer: its track
    int error = 0;                // errno, of a call the first that failed
    const char* name = "";        // call: a literal
    uint64_t begin = 0, end = 0;  // nanoseconds
    off_t offset = 0;             // of the file
    uint64_t nbytes = 0;          // asked
    uint64_t nbytes_done = 0;
    uint64_t operations = 0, failed = 0;        // call: how many requests, and how many failed
    uint64_t request = 0;                       // transfer: the number of its request,
    uint32_t caller = 0;                        // the thread that made it,
    uint64_t submitted = 0;                     // and when
    uint32_t retries = 0, short_transfers = 0;  // transfer
};

// Who asked for an operation: part of it while it is traced.
struct TracedRequest {
    uint64_t number;
    uint32_t caller;
    uint64_t submitted;  // nanoseconds
    std::string text;    // the path, as json_text() has it
};

}  // namespace deepnvme::io
