// The submodule through which a Python test says what goes wrong.
#pragma once

#include <pybind11/pybind11.h>

namespace deepnvme::test {

void bind_faults(pybind11::module_& m);

}  // namespace deepnvme::test
