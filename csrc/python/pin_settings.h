// Sizes that the user gives to the registry: arguments and environment variables.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>

namespace deepnvme::python {

// Throws ValueError for what is no number of bytes from `least` on.
size_t checked_size(const char* what, const pybind11::int_& value, size_t least);

// DEEPNVME_PIN_CACHE_BYTES and DEEPNVME_PIN_BUDGET, read at first use so that a wrong value is an
// error there and not of `import`. Need the GIL.
void configure_cache_limit();
void configure_budget();
// Set by a call: the variable is not looked at any more.
void set_cache_limit(size_t nbytes);
void set_budget(size_t nbytes);

}  // namespace deepnvme::python
