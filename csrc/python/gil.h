// Giving up the GIL and taking it, also while the interpreter ends and after it has ended.
//
// A daemon thread that asks for the GIL then is ended by Python up to 3.13 (pthread_exit), whose
// forced unwind would meet a destructor and abort the process. Such a thread is parked instead, as
// Python does from 3.14 on: the end of the process ends it.
// https://docs.python.org/3/c-api/init.html#cautions-regarding-runtime-finalization
#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

#include <atomic>

namespace deepnvme::python {

// Set by the exit function of the module, when there is no GIL to be taken any more.
inline std::atomic<bool> interpreter_gone{false};

[[noreturn]] inline void park() noexcept {
    for (;;) {
        ::pause();
    }
}

// UBSan looks at the reference of the handler, which gcc leaves null for a forced unwind.
template <typename Take>
[[gnu::no_sanitize("undefined")]] void take_gil_or_park(Take take) noexcept {
    if (interpreter_gone.load(std::memory_order_acquire)) {
        park();
    }
    try {
        take();
    } catch (abi::__forced_unwind&) {
        park();
    }
}

class GilReleased {
public:
    GilReleased() : state_(PyEval_SaveThread()) {}
    ~GilReleased() {
        take_gil_or_park([this] { PyEval_RestoreThread(state_); });
    }
    GilReleased(const GilReleased&) = delete;
    GilReleased& operator=(const GilReleased&) = delete;

private:
    PyThreadState* state_;
};

class GilHeld {
public:
    GilHeld() {
        take_gil_or_park([this] { state_ = PyGILState_Ensure(); });
    }
    ~GilHeld() { PyGILState_Release(state_); }
    GilHeld(const GilHeld&) = delete;
    GilHeld& operator=(const GilHeld&) = delete;

private:
    PyGILState_STATE state_{};
};

}  // namespace deepnvme::python
