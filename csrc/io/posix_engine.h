#pragma once

#include "io/engine.h"

namespace deepnvme::io {

// Threads that call pread and pwrite; works everywhere.
std::unique_ptr<Engine> make_posix_engine(uint32_t depth);

// Does each transfer in submit(), on the calling thread: for one small synchronous request, for
// which handing over to another thread costs more than the transfer.
std::unique_ptr<Engine> make_inline_engine(uint32_t depth);

}  // namespace deepnvme::io
