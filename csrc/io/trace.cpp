#include "io/trace.h"

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <utility>

#include "io/trace_format.h"
#include "sys/clock.h"
#include "sys/process.h"
#include "sys/syscalls.h"
#include "sys/thread.h"

namespace deepnvme::io {
namespace {

constexpr std::chrono::milliseconds longest_delay{100};  // until an event is in the file
constexpr size_t events_in_turn = 4096;                  // of one ring, then the next has its turn
constexpr size_t most_known_threads = 4096;
constexpr uint32_t first_row = 5'000'000;  // no thread's number: those end at 4194304 (proc(5))

// An open descriptor that is closed, and a file that is removed again, unless all goes well.
struct Opened {
    const std::string& path;
    int descriptor;
    bool created;
    ~Opened() {
        if (descriptor >= 0) {
            if (created) {
                sys::unlink(path.c_str());
            }
            sys::close(descriptor);
        }
    }
};

}  // namespace

// Of the process. Held while a trace begins or ends, and over a fork.
struct Trace::Registry {
    std::mutex mutex;
    std::vector<Trace*> traces;

    Registry() {
        sys::at_fork([] { instance().mutex.lock(); }, [] { instance().mutex.unlock(); },
                     [] { instance().restart_in_child(); });
    }

    static Registry& instance() {
        static auto* registry = new Registry;  // outlives the handles that nobody closes
        return *registry;
    }

    // The parent's traces are left alone; only its locks on the files must not live on here.
    void restart_in_child() {
        for (Trace* trace : traces) {
            if (trace->descriptor_ >= 0) {
                sys::close(trace->descriptor_);
            }
        }
        traces.clear();
        mutex.unlock();
    }
};

TraceTrack::TraceTrack(Trace& trace, std::string name, uint32_t first_row, uint32_t rows,
                       size_t ring_bytes)
    : trace_(trace),
      name_(std::move(name)),
      first_row_(first_row),
      ring_(ring_bytes),
      named_(rows) {}

void TraceTrack::record(TraceEvent& event, uint32_t row, const TracedRequest& request) {
    event.thread = first_row_ + row;
    event.request = request.number;
    event.caller = request.caller;
    event.submitted = request.submitted;
    if (!ring_.push(event, request.text)) {
        ring_.count_dropped();
    }
    if (ring_.half_full() && !asked_.exchange(true, std::memory_order_relaxed)) {
        trace_.wake();
    }
}

Trace::Trace(std::string path, uint64_t device, uint64_t inode)
    : path_(std::move(path)),
      device_(device),
      inode_(inode),
      process_(static_cast<uint32_t>(::getpid())),
      next_row_(first_row) {}

Trace& Trace::open(const std::string& path, size_t ring_bytes) {
    Registry& registry = Registry::instance();
    const std::lock_guard lock(registry.mutex);
    constexpr int flags = O_WRONLY | O_CREAT | O_NONBLOCK | O_NOCTTY;
    Opened opened{path, sys::open(path.c_str(), flags | O_EXCL, 0600), true};
    if (opened.descriptor == -EEXIST) {
        opened.created = false;
        opened.descriptor = sys::open(path.c_str(), flags, 0600);
    }
    struct statx info{};
    const int unknown =
        opened.descriptor < 0
            ? opened.descriptor
            : sys::statx(opened.descriptor, STATX_TYPE | STATX_INO | STATX_SIZE, &info);
    if (unknown < 0) {
        throw TraceError(-unknown, path, "");
    }
    if (!S_ISREG(info.stx_mode)) {
        throw TraceError(EINVAL, path, "a trace needs a regular file");
    }
    const uint64_t device = uint64_t{info.stx_dev_major} << 32 | info.stx_dev_minor;
    const auto known = std::find_if(
        registry.traces.begin(), registry.traces.end(),
        [&](Trace* trace) { return trace->device_ == device && trace->inode_ == info.stx_ino; });
    Trace* trace = known != registry.traces.end() ? *known : nullptr;
    if (trace != nullptr && trace->users_ > 0) {
        ++trace->users_;
        return *trace;
    }
    // A file system without locks leaves it to the user that nobody else writes there.
    if (sys::lock_file(opened.descriptor) == -EWOULDBLOCK) {
        throw TraceError(EBUSY, path,
                         "another process writes its trace there; give each process a file of its "
                         "own, with %p for its number in DEEPNVME_TRACE");
    }
    std::unique_ptr<Trace> made;
    if (trace == nullptr) {
        made.reset(new Trace(path, device, info.stx_ino));
        registry.traces.reserve(registry.traces.size() + 1);
        trace = made.get();
    }
    const bool resume = trace->size_ == static_cast<off_t>(info.stx_size) && !opened.created;
    if (const int error = trace->start(opened.descriptor, resume, ring_bytes); error != 0) {
        throw TraceError(error, path, "");
    }
    trace->descriptor_ = std::exchange(opened.descriptor, -1);
    trace->users_ = 1;
    if (trace == made.get()) {
        registry.traces.push_back(made.release());
    }
    return *trace;
}

void Trace::close() {
    const std::lock_guard lock(Registry::instance().mutex);
    if (--users_ == 0) {
        stop();
        sys::close(std::exchange(descriptor_, -1));
    }
}

int Trace::start(int descriptor, bool resume, size_t ring_bytes) {
    std::string name;
    format_name("process_name", json_text(program_invocation_short_name), process_, process_, name);
    const int error = resume ? file_.resume(descriptor) : file_.start(descriptor, name);
    if (error != 0) {
        return error;
    }
    if (!resume) {
        events_ = dropped_ = 0;
        const std::lock_guard lock(calls_mutex_);
        known_threads_.clear();
    }
    stopping_ = failure_told_ = false;
    ring_bytes_ = ring_bytes;
    calls_dropped_ = 0;
    auto calls = std::make_unique<TraceRing>(ring_bytes);
    {
        const std::lock_guard lock(calls_mutex_);
        calls_ = std::move(calls);
    }
    try {
        writer_ = sys::start_thread("dnvme-trace", [this] { run(); });
    } catch (...) {
        end();
        throw;
    }
    return 0;
}

void Trace::stop() {
    {
        const std::lock_guard lock(wake_mutex_);
        stopping_ = true;
    }
    woken_.notify_one();
    writer_.join();
    end();
}

void Trace::end() {
    file_.finish([this] { return last_object(); });
    tell_failure();
    size_ = file_.size();
    {
        const std::lock_guard lock(calls_mutex_);
        calls_.reset();
    }
    const std::lock_guard lock(tracks_mutex_);
    tracks_.clear();
}

std::shared_ptr<TraceTrack> Trace::add_track(const std::string& name, uint32_t rows) {
    const std::lock_guard lock(tracks_mutex_);
    auto track = std::make_shared<TraceTrack>(*this, json_text(name), next_row_, rows, ring_bytes_);
    tracks_.push_back(track);
    next_row_ += rows;
    TraceTrack* shown = track.get();
    return {shown, [track = std::move(track)](TraceTrack* ended) {
                ended->ended_.store(true, std::memory_order_release);
            }};
}

std::unique_ptr<const TracedRequest> Trace::begin_request(const std::string& path) {
    return std::make_unique<const TracedRequest>(
        TracedRequest{next_request_.fetch_add(1, std::memory_order_relaxed),
                      static_cast<uint32_t>(::gettid()), sys::monotonic_ns(), json_text(path)});
}

void Trace::record_call(TraceEvent& event, std::string_view text) {
    event.kind = TraceEvent::Kind::call;
    event.thread = static_cast<uint32_t>(::gettid());
    const std::lock_guard lock(calls_mutex_);
    if (calls_ == nullptr) {
        return;
    }
    if (!known_threads_.contains(event.thread)) {
        std::array<char, 16> name{};
        ::pthread_getname_np(::pthread_self(), name.data(), name.size());
        TraceEvent naming;
        naming.kind = TraceEvent::Kind::thread_name;
        naming.thread = event.thread;
        const bool main = event.thread == process_;
        if (calls_->push(naming, main ? "main thread" : json_text(name.data()))) {
            if (known_threads_.size() == most_known_threads) {
                known_threads_.clear();  // the others get their names once more
            }
            known_threads_.insert(event.thread);
        }
    }
    if (!calls_->push(event, text)) {
        calls_->count_dropped();
    }
    if (calls_->half_full() && !calls_asked_.exchange(true, std::memory_order_relaxed)) {
        wake();
    }
}

void Trace::wake() {
    {
        const std::lock_guard lock(wake_mutex_);
        wanted_ = true;
    }
    woken_.notify_one();
}

void Trace::run() {
    for (bool last = false; !last;) {
        {
            std::unique_lock lock(wake_mutex_);
            woken_.wait_for(lock, longest_delay, [&] { return wanted_ || stopping_; });
            wanted_ = false;
            last = stopping_;
        }
        while (drain()) {
            tell_failure();
        }
        file_.flush();
        tell_failure();
    }
}

void Trace::tell_failure() {
    if (file_.error() != 0 && !failure_told_) {
        failure_told_ = true;
        failure_.store(file_.error(), std::memory_order_relaxed);
    }
}

bool Trace::drain() {
    std::vector<std::shared_ptr<TraceTrack>> tracks;
    {
        const std::lock_guard lock(tracks_mutex_);
        tracks.assign(tracks_.begin(), tracks_.end());
    }
    bool found = drain_calls();
    for (const auto& track : tracks) {
        const bool ended = track->ended_.load(std::memory_order_acquire);
        if (drain(*track)) {
            found = true;
        } else if (ended) {
            const std::lock_guard lock(tracks_mutex_);
            tracks_.remove(track);
        }
    }
    return found;
}

bool Trace::drain_calls() {
    calls_asked_.store(false, std::memory_order_relaxed);
    TraceEvent event;
    size_t count = 0;
    while (count < events_in_turn && calls_->pop(event, text_)) {
        write(event);
        ++count;
    }
    note_dropped(calls_dropped_, calls_->dropped());
    return count > 0;
}

bool Trace::drain(TraceTrack& track) {
    track.asked_.store(false, std::memory_order_relaxed);
    TraceEvent event;
    size_t count = 0;
    while (count < events_in_turn && track.ring_.pop(event, text_)) {
        const uint32_t row = event.thread - track.first_row_;
        if (!track.named_[row]) {
            name_row(track, row);
            track.named_[row] = true;
        }
        write(event);
        for (const bool end : {false, true}) {
            format_flow(event, next_flow_, end, process_, object_);
            file_.add(object_, false);
        }
        ++next_flow_;
        ++count;
    }
    note_dropped(track.dropped_, track.ring_.dropped());
    return count > 0;
}

void Trace::name_row(const TraceTrack& track, uint32_t row) {
    const uint32_t thread = track.first_row_ + row;
    const std::string name = row == 0 ? track.name_ : track.name_ + " +" + std::to_string(row);
    format_name("thread_name", name, process_, thread, object_);
    file_.add(object_, false);
    format_order(process_, thread, thread, object_);
    file_.add(object_, false);
}

void Trace::write(const TraceEvent& event) {
    const bool counted = event.kind != TraceEvent::Kind::thread_name;
    events_ += counted ? 1 : 0;
    format_event(event, text_, process_, object_);
    file_.add(object_, counted);
}

void Trace::note_dropped(uint64_t& known, uint64_t now) {
    if (now == known) {
        return;
    }
    dropped_ += now - known;
    known = now;
    format_mark("dropped", events_, dropped_, sys::monotonic_ns(), process_, object_);
    file_.add(object_, false);
}

std::string Trace::last_object() const {
    const uint64_t lost = events_ - file_.events();
    std::string last;
    format_mark("end of trace", file_.events(), dropped_ + lost, sys::monotonic_ns(), process_,
                last);
    return last;
}

}  // namespace deepnvme::io
