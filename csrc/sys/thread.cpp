#include "sys/thread.h"

#include <pthread.h>
#include <signal.h>

#include <system_error>

#include "sys/syscalls.h"

namespace deepnvme::sys {

std::thread start_thread(const char* name, std::function<void()> body) {
    if (int injected = injected_fault("clone")) {
        throw std::system_error(injected, std::generic_category(), "cannot start a thread");
    }
    // The mask is inherited: blocked here, so that no signal can reach the thread before its first
    // line.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    struct Restore {
        const sigset_t& mask;
        ~Restore() { pthread_sigmask(SIG_SETMASK, &mask, nullptr); }
    } restore{before};
    std::thread thread(std::move(body));
    pthread_setname_np(thread.native_handle(), name);
    return thread;
}

}  // namespace deepnvme::sys
