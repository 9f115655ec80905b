// What the linker (--wrap, see tests/support/faulty_build.py) puts in front of the library's own
// functions, whose objects stay as they are shipped: every engine is wrapped, and the module `io`
// gets a submodule `faults`.
#include "faults.h"
#include "faulty_engine.h"

namespace deepnvme::test {
namespace {

std::unique_ptr<io::Engine> wrapped(std::unique_ptr<io::Engine> engine) {
    if (!Schedule::instance().wraps_engines()) {
        return engine;
    }
    return std::make_unique<FaultyEngine>(std::move(engine));
}

}  // namespace

// `symbol` is the mangled name of deepnvme::io::make_<name>_engine(unsigned).
#define WRAP_ENGINE(name, symbol)                                                              \
    std::unique_ptr<io::Engine> shipped_##name##_engine(uint32_t depth) asm("__real_" symbol); \
    std::unique_ptr<io::Engine> faulty_##name##_engine(uint32_t depth) asm("__wrap_" symbol);  \
    std::unique_ptr<io::Engine> faulty_##name##_engine(uint32_t depth) {                       \
        return wrapped(shipped_##name##_engine(depth));                                        \
    }

WRAP_ENGINE(uring, "_ZN8deepnvme2io17make_uring_engineEj")
WRAP_ENGINE(libaio, "_ZN8deepnvme2io18make_libaio_engineEj")
WRAP_ENGINE(posix, "_ZN8deepnvme2io17make_posix_engineEj")
WRAP_ENGINE(inline, "_ZN8deepnvme2io18make_inline_engineEj")

#define BIND_HANDLE "_ZN8deepnvme6python11bind_handleERN8pybind117module_E"
void shipped_bind_handle(pybind11::module_& io) asm("__real_" BIND_HANDLE);
void faulty_bind_handle(pybind11::module_& io) asm("__wrap_" BIND_HANDLE);
void faulty_bind_handle(pybind11::module_& io) {
    shipped_bind_handle(io);
    pybind11::module_ faults = io.def_submodule("faults", "What goes wrong, and when.");
    bind_faults(faults);
}

}  // namespace deepnvme::test
