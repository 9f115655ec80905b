// Guards: whatever an engine answers, a request has moved every byte or failed with an errno that
// one of its transfers got; nothing else is touched, and the pump ends with nothing in its hands.
#include <sys/mman.h>

#include <array>
#include <cerrno>
#include <set>
#include <string_view>

#include "draws.h"
#include "pump_rig.h"

using namespace deepnvme;
using namespace deepnvme::test;

namespace {

constexpr size_t kRoom = 12 * kPage;  // of a file
constexpr size_t kMostJobs = 6;
constexpr size_t kLeastBlock = 100;  // smaller ones make more chunks, and no other paths
constexpr std::array kTransient = {EAGAIN, EINTR, EBUSY};
constexpr std::array kErrors = {EIO, EINVAL, EOPNOTSUPP, EFAULT, ENOSPC, EBADF};

// In memory, and yet with O_DIRECT, as long as nobody asks what kind of file system it is.
class MemoryFile {
public:
    explicit MemoryFile(const Bytes& bytes) : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
        CHECK(fd_ >= 0 && ::pwrite(fd_, bytes.data(), bytes.size(), 0) == ssize(bytes.size()));
    }
    ~MemoryFile() { ::close(fd_); }
    MemoryFile(const MemoryFile&) = delete;
    MemoryFile& operator=(const MemoryFile&) = delete;
    int fd() const { return fd_; }
    void truncate(size_t nbytes) { CHECK(::ftruncate(fd_, ssize(nbytes)) == 0); }
    // Up to kRoom; zeros beyond its end.
    Bytes contents() const {
        Bytes bytes(kRoom);
        CHECK(::pread(fd_, bytes.data(), kRoom, 0) >= 0);
        return bytes;
    }

private:
    static ssize_t ssize(size_t nbytes) { return static_cast<ssize_t>(nbytes); }
    int fd_;
};

// Rows of `run` bytes, `gap` bytes apart, at `shift` behind a page; nothing may touch what lies
// beside, and the address sanitizer sees who touches what lies behind.
class Rows {
public:
    Rows(size_t rows, size_t run, size_t gap, size_t shift)
        : rows_(rows), run_(run), gap_(gap), shift_(shift), size_(shift + rows * (run + gap)) {
        void* memory = nullptr;
        CHECK(::posix_memalign(&memory, kPage, size_) == 0);
        memory_.reset(static_cast<std::byte*>(memory));
        std::fill_n(memory_.get(), size_, kBeside);
    }
    size_t nbytes() const { return rows_ * run_; }
    std::byte* data() const { return memory_.get() + shift_; }
    std::byte& at(size_t i) const { return data()[i / run_ * (run_ + gap_) + i % run_]; }
    std::shared_ptr<io::Layout> layout() const {
        const auto signed_of = [](size_t value) { return static_cast<int64_t>(value); };
        return gap_ == 0 ? nullptr
                         : std::make_shared<io::Layout>(
                               std::vector{signed_of(rows_), signed_of(run_)},
                               std::vector<int64_t>{signed_of(run_ + gap_), 1}, 1);
    }
    void check_beside() const {
        for (size_t i = 0; i < shift_; ++i) {
            CHECK(memory_.get()[i] == kBeside);
        }
        for (size_t row = 0; row < rows_; ++row) {
            for (size_t i = run_; i < run_ + gap_; ++i) {
                CHECK(data()[row * (run_ + gap_) + i] == kBeside);
            }
        }
    }

private:
    static constexpr std::byte kBeside{0x5A};
    struct Free {
        void operator()(std::byte* memory) const { std::free(memory); }
    };
    size_t rows_, run_, gap_, shift_, size_;
    std::unique_ptr<std::byte, Free> memory_;
};

struct Job {
    Rows rows;
    size_t offset;
    bool write;
    Started started;
    std::set<int> must;  // it got one of these, so it has to fail
    std::set<int> may;   // it may have failed by these

    size_t end() const { return offset + rows.nbytes(); }
    bool holds(const io::Transfer& t) const {
        return t.write == write && static_cast<size_t>(t.offset) >= offset &&
               static_cast<size_t>(t.offset) < end();
    }
};

// What the hook of system calls answers, between the start of a run and its end.
struct Refusals {
    fuzz::Draws* draws = nullptr;
    bool open = false;
    bool memory = false;
};
Refusals refusals;

int refuse(const char* call) {
    if (std::string_view(call) == "fstatfs") {
        return ENOSYS;
    }
    const bool open = std::string_view(call) == "open";
    if (refusals.draws == nullptr || (!open && std::string_view(call) != "mmap") ||
        refusals.draws->below(4) != 3) {
        return 0;
    }
    (open ? refusals.open : refusals.memory) = true;
    return open ? EMFILE : ENOMEM;
}

const Bytes& old_bytes() {  // of both files, before
    static const Bytes bytes = noise(kRoom, 1);
    return bytes;
}

class Run {
public:
    explicit Run(fuzz::Draws& draws)
        : draws_(draws),
          source_size_(kRoom),
          target_size_(draws.yes() ? draws.below(kRoom) : kRoom),
          source_(old_bytes()),
          target_(Bytes(old_bytes().begin(),
                        old_bytes().begin() + static_cast<std::ptrdiff_t>(target_size_))),
          rig_({.depth = static_cast<uint32_t>(1 + draws.below(8)),
                .staging_bytes = (3 + draws.below(6)) * kPage,
                .single_submit = draws.yes()}) {
        jobs_.reserve(kMostJobs);
    }

    void operator()() {
        write_script();
        start_jobs();
        if (draws_.below(4) == 3) {
            source_size_ = draws_.below(kRoom);
            source_.truncate(source_size_);
        }
        refusals = {&draws_, false, false};
        rig_.run();
        check(std::exchange(refusals, {}));
    }

private:
    // Before the run; a byte of the file, 0 beyond its end.
    std::byte old_byte(bool write, size_t position) const {
        return write && position >= target_size_ ? std::byte{0} : old_bytes()[position];
    }

    void start_jobs() {
        size_t position = 0;
        const io::PlanLimits limits{4 * kPage - draws_.below(4 * kPage - kLeastBlock),
                                    3 * kPage - draws_.below(3 * kPage - kLeastBlock)};
        std::shared_ptr<io::File> last[2];  // [write]
        while (jobs_.size() < kMostJobs && !draws_.empty()) {
            position += draws_.yes() ? draws_.below(kPage) : -position % kPage;
            const size_t pages = draws_.below(4) * kPage;
            const size_t wanted = pages + (draws_.yes() ? draws_.below(kPage) : kPage);
            const size_t rows = draws_.yes() ? 1 + draws_.below(8) : 1;
            if (wanted == 0 || position + wanted > kRoom || wanted < rows) {
                return;
            }
            const size_t gap = rows > 1 ? draws_.below(40) : 0;
            const size_t shift = draws_.yes() ? draws_.below(kPage) : 0;
            const bool write = draws_.yes();
            jobs_.push_back({Rows(rows, wanted / rows, gap, shift), position, write, {}, {}, {}});
            Job& job = jobs_.back();
            position = job.end();
            for (size_t i = 0; i < job.rows.nbytes(); ++i) {  // every byte that moves is seen to
                job.rows.at(i) = ~old_byte(write, job.offset + i);
            }
            const bool shared = draws_.yes();  // a file that an earlier one has opened
            start(job, limits, shared ? last[write] : nullptr);
            last[write] = job.started.file;
        }
    }

    void start(Job& job, const io::PlanLimits& limits, std::shared_ptr<io::File> file) {
        io::Request request;
        request.data = job.rows.data();
        request.nbytes = job.rows.nbytes();
        request.offset = static_cast<off_t>(job.offset);
        request.write = job.write;
        request.layout = job.rows.layout();
        request.validate = draws_.yes();
        if (file == nullptr) {
            const int fd = job.write ? target_.fd() : source_.fd();
            file = io::File::open({"", fd}, job.write, request.nbytes, request.offset, {});
        }
        job.started = rig_.start(std::move(request), "", limits, std::move(file));
    }

    void write_script() {
        ScriptedEngine& engine = rig_.engine;
        engine.registers = draws_.yes();
        engine.register_error = draws_.below(4) == 3 ? -ENOMEM : 0;
        engine.capacity = draws_.yes() ? 1 + draws_.below(8) : SIZE_MAX;
        if (draws_.yes()) {
            engine.pick = [this](size_t below) { return draws_.below(below); };
        }
        engine.answer_reap = [this] { return draws_.below(16) == 15 ? -any_errno() : 0; };
        engine.answer_submit = [this](std::span<const io::Transfer> transfers) {
            switch (draws_.below(12)) {
                case 9:
                    return static_cast<int>(draws_.below(transfers.size() + 1));
                case 10:
                    return -draws_.of(kTransient);
                case 11:
                    return -fail(transfers.front(), draws_.of(kErrors));
                default:
                    return static_cast<int>(transfers.size());
            }
        };
        engine.fate = [this](const io::Transfer& t) { return fate(t); };
    }

    int any_errno() { return draws_.yes() ? draws_.of(kErrors) : draws_.of(kTransient); }

    Fate fate(const io::Transfer& t) {
        switch (draws_.below(12)) {
            case 9:
                return Fate::fail(draws_.of(kTransient));
            case 10:
                return Fate::fail(fail(t, draws_.of(kErrors)));
            case 11: {
                const auto nbytes = static_cast<uint32_t>(draws_.below(t.nbytes));
                if (!t.write && static_cast<size_t>(t.offset) + nbytes > source_size_) {
                    return Fate::pass();  // there are no such bytes
                }
                if (nbytes == 0) {
                    job_of(t).must.insert(t.write ? EIO : ENODATA);
                }
                return Fate::cut(nbytes);
            }
            default:
                return Fate::pass();
        }
    }

    Job& job_of(const io::Transfer& t) {
        const auto found =
            std::find_if(jobs_.begin(), jobs_.end(), [&](const Job& job) { return job.holds(t); });
        CHECK(found != jobs_.end());
        CHECK(static_cast<size_t>(t.offset) + t.nbytes <= found->end());
        return *found;
    }

    // What this error means for the job whose transfer gets it.
    int fail(const io::Transfer& t, int error) {
        const bool other_way = (error == EINVAL || error == EOPNOTSUPP) && opened_direct(t.fd);
        const bool unregistered = (error == EFAULT || error == EOPNOTSUPP) && t.buffer_index >= 0;
        if (!other_way && !unregistered) {
            job_of(t).must.insert(error);
        }
        return error;
    }

    void check(const Refusals& refused) {
        uint64_t failed = 0;
        uint64_t moved[2] = {0, 0};
        const Bytes target = target_.contents();
        Bytes expected = old_bytes();
        std::fill(expected.begin() + static_cast<std::ptrdiff_t>(target_size_), expected.end(),
                  std::byte{0});
        for (Job& job : jobs_) {
            if (!job.write && job.end() > source_size_) {
                job.must.insert(ENODATA);
            }
            if (refused.open) {
                job.may.insert(EMFILE);
            }
            if (refused.memory) {
                job.may.insert(ENOMEM);
            }
            job.rows.check_beside();
            const size_t arrived = check_bytes(job, target);
            failed += check_outcome(job, arrived);
            moved[job.write] += job.rows.nbytes();
            for (size_t at = job.offset; job.write && at < job.end(); ++at) {
                expected[at] = target[at];  // looked at by check_bytes
            }
        }
        CHECK(target == expected);
        CHECK(rig_.activity->failed == failed && rig_.pump.idle());
        for (const bool write : {false, true}) {
            CHECK(failed > 0 ? rig_.moved(write) <= moved[write]
                             : rig_.moved(write) == moved[write]);
        }
    }

    // How many bytes have arrived; each of the others is as it was.
    size_t check_bytes(const Job& job, const Bytes& target) const {
        size_t arrived = 0;
        for (size_t i = 0; i < job.rows.nbytes(); ++i) {
            const std::byte was = old_byte(job.write, job.offset + i);
            if (job.write) {
                CHECK(job.rows.at(i) == ~was);  // a source stays as it is
                const std::byte now = target[job.offset + i];
                CHECK(now == was || now == ~was);
                arrived += now == ~was;
            } else {
                const std::byte now = job.rows.at(i);
                CHECK(now == was || now == ~was);
                arrived += now == was;
            }
        }
        return arrived;
    }

    // 1 if it failed.
    static uint64_t check_outcome(const Job& job, size_t arrived) {
        const auto outcome = job.started.group->outcome();
        CHECK(job.started.group->done() && outcome.completed + outcome.failures.size() == 1);
        if (outcome.failures.empty()) {
            CHECK(job.must.empty());
            CHECK(outcome.nbytes == job.rows.nbytes() && arrived == job.rows.nbytes());
            return 0;
        }
        const io::Failure& failure = outcome.failures[0];
        CHECK(job.must.contains(failure.error) || job.may.contains(failure.error));
        CHECK(failure.offset == static_cast<off_t>(job.offset));
        CHECK(failure.nbytes == job.rows.nbytes() && failure.nbytes_done <= arrived);
        CHECK(failure.action == (job.write ? io::Action::write : io::Action::read));
        return 1;
    }

    fuzz::Draws& draws_;
    size_t source_size_;
    size_t target_size_;
    MemoryFile source_;
    MemoryFile target_;
    Rig rig_;
    std::vector<Job> jobs_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const bool hooked = (sys::set_fault_hook(refuse), true);
    static_cast<void>(hooked);
    fuzz::Draws draws(data, size);
    Run run(draws);
    run();
    return 0;
}
