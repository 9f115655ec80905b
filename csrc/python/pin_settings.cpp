#include "python/pin_settings.h"

#include <charconv>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "pin/deepspeed_pin_tensor.h"
#include "python/gil.h"

namespace deepnvme::python {
namespace {

namespace py = pybind11;

bool cache_limit_configured = false;
bool budget_configured = false;

pin::deepspeed_pin_tensor_t& registry() { return pin::deepspeed_pin_tensor_t::instance(); }

// "4096", "16G": binary units.
std::optional<size_t> parse_bytes(std::string_view text) {
    size_t number = 0;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc()) {
        return std::nullopt;
    }
    text.remove_prefix(static_cast<size_t>(rest - text.data()));
    unsigned shift = 0;
    if (text.size() == 1) {
        const size_t unit = std::string_view("kKmMgGtT").find(text.front());
        shift = unit == std::string_view::npos ? 0 : 10 * (static_cast<unsigned>(unit) / 2 + 1);
    }
    const bool understood = text.empty() || shift > 0;
    if (!understood || number > std::numeric_limits<size_t>::max() >> shift) {
        return std::nullopt;
    }
    return number << shift;
}

// Nothing when the variable is not set or empty.
std::optional<size_t> bytes_of_variable(const char* name, const char* text, const char* zero) {
    if (text == nullptr || *text == '\0') {
        return std::nullopt;
    }
    const auto nbytes = parse_bytes(text);
    if (!nbytes) {
        // Decoded as os.environ is: the value may be no UTF-8.
        const auto value = py::reinterpret_steal<py::object>(PyUnicode_DecodeFSDefault(text));
        if (value) {
            PyErr_Format(PyExc_ValueError,
                         "%s is %R; give a number of bytes, such as 2147483648 or 2G, or 0 %s",
                         name, value.ptr(), zero);
        }
        throw py::error_already_set();
    }
    return nbytes;
}

}  // namespace

size_t checked_size(const char* what, const py::int_& value, size_t least) {
    const size_t size = PyLong_AsSize_t(value.ptr());
    if (size == static_cast<size_t>(-1) && PyErr_Occurred() != nullptr) {
        PyErr_Clear();
    } else if (size >= least) {
        return size;
    }
    throw py::value_error(std::string(what) + " is " + std::string(py::str(value)) +
                          "; give a number of bytes from " + std::to_string(least) + " to " +
                          std::to_string(std::numeric_limits<size_t>::max()));
}

void configure_cache_limit() {
    if (cache_limit_configured) {
        return;
    }
    if (const auto limit =
            bytes_of_variable("DEEPNVME_PIN_CACHE_BYTES", std::getenv("DEEPNVME_PIN_CACHE_BYTES"),
                              "to cache nothing")) {
        registry().set_cache_limit(*limit);
    }
    cache_limit_configured = true;
}

void configure_budget() {
    if (budget_configured) {
        return;
    }
    if (const auto budget = bytes_of_variable(
            "DEEPNVME_PIN_BUDGET", std::getenv("DEEPNVME_PIN_BUDGET"), "to pin nothing")) {
        registry().set_budget(*budget);
    }
    budget_configured = true;
}

void set_cache_limit(size_t nbytes) {
    cache_limit_configured = true;
    const GilReleased unlocked;
    registry().set_cache_limit(nbytes);
}

void set_budget(size_t nbytes) {
    budget_configured = true;
    registry().set_budget(nbytes);
}

}  // namespace deepnvme::python
