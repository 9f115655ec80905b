// An optional limit of pinned bytes, which allocations in progress count towards. Bookkeeping only:
// no locking.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace deepnvme::pin {

class Budget {
public:
    static constexpr size_t unlimited = SIZE_MAX;
    using Owners = std::map<std::string, size_t>;  // bytes in use by tag

    // Counts `nbytes` as about to be pinned. Throws PinError, which lists the owners, when the
    // limit does not allow them beside `in_use` and what is reserved already.
    void reserve(size_t nbytes, size_t in_use, const Owners& owners);
    void end_reservation(size_t nbytes) noexcept { reserved_ -= nbytes; }  // pinned now, or failed

    void set_limit(size_t limit) noexcept { limit_ = limit; }
    size_t limit() const noexcept { return limit_; }
    void forget_reservations() noexcept { reserved_ = 0; }

private:
    size_t limit_ = unlimited;
    size_t reserved_ = 0;
};

}  // namespace deepnvme::pin
