// Threads of the library: named, and deaf to signals, so that signals reach the program's own
// threads.
#pragma once

#include <functional>
#include <thread>

namespace deepnvme::sys {

// Throws std::system_error. `name` has at most 15 characters (pthread_setname_np(3)).
std::thread start_thread(const char* name, std::function<void()> body);

}  // namespace deepnvme::sys
