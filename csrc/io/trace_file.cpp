#include "io/trace_file.h"

#include <algorithm>
#include <cerrno>

#include "io/trace_format.h"
#include "sys/syscalls.h"

namespace deepnvme::io {
namespace {

constexpr off_t page = 4096;
static_assert(largest_trace_object <= page);
constexpr size_t most_tries = 3;
constexpr size_t buffer_limit = 64 << 10;  // bytes, then they are written

}  // namespace

int TraceFile::start(int descriptor, std::string_view first) {
    *this = TraceFile();
    descriptor_ = descriptor;
    if (const int error = sys::truncate(descriptor, 0); error < 0) {
        return -error;
    }
    buffer_ = "[\n";
    buffer_ += first;
    const int error = write_buffer();
    pages_.push_back({flushed_, 0});
    return error;
}

int TraceFile::resume(int descriptor) {
    descriptor_ = descriptor;
    error_ = 0;
    flushed_ = end_;
    pages_.assign(1, {end_, events_});
    return -sys::truncate(descriptor, end_);
}

void TraceFile::add(std::string_view object, bool event) {
    if (error_ != 0) {
        return;
    }
    append(object);
    events_ += event ? 1 : 0;
    if (buffer_.size() >= buffer_limit) {
        flush();
    }
}

void TraceFile::append(std::string_view object) {
    const off_t used = position() % page;
    if (used + static_cast<off_t>(object.size()) + 2 > page) {
        buffer_.append(static_cast<size_t>(page - used), ' ');
        pages_.push_back({position(), events_});
    }
    buffer_ += ",\n";
    buffer_ += object;
}

void TraceFile::flush() {
    if (error_ != 0) {
        return;
    }
    if (const int error = write_buffer(); error != 0) {
        give_up(error);
        return;
    }
    while (pages_.size() > most_tries) {
        pages_.pop_front();
    }
}

int TraceFile::write_buffer() {
    size_t done = 0;
    int error = 0;
    while (done < buffer_.size() && error == 0) {
        const ssize_t written =
            sys::pwrite(descriptor_, buffer_.data() + done, buffer_.size() - done, flushed_);
        if (written > 0) {
            done += static_cast<size_t>(written);
            flushed_ += written;
        } else if (written != -EINTR) {
            error = written == 0 ? ENOSPC : static_cast<int>(-written);
        }
    }
    buffer_.clear();
    return error;
}

// Back to the last page that begins with a whole object and has been written: its place is there.
void TraceFile::give_up(int error) {
    error_ = error;
    while (pages_.size() > 1 && pages_.back().begin >= flushed_) {
        pages_.pop_back();
    }
    flushed_ = std::min(flushed_, pages_.back().begin);
    events_ = pages_.back().events;
}

void TraceFile::finish(const std::function<std::string()>& last) {
    flush();
    // Room for a page of the file may be less than a page (RLIMIT_FSIZE): then one page earlier.
    for (size_t tries = 0;; ++tries) {
        end_ = flushed_;
        append(last());
        buffer_ += "\n]\n";
        const int error = write_buffer();
        if (error == 0) {
            break;
        }
        flushed_ = end_;
        give_up(error);
        if (tries == most_tries) {
            end_ = flushed_;
            break;  // no room even for this: an array without its end, which readers accept
        }
    }
    if (const int error = -sys::truncate(descriptor_, flushed_); error != 0 && error_ == 0) {
        error_ = error;
    }
}

}  // namespace deepnvme::io
