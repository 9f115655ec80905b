// Trace events as JSON objects of the Trace Event Format, which chrome://tracing and
// ui.perfetto.dev read:
// https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "io/trace_event.h"

namespace deepnvme::io {

// The largest object, in bytes, with what separates it from the one before.
inline constexpr size_t largest_trace_object = 4096;

// Bytes as they stand in a JSON string, the last ones of them where they are many. What is not
// UTF-8 becomes a lone surrogate, as Python's os.fsdecode() has it.
std::string json_text(std::string_view bytes);

// Each replaces `out`. `text` is a json_text(). Times are microseconds, with three decimals.
void format_event(const TraceEvent& event, std::string_view text, uint32_t process,
                  std::string& out);
// The arrow from the call that made the request to the transfer, which has two ends.
void format_flow(const TraceEvent& transfer, uint64_t number, bool end, uint32_t process,
                 std::string& out);
// "process_name", "thread_name".
void format_name(const char* what, std::string_view text, uint32_t process, uint32_t thread,
                 std::string& out);
// Where tracks stand, one below the other.
void format_order(uint32_t process, uint32_t thread, uint32_t place, std::string& out);
// A mark over the whole process: "dropped", "end of trace".
void format_mark(const char* name, uint64_t events, uint64_t dropped, uint64_t time,
                 uint32_t process, std::string& out);

}  // namespace deepnvme::io
