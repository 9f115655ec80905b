// CHECK(condition): prints where and what failed, and aborts, which a fuzzer takes for a find.
// NDEBUG does not disable it.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace deepnvme::test {

[[noreturn]] inline void check_failed(const char* file, int line, const char* what) {
    std::fprintf(stderr, "%s:%d: %s\n", file, line, what);
    std::abort();  // other threads may run: no destructors under them
}

}  // namespace deepnvme::test

#define CHECK(...)                                                                         \
    do {                                                                                   \
        if (!(__VA_ARGS__)) {                                                              \
            ::deepnvme::test::check_failed(__FILE__, __LINE__, "CHECK(" #__VA_ARGS__ ")"); \
        }                                                                                  \
    } while (false)

// The statement must throw an exception of this type, which is then in scope as `name` in the block
// that follows:
//   CHECK_THROWS(PinError, error, registry.allocate(size, "tag")) { CHECK(error.nbytes == size); }
#define CHECK_THROWS(type, name, ...)                                                             \
    try {                                                                                         \
        static_cast<void>(__VA_ARGS__);                                                           \
        ::deepnvme::test::check_failed(__FILE__, __LINE__, #__VA_ARGS__ " did not throw " #type); \
    } catch (const type& name)
