// The end of a process in which handles are open, in this order:
//   1. The atexit hook of aio calls interpreter_exits() and waits for what no wait() has counted.
//      Handles stay open: daemon threads may be inside them, and must not see an error.
//   2. Python ends. Daemon threads stay where they next ask for the GIL.
//   3. close_at_exit() drains and ends what is still open, without Python.
#pragma once

#include <unordered_set>

#include "io/io_handle.h"

namespace deepnvme::python {

// Those to be closed at exit. The GIL guards the set until step 3, when nobody else can change it.
std::unordered_set<io::IoHandle*>& open_handles();

void interpreter_exits();
void close_at_exit();

// Lets Ctrl-C through, in the main thread: throws what a handler of signals raises. Once the
// interpreter exits, only that thread looks: soon there is no GIL to look with.
void check_signals();

}  // namespace deepnvme::python
