// Giving up the GIL and taking it, also while the interpreter ends.
//
// A daemon thread that asks for the GIL then is ended by Python up to 3.13 (pthread_exit), whose
// forced unwind would meet a destructor and abort the process. Such a thread is parked instead, as
// Python does from 3.14 on: the end of the process ends it.
// https://docs.python.org/3/c-api/init.html#cautions-regarding-runtime-finalization
#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

namespace deepnvme::python {

template <typename Take>
void take_gil_or_park(Take take) noexcept {
    try {
        take();
    } catch (abi::__forced_unwind&) {
        for (;;) {
            ::pause();
        }
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
