#include "io/trace_format.h"

#include <array>
#include <charconv>
#include <concepts>

namespace deepnvme::io {
namespace {

constexpr size_t longest_text = 2500;  // of json_text: with the rest it is no larger an object

// Bytes of the UTF-8 sequence that `bytes` begins with, 0 when there is none (RFC 3629).
size_t sequence_length(std::string_view bytes) {
    const auto at = [&](size_t i) {
        return i < bytes.size() ? static_cast<unsigned char>(bytes[i]) : 0U;
    };
    const auto follows = [&](size_t i) { return (at(i) & 0xC0U) == 0x80U; };
    const unsigned first = at(0);
    if (first < 0x80) {
        return 1;
    }
    if (first >= 0xC2 && first <= 0xDF) {
        return follows(1) ? 2 : 0;
    }
    if (first >= 0xE0 && first <= 0xEF) {
        const bool overlong = first == 0xE0 && at(1) < 0xA0;
        const bool surrogate = first == 0xED && at(1) > 0x9F;
        return follows(1) && follows(2) && !overlong && !surrogate ? 3 : 0;
    }
    if (first >= 0xF0 && first <= 0xF4) {
        const bool overlong = first == 0xF0 && at(1) < 0x90;
        const bool beyond = first == 0xF4 && at(1) > 0x8F;
        return follows(1) && follows(2) && follows(3) && !overlong && !beyond ? 4 : 0;
    }
    return 0;
}

void append_escape(std::string& out, unsigned code) {
    constexpr char digits[] = "0123456789abcdef";
    out += "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) {
        out += digits[(code >> shift) & 0xFU];
    }
}

void append(std::string& out, std::string_view text) { out += text; }
void append(std::string& out, const char* text) { out += text; }

template <std::integral Number>
void append(std::string& out, Number number) {
    std::array<char, 24> digits;
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
    out.append(digits.data(), end);
}

struct Microseconds {
    uint64_t nanoseconds;
};
void append(std::string& out, Microseconds time) {
    append(out, time.nanoseconds / 1000);
    const auto rest = static_cast<unsigned>(time.nanoseconds % 1000);
    const char decimals[] = {'.', static_cast<char>('0' + rest / 100),
                             static_cast<char>('0' + rest / 10 % 10),
                             static_cast<char>('0' + rest % 10)};
    out.append(decimals, sizeof decimals);
}

template <typename... Parts>
void write(std::string& out, const Parts&... parts) {
    (append(out, parts), ...);
}

void write_span(const char* category, std::string_view name, const TraceEvent& event,
                uint32_t process, std::string& out) {
    const uint64_t end = event.end > event.begin ? event.end : event.begin;
    write(out, R"({"ph":"X","cat":")", category, R"(","name":")", name, R"(","pid":)", process,
          R"(,"tid":)", event.thread, R"(,"ts":)", Microseconds{event.begin}, R"(,"dur":)",
          Microseconds{end - event.begin},
          event.error != 0 ? R"(,"cname":"terrible","args":{)" : R"(,"args":{)");
}

}  // namespace

std::string json_text(std::string_view bytes) {
    std::string all;
    size_t begin = 0;  // of the bytes that are shown
    for (;; ++begin) {
        all.clear();
        for (size_t i = begin; i < bytes.size();) {
            const auto byte = static_cast<unsigned char>(bytes[i]);
            const size_t length = sequence_length(bytes.substr(i));
            if (length == 0) {
                append_escape(all, 0xDC00U + byte);
            } else if (byte < 0x20 || byte == 0x7F) {
                append_escape(all, byte);
            } else if (byte == '"' || byte == '\\') {
                all += '\\';
                all += static_cast<char>(byte);
            } else {
                all += bytes.substr(i, length);
            }
            i += length == 0 ? 1 : length;
        }
        if (all.size() <= longest_text) {
            return begin == 0 ? all : "..." + all;
        }
        // An escape is six bytes long at most: so many have to go, or more. Half a character is
        // never shown: its escapes are longer than all of it, which was too long.
        begin += (all.size() - longest_text) / 6;
    }
}

void format_event(const TraceEvent& event, std::string_view text, uint32_t process,
                  std::string& out) {
    out.clear();
    if (event.kind == TraceEvent::Kind::thread_name) {
        format_name("thread_name", text, process, event.thread, out);
        return;
    }
    const bool transfer = event.kind == TraceEvent::Kind::transfer;
    const char* name = transfer ? (event.write ? "write" : "read") : event.name;
    write_span(transfer ? "transfer" : "call", name, event, process, out);
    if (!text.empty()) {
        write(out, R"("path":")", text, R"(","offset":)", event.offset, R"(,"bytes":)",
              event.nbytes, ",");
    }
    if (transfer) {
        write(out, R"("request":)", event.request, R"(,"way":")",
              path_names[static_cast<size_t>(event.path)], R"(","done":)", event.nbytes_done,
              R"(,"retries":)", event.retries, R"(,"short":)", event.short_transfers);
    } else {
        write(out, R"("requests":)", event.operations, R"(,"failed":)", event.failed);
        if (event.raised) {
            write(out, R"(,"raised":true)");
        }
    }
    write(out, R"(,"errno":)", event.error, "}}");
}

void format_flow(const TraceEvent& transfer, uint64_t number, bool end, uint32_t process,
                 std::string& out) {
    out.clear();
    // "bp":"e": it belongs to the span that begins there, not to the next one.
    write(out, end ? R"({"ph":"f","bp":"e")" : R"({"ph":"s")",
          R"(,"cat":"request","name":"request","id":)", number, R"(,"pid":)", process, R"(,"tid":)",
          end ? transfer.thread : transfer.caller, R"(,"ts":)",
          Microseconds{end ? transfer.begin : transfer.submitted}, "}");
}

void format_name(const char* what, std::string_view text, uint32_t process, uint32_t thread,
                 std::string& out) {
    out.clear();
    write(out, R"({"ph":"M","name":")", what, R"(","pid":)", process, R"(,"tid":)", thread,
          R"(,"args":{"name":")", text, R"("}})");
}

void format_order(uint32_t process, uint32_t thread, uint32_t place, std::string& out) {
    out.clear();
    write(out, R"({"ph":"M","name":"thread_sort_index","pid":)", process, R"(,"tid":)", thread,
          R"(,"args":{"sort_index":)", place, "}}");
}

void format_mark(const char* name, uint64_t events, uint64_t dropped, uint64_t time,
                 uint32_t process, std::string& out) {
    out.clear();
    write(out, R"({"ph":"i","s":"p","cat":"trace","name":")", name, R"(","pid":)", process,
          R"(,"tid":)", process, R"(,"ts":)", Microseconds{time}, R"(,"args":{"events":)", events,
          R"(,"dropped":)", dropped, "}}");
}

}  // namespace deepnvme::io
