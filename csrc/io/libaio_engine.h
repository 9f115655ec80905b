#pragma once

#include "io/engine.h"

namespace deepnvme::io {

std::unique_ptr<Engine> make_libaio_engine(uint32_t depth);  // throws EngineUnavailable

}  // namespace deepnvme::io
