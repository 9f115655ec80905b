#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace deepnvme::io {

// DeepSpeed's names and meaning.
struct HandleOptions {
    size_t block_size = 1 << 20;  // bytes of a transfer, at most
    uint32_t queue_depth = 128;   // transfers in flight, per worker
    bool single_submit = false;   // one system call for each transfer
    bool overlap_events = true;   // start transfers as others complete; false: batch after batch
    uint32_t intra_op_parallelism = 1;  // workers
    bool inline_small = true;           // small synchronous requests on the calling thread
    std::string trace;                  // file for a trace of requests; empty: none

    void check() const;  // throws std::invalid_argument naming the value, the limit and the remedy
};

}  // namespace deepnvme::io
