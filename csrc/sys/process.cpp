#include "sys/process.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <system_error>

#include "sys/syscalls.h"

namespace deepnvme::sys {
namespace {

std::atomic<uint64_t> generation{0};

// Before main() or import returns: no fork can come first.
[[maybe_unused]] const int registered =
    pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); });

}  // namespace

void at_fork(ForkHandler prepare, ForkHandler parent, ForkHandler child) {
    int error = injected_fault("pthread_atfork");
    if (error == 0) {
        error = ::pthread_atfork(prepare, parent, child);
    }
    if (error != 0) {
        throw std::system_error(error, std::generic_category(), "pthread_atfork");
    }
}

OwnerProcess::OwnerProcess() : pid_(::getpid()), generation_(generation) {}

bool OwnerProcess::is_this_one() const {
    return generation_ == generation.load(std::memory_order_relaxed);
}

void OwnerProcess::require(const char* what) const {
    if (!is_this_one()) {
        throw WrongProcess("this " + std::string(what) + " belongs to process " +
                           std::to_string(pid_) + "; after fork, make one in the child");
    }
}

}  // namespace deepnvme::sys
