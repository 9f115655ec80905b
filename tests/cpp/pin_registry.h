// The registry of the process, and the sizes that its tests count in.
#pragma once

#include <cstddef>

#include "pin/deepspeed_pin_tensor.h"

namespace deepnvme::test {

constexpr size_t KiB = size_t{1} << 10;
constexpr size_t MiB = size_t{1} << 20;
constexpr size_t page = 4096;

inline pin::deepspeed_pin_tensor_t& registry() { return pin::deepspeed_pin_tensor_t::instance(); }

}  // namespace deepnvme::test
