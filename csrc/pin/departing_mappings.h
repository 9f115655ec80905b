// Mappings that have to be unlocked while a device is still registered with them. They stay locked
// and mapped until whoever registered them takes that back. Bookkeeping only: no locking.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

#include "pin/mapping_pool.h"

namespace deepnvme::pin {

class DepartingMappings {
public:
    DepartingMappings() = default;
    DepartingMappings(const DepartingMappings&) = delete;
    DepartingMappings& operator=(const DepartingMappings&) = delete;

    // Needs no memory: it runs in deleters, which cannot fail.
    void put(std::shared_ptr<Mapping> mapping) noexcept;
    std::shared_ptr<Mapping> take() noexcept;  // null when none waits; then settle() or strand() it
    void settle(Mapping& mapping) noexcept;    // the device does not reach it any more
    void strand(std::shared_ptr<Mapping> mapping) noexcept;  // it may for ever: kept for good
    void clear() noexcept;

    bool any_waiting() const { return waiting_.load(std::memory_order_relaxed) != 0; }
    size_t bytes() const { return bytes_; }  // of all that was put and is not settled

private:
    static void push(std::shared_ptr<Mapping>& list, std::shared_ptr<Mapping> mapping) noexcept;
    static std::shared_ptr<Mapping> pop(std::shared_ptr<Mapping>& list) noexcept;

    std::shared_ptr<Mapping> first_;
    std::shared_ptr<Mapping> stranded_;
    std::atomic<size_t> waiting_{0};  // read without the mutex
    size_t bytes_ = 0;
};

}  // namespace deepnvme::pin
