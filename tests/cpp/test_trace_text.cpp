// Guards: any bytes are JSON text, and the end of a long name is shown, never half a character; no
// event is too large for its page.
#include <climits>
#include <cstdint>
#include <string>
#include <string_view>

#include "check.h"
#include "io/trace_file.h"
#include "io/trace_format.h"

using namespace deepnvme;
using io::TraceEvent;

namespace {

void text_is_json() {
    CHECK(io::json_text("a/b c") == "a/b c");
    CHECK(io::json_text("\"\\\n\x7f") == R"(\"\\\u000a\u007f)");
    CHECK(io::json_text("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80") ==
          "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
    CHECK(io::json_text("\xff\xc3(\xe2\x82\xed\xa0\x80") ==
          R"(\udcff\udcc3(\udce2\udc82\udced\udca0\udc80)");
    const std::string shown = io::json_text(std::string(4000, '\x01') + "end");
    CHECK(shown.size() <= 2600 && shown.starts_with("...") && shown.ends_with("end"));
    TraceEvent event;
    event.request = event.begin = event.nbytes = UINT64_MAX;
    event.end = event.nbytes_done = UINT64_MAX;
    event.error = event.retries = event.short_transfers = event.thread = INT32_MAX;
    event.path = io::Path::buffered;
    event.offset = INT64_MAX;
    std::string formatted;
    io::format_event(event, shown, UINT32_MAX, formatted);
    CHECK(formatted.size() + 2 <= io::largest_trace_object);
}

// As many whole characters of the end as there is room for, or one or two less.
void the_end_of_a_long_name() {
    for (const std::string_view character : {"x", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"}) {
        for (size_t more = 0; more < 9; ++more) {
            std::string name(more, 'a');
            while (name.size() <= 2500 + 100 * more) {
                name += character;
            }
            name += std::string(more, 'z');
            const std::string shown = io::json_text(name);
            CHECK(shown.starts_with("...") && name.ends_with(shown.substr(3)));
            CHECK(shown.size() - 3 <= 2500 && shown.size() - 3 > 2500 - 2 * character.size());
            CHECK((shown[3] & '\xC0') != '\x80');
        }
    }
}

}  // namespace

int main() {
    text_is_json();
    the_end_of_a_long_name();
    return 0;
}
