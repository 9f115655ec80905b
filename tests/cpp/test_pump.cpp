// Guards: every completion is looked at: a short one is continued from an aligned place, an end of
// file and an error are told with the bytes that moved, and nobody else's request pays (A-05, A-11,
// A-12, B-08).
#include <cerrno>
#include <cstdio>
#include <random>

#include "io/pump.h"
#include "pump_rig.h"

using namespace deepnvme;
using namespace deepnvme::test;
using io::Path;

namespace {

constexpr uint32_t kMostTries = 64;  // of one transfer: any small bound

// Cuts the first transfer only.
std::function<Fate(const io::Transfer&)> cut_once(uint32_t nbytes) {
    return [nbytes, cut = false](const io::Transfer&) mutable {
        return std::exchange(cut, true) ? Fate::pass() : Fate::cut(nbytes);
    };
}

void short_transfer_goes_on(bool write, bool direct, size_t shift, uint32_t cut) {
    constexpr size_t nbytes = 5 * kPage;
    const Bytes data = noise(nbytes, cut + shift);
    const ScratchFile file(write ? Bytes(nbytes) : data);
    const Memory memory(write ? data : Bytes(nbytes), shift);
    Rig rig;
    rig.engine.fate = cut_once(cut);
    auto request = write ? writing(memory, nbytes) : reading(memory, nbytes);
    // Opened as a small request is, a file is not direct.
    const auto opened = direct ? nullptr : io::File::open({file.path(), -1}, write, 1, 0, {});
    const Started started = rig.start(std::move(request), file.path(), {}, opened);
    const bool staged = direct && shift != 0;
    const uint64_t granule = started.file->alignment().granule;
    rig.run();

    CHECK(started.completed() && started.group->outcome().nbytes == nbytes);
    CHECK((write ? file.contents() : memory.bytes()) == data);
    const auto& seen = rig.engine.seen;
    CHECK(seen.size() == 2 && seen[0].direct == direct && seen[0].transfer.nbytes == nbytes);
    CHECK(rig.counters.short_transfers.get() == 1 && rig.moved(write) == nbytes);
    const uint64_t done = direct ? cut / granule * granule : cut;
    CHECK(seen[1].transfer.offset == static_cast<off_t>(done));
    CHECK(seen[1].transfer.nbytes == nbytes - done);
    CHECK(seen[1].transfer.data == seen[0].transfer.data + done);
    // Where an aligned restart would be no progress, the page cache takes over.
    CHECK(seen[1].direct == (direct && done > 0));
    const Path path = staged ? Path::staged : seen[1].direct ? Path::direct : Path::buffered;
    CHECK(rig.moved(write, path) == nbytes);
    const auto& device = rig.counters.devices[started.file->device_place()];
    CHECK(device[write].get() == nbytes && device[!write].get() == 0);
}

// One transfer that is cut again and again, with nothing else in line.
void cut_to_the_last_byte(bool write) {
    constexpr size_t nbytes = 3 * kPage + 17;
    const Bytes data = noise(nbytes, 1);
    const ScratchFile file(write ? Bytes() : data);
    const Memory memory(write ? data : Bytes(nbytes), 3);
    Rig rig({.depth = 2});
    rig.engine.fate = [](const io::Transfer& t) { return Fate::cut((t.nbytes + 1) / 2); };
    const Started started =
        rig.start(write ? writing(memory, nbytes, 5) : reading(memory, nbytes - 5, 5), file.path());
    rig.run();
    CHECK(started.completed());
    if (write) {
        const Bytes contents = file.contents();
        CHECK(Bytes(contents.begin() + 5, contents.end()) == data);
    } else {
        CHECK(std::equal(data.begin() + 5, data.end(), memory.data()));
    }
    CHECK(rig.counters.short_transfers.get() > 10);
}

void transient_completions(int error) {
    constexpr size_t nbytes = 4 * kPage;
    const Bytes data = noise(nbytes, 2);
    for (uint32_t times : {1U, 5U, UINT32_MAX}) {
        const ScratchFile file(data);
        const Memory memory(nbytes);
        Rig rig;
        uint32_t answered = 0;
        rig.engine.fate = [&](const io::Transfer&) {
            return answered < times ? ++answered, Fate::fail(error) : Fate::pass();
        };
        const Started started = rig.start(reading(memory, nbytes), file.path());
        rig.run();
        CHECK(started.completed() && memory.bytes() == data && rig.moved(false) == nbytes);
        CHECK(rig.engine.seen.size() <= kMostTries && rig.counters.retries.get() >= answered);
    }
}

int every_plain_call_fails(const char* call) {
    return std::string_view(call) == "pread" || std::string_view(call) == "pwrite" ? EAGAIN : 0;
}

void transient_for_ever_is_an_error() {
    const ScratchFile file(noise(kPage, 3));
    const Memory memory(kPage);
    Rig rig;
    rig.engine.fate = [](const io::Transfer&) { return Fate::fail(EAGAIN); };
    const Started started = rig.start(reading(memory, kPage), file.path());
    sys::set_fault_hook(every_plain_call_fails);
    rig.run();
    sys::set_fault_hook(nullptr);
    CHECK(started.failure().error == EAGAIN && started.failure().nbytes_done == 0);
    CHECK(rig.engine.seen.size() <= kMostTries);
}

// Progress in between: as many refusals as it takes, none of them counted to the next.
void transient_between_short_ones() {
    constexpr size_t nbytes = 64 * kPage;
    const Bytes data = noise(nbytes, 4);
    const ScratchFile file;
    const Memory memory(data);
    Rig rig;
    uint32_t call = 0;
    rig.engine.fate = [&](const io::Transfer&) {
        return ++call % 4 == 0 ? Fate::cut(kPage) : Fate::fail(EINTR);
    };
    const Started started = rig.start(writing(memory, nbytes), file.path());
    rig.run();
    CHECK(started.completed() && file.contents() == data);
    CHECK(call > 3 * nbytes / kPage);  // a plain call, which nobody cuts, was never needed
}

// The file shrinks once the request is under way.
void end_of_file(bool direct, size_t shift, size_t left) {
    constexpr size_t nbytes = 8 * kPage;
    const Bytes data = noise(nbytes, 5);
    ScratchFile file(data);
    const Bytes before = noise(nbytes, 6);
    const Memory memory(before, shift);
    Rig rig({.depth = 3});
    const auto opened = direct ? nullptr : io::File::open({file.path(), -1}, false, 1, 0, {});
    const io::PlanLimits limits{2 * kPage, 2 * kPage};
    const Started started = rig.start(reading(memory, nbytes), file.path(), limits, opened);
    file.truncate(left);
    rig.run();
    const io::Failure failure = started.failure();
    CHECK(failure.error == ENODATA && failure.path == file.path() && failure.detail != "");
    CHECK(failure.nbytes == nbytes && failure.offset == 0 && failure.action == io::Action::read);
    // Of a chunk that was to be copied out of a staging block nothing has reached the memory.
    const bool staged = direct && shift != 0;
    const size_t reached = staged ? left / (2 * kPage) * (2 * kPage) : left;
    CHECK(failure.nbytes_done == reached);
    CHECK(std::equal(data.begin(), data.begin() + static_cast<std::ptrdiff_t>(reached),
                     memory.data()));
    const Bytes after = memory.bytes();
    if (staged) {
        CHECK(std::equal(before.begin() + static_cast<std::ptrdiff_t>(reached), before.end(),
                         after.begin() + static_cast<std::ptrdiff_t>(reached)));
    }
    CHECK(rig.engine.seen.size() <= kMostTries);
}

void nothing_written_is_an_error() {
    const ScratchFile file;
    const Memory memory(kPage);
    Rig rig;
    rig.engine.fate = [](const io::Transfer&) { return Fate::cut(0); };
    const Started started = rig.start(writing(memory, kPage), file.path());
    rig.run();
    CHECK(started.failure().error == EIO && started.failure().action == io::Action::write);
    CHECK(started.failure().nbytes_done == 0 && rig.engine.seen.size() == 1);
}

void direct_refused_once(bool write, bool at_submission, int error) {
    constexpr size_t nbytes = 16 * kPage + 100;  // with a tail through the page cache
    const Bytes data = noise(2 * nbytes, 7);
    const ScratchFile file(write ? Bytes(2 * nbytes) : data);
    const Memory memory(write ? data : Bytes(2 * nbytes));
    const Memory second(Bytes(memory.data() + nbytes, memory.data() + 2 * nbytes));
    Rig rig({.depth = 4});
    size_t refused = 0;
    if (at_submission) {
        rig.engine.at_submit = {-error};
    } else {
        rig.engine.fate = [&](const io::Transfer& t) {
            const bool refuses = opened_direct(t.fd) && t.nbytes >= kPage;
            refused += refuses ? 1 : 0;
            return refuses ? Fate::fail(error) : Fate::pass();
        };
    }
    const io::PlanLimits limits{2 * kPage, 2 * kPage};
    const Started first =
        rig.start(write ? writing(memory, nbytes) : reading(memory, nbytes), file.path(), limits);
    // A second request on the same open file.
    const auto offset = static_cast<off_t>(nbytes);
    const Started other =
        rig.start(write ? writing(second, nbytes, offset) : reading(second, nbytes, offset),
                  file.path(), limits, first.file);
    rig.run();
    CHECK(first.completed() && other.completed());
    if (write) {
        CHECK(file.contents() == data);
    } else {
        CHECK(std::equal(data.begin(), data.begin() + nbytes, memory.data()));
        CHECK(std::equal(data.begin() + nbytes, data.end(), second.data()));
    }
    CHECK(rig.counters.direct_refused.get() == 1 && !first.file->direct());
    CHECK(!opened_direct(first.file->direct_descriptor()));
    CHECK(at_submission || (refused > 0 && refused <= 4));  // those that were in flight
    CHECK(rig.moved(write, Path::direct) == 0 && rig.moved(write) == 2 * nbytes);
}

// Seen in the middle of the change: another worker that finds the file not direct goes through the
// first descriptor, which then must have lost O_DIRECT already.
const io::File* changing = nullptr;
int flag_changes = 0;

int look_at_the_file(const char* call) {
    if (std::string_view(call) == "fcntl") {
        ++flag_changes;
        CHECK(changing->direct());
    }
    return 0;
}

void direct_is_off_before_it_is_said() {
    const ScratchFile file(noise(kPage, 8));
    const auto opened = io::File::open({file.path(), -1}, false, kPage, 0, {});
    changing = opened.get();
    sys::set_fault_hook(look_at_the_file);
    CHECK(opened->refuse_direct());
    CHECK(!opened->refuse_direct());
    sys::set_fault_hook(nullptr);
    CHECK(flag_changes >= 1 && !opened->direct());
    CHECK(!opened_direct(opened->direct_descriptor()));
}

void invalid_through_the_page_cache_is_an_error() {
    const ScratchFile file(noise(kPage, 9));
    const Memory memory(kPage);
    Rig rig;
    rig.engine.fate = [](const io::Transfer&) { return Fate::fail(EINVAL); };
    const Started started = rig.start(reading(memory, 100, 1), file.path());
    rig.run();
    CHECK(started.failure().error == EINVAL && rig.counters.direct_refused.get() == 0);
    CHECK(rig.engine.seen.size() == 1);
}

void the_first_error_is_told() {
    const ScratchFile file(noise(4 * kPage, 11));
    const Memory memory(4 * kPage);
    Rig rig({.depth = 4});
    rig.engine.fate = [](const io::Transfer& t) {
        return Fate::fail(t.offset == 0 ? EIO : t.offset == kPage ? ENOSPC : ENXIO);
    };
    const Started started = rig.start(reading(memory, 4 * kPage), file.path(), {kPage, kPage});
    rig.run();
    CHECK(started.failure().error == EIO && started.failure().nbytes_done == 0);
}

// One chunk of A fails. A's others are drained and counted, B's bytes and count are B's own.
void an_error_stays_with_its_request(uint64_t seed) {
    constexpr size_t nbytes = 8 * kPage;
    const Bytes data = noise(nbytes, seed);
    const ScratchFile file_a(data);
    const ScratchFile file_b(data);
    const Memory memory_a(nbytes);
    const Memory memory_b(nbytes);
    Rig rig({.depth = 5}, io::make_posix_engine(3));
    rig.engine.reorder(seed);
    const io::PlanLimits limits{kPage, kPage};
    const Started a = rig.start(reading(memory_a, nbytes), file_a.path(), limits);
    const Started b = rig.start(reading(memory_b, nbytes), file_b.path(), limits);
    const int fd = a.file->direct_descriptor();
    const off_t bad = static_cast<off_t>(seed % 8 * kPage);
    rig.engine.fate = [&](const io::Transfer& t) {
        return t.fd == fd && t.offset == bad ? Fate::fail(seed % 2 == 0 ? EIO : ENOSPC)
                                             : Fate::pass();
    };
    rig.run();
    const io::Failure failure = a.failure();
    CHECK(failure.error == (seed % 2 == 0 ? EIO : ENOSPC) && failure.path == file_a.path());
    CHECK(failure.nbytes == nbytes && failure.nbytes_done == nbytes - kPage);
    CHECK(b.completed() && b.group->outcome().nbytes == nbytes && memory_b.bytes() == data);
    CHECK(rig.activity->failed == 1 && rig.activity->requests[0] == 2);
}

// Everything at once, with a seed.
void anything_that_is_no_error_succeeds(uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](uint64_t n) { return random() % n; };
    const size_t room = 40 * kPage;
    const Bytes old = noise(room, seed);
    const ScratchFile target(old);
    const ScratchFile source(old);
    Rig rig({.depth = static_cast<uint32_t>(1 + below(9)),
             .staging_bytes = (3 + below(8)) * kPage,
             .single_submit = below(2) == 0},
            below(2) == 0 ? io::make_inline_engine(0) : io::make_posix_engine(3));
    rig.engine.reorder(seed);
    rig.engine.capacity = 1 + below(9);
    for (int i = 0; i < 40; ++i) {
        rig.engine.at_submit.push_back(below(3) == 0 ? -EAGAIN : static_cast<int>(below(5)));
        if (below(3) == 0) {
            rig.engine.at_reap.push_back(below(2) == 0 ? -EINTR : -EAGAIN);
        }
    }
    rig.engine.fate = [&](const io::Transfer& t) {
        switch (below(6)) {
            case 0:
                return Fate::cut(static_cast<uint32_t>(1 + below(t.nbytes)));
            case 1:
                return Fate::fail(below(2) == 0 ? EAGAIN : EINTR);
            default:
                return Fate::pass();
        }
    };
    const io::PlanLimits limits{1 + below(4 * kPage), 1 + below(3 * kPage)};
    Bytes expected = old;
    std::vector<std::unique_ptr<Memory>> memories;
    std::vector<std::pair<Started, off_t>> reads;
    std::vector<Started> writes;
    uint64_t written = 0;
    for (size_t position = 0; position < room;) {  // writes do not overlap
        const size_t nbytes = std::min<size_t>(below(9 * kPage), room - position);
        const size_t shift = below(2) == 0 ? 0 : below(kPage);
        const Bytes data = noise(nbytes, random());
        std::copy(data.begin(), data.end(),
                  expected.begin() + static_cast<std::ptrdiff_t>(position));
        const auto offset = static_cast<off_t>(position);
        if (nbytes > 0) {
            memories.push_back(std::make_unique<Memory>(data, shift));
            writes.push_back(
                rig.start(writing(*memories.back(), nbytes, offset), target.path(), limits));
            memories.push_back(std::make_unique<Memory>(nbytes, shift));
            reads.emplace_back(
                rig.start(reading(*memories.back(), nbytes, offset), source.path(), limits),
                offset);
        }
        written += nbytes;
        position += nbytes + below(200);
    }
    rig.run();
    CHECK(target.contents() == expected);
    for (size_t i = 0; i < writes.size(); ++i) {
        CHECK(writes[i].completed() && reads[i].first.completed());
        const Bytes got = memories[2 * i + 1]->bytes();
        CHECK(reads[i].first.group->outcome().nbytes == got.size());
        CHECK(std::equal(got.begin(), got.end(), old.begin() + reads[i].second));
    }
    CHECK(rig.moved(true) == written && rig.moved(false) == written);
}

}  // namespace

int main() {
    const bool has_direct = ScratchFile().takes_direct();
    if (!has_direct) {
        std::fprintf(stderr, "no O_DIRECT in the directory of temporary files: set TMPDIR\n");
    }
    for (int way = 0; way < 8; ++way) {
        const bool direct = (way & 2) != 0;
        const size_t shift = (way & 4) != 0 ? 1 : 0;
        if (direct && !has_direct) {
            continue;
        }
        for (uint32_t cut : {1U, 512U, 1000U, 4095U, 4096U, 4608U, 8191U, 8192U, 5 * 4096U - 1}) {
            short_transfer_goes_on((way & 1) != 0, direct, shift, cut);
        }
        if ((way & 1) == 0) {
            for (size_t left : {size_t{0}, size_t{1}, kPage, kPage + 100, 2 * kPage, 5 * kPage - 1,
                                8 * kPage - 1}) {
                end_of_file(direct, shift, left);
            }
        }
    }
    cut_to_the_last_byte(false);
    cut_to_the_last_byte(true);
    for (int error : {EAGAIN, EINTR, EBUSY}) {
        transient_completions(error);
    }
    transient_for_ever_is_an_error();
    transient_between_short_ones();
    nothing_written_is_an_error();
    invalid_through_the_page_cache_is_an_error();
    if (has_direct) {
        for (int way = 0; way < 4; ++way) {
            for (int error : {EINVAL, EOPNOTSUPP}) {
                direct_refused_once((way & 1) != 0, (way & 2) != 0, error);
            }
        }
        direct_is_off_before_it_is_said();
    }
    the_first_error_is_told();
    for (uint64_t seed = 0; seed < 32; ++seed) {
        an_error_stays_with_its_request(seed);
    }
    for (uint64_t seed = 0; seed < 60; ++seed) {
        anything_that_is_no_error_succeeds(seed);
    }
    return 0;
}
