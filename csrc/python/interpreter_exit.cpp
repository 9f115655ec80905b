#include "python/interpreter_exit.h"

#include <pybind11/pybind11.h>

#include <atomic>
#include <thread>

#include "python/gil.h"

namespace deepnvme::python {
namespace {

std::atomic<std::thread::id> exiting_thread{};

}  // namespace

std::unordered_set<io::IoHandle*>& open_handles() {
    static auto* handles = new std::unordered_set<io::IoHandle*>;  // outlives static destructors
    return *handles;
}

void interpreter_exits() { exiting_thread = std::this_thread::get_id(); }

void close_at_exit() {
    interpreter_gone.store(true, std::memory_order_release);
    for (io::IoHandle* handle : open_handles()) {
        if (!handle->closed()) {  // nor a parent's, in a forked child
            handle->close();
        }
    }
}

void check_signals() {
    const std::thread::id exiting = exiting_thread;
    if (exiting != std::thread::id() && exiting != std::this_thread::get_id()) {
        return;
    }
    const GilHeld locked;
    if (PyErr_CheckSignals() != 0) {
        throw pybind11::error_already_set();
    }
}

}  // namespace deepnvme::python
