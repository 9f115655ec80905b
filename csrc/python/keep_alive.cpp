#include "python/keep_alive.h"

#include <atomic>

namespace deepnvme::python {
namespace {

struct Released {
    PyObject* object;
    Released* next;
};

// Without a lock, which a fork could leave taken in the child.
std::atomic<Released*> released{nullptr};

void release(Released* node) {
    node->next = released.load(std::memory_order_relaxed);
    while (!released.compare_exchange_weak(node->next, node, std::memory_order_release,
                                           std::memory_order_relaxed)) {
    }
}

}  // namespace

std::shared_ptr<void> keep_alive(pybind11::object object) {
    auto node = std::make_unique<Released>(Released{object.ptr(), nullptr});
    object.release();
    Released* raw = node.release();
    return {raw, [](void* held) { release(static_cast<Released*>(held)); }};
}

void drop_released() {
    Released* node = released.exchange(nullptr, std::memory_order_acquire);
    while (node != nullptr) {
        const std::unique_ptr<Released> owned(node);
        node = owned->next;
        Py_DECREF(owned->object);
    }
}

}  // namespace deepnvme::python
