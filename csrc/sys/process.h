// Forks. Whose an object is: a child has the memory of its parent's objects, but not their threads.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <stdexcept>

namespace deepnvme::sys {

using ForkHandler = void (*)();

// pthread_atfork(3), for good. Throws std::system_error when there is no memory for it.
void at_fork(ForkHandler prepare, ForkHandler parent, ForkHandler child);

class WrongProcess : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

// The process that made it. Asking costs no system call: a fork handler counts.
class OwnerProcess {
public:
    OwnerProcess();
    bool is_this_one() const;
    void require(const char* what) const;  // throws WrongProcess: "this <what> belongs to ..."

private:
    pid_t pid_;
    uint64_t generation_;
};

}  // namespace deepnvme::sys
