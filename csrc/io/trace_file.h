// The file of a trace: a JSON array of Trace Event Format objects.
//   1. It can be read at any time: readers accept an array without its end, and no object crosses a
//      page of the file (spaces fill it up), so that whatever a kill or a full disk leaves of a
//      write ends behind a whole object.
//   2. finish() appends a last object and the end of the array. resume() takes both off again.
//   3. Once a write has failed, nothing more is written: what comes is refused, and finish() puts
//      the end in place of the last page, for which there is room even on a full disk.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>

namespace deepnvme::io {

class TraceFile {
public:
    // Empties the open file, which is the caller's, and writes `first`: 0, or an errno.
    int start(int descriptor, std::string_view first);
    // Goes on behind what was there before finish(): 0, or an errno.
    int resume(int descriptor);

    // At most largest_trace_object bytes. `event`: it is one of those that events() counts.
    void add(std::string_view object, bool event);
    void flush();
    // Ends the file with the object that `last` makes, once it is known what else is there. The
    // file is not touched any more.
    void finish(const std::function<std::string()>& last);

    int error() const { return error_; }         // the errno that has stopped it, or 0
    uint64_t events() const { return events_; }  // that are kept; a failure lessens them
    off_t size() const { return flushed_; }      // bytes, once finished

private:
    off_t position() const { return flushed_ + static_cast<off_t>(buffer_.size()); }
    void append(std::string_view object);
    int write_buffer();
    void give_up(int error);

    // Where a page begins with a whole object, and how many events lie before it.
    struct Page {
        off_t begin;
        uint64_t events;
    };

    int descriptor_ = -1;
    std::string buffer_;
    off_t flushed_ = 0;       // bytes of the file that are written
    off_t end_ = 0;           // where finish() wrote
    std::deque<Page> pages_;  // those not written, and one or two before
    uint64_t events_ = 0;
    int error_ = 0;
};

}  // namespace deepnvme::io
