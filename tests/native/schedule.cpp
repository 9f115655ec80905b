#include "schedule.h"

#include <unistd.h>

#include <climits>

#include "sys/syscalls.h"

namespace deepnvme::test {

Schedule& Schedule::instance() {
    static auto* schedule = new Schedule;  // outlives the threads of handles that nobody closed
    return *schedule;
}

void Schedule::install(Faults faults, bool engines) {
    {
        std::lock_guard lock(mutex_);
        faults_ = std::move(faults);
        report_ = {};
        engines_ = engines;
        reaps_ = 0;
    }
    sys::set_fault_hook([](const char* call) { return instance().next_call(call); });
}

void Schedule::clear() {
    sys::set_fault_hook(nullptr);
    std::lock_guard lock(mutex_);
    faults_ = {};
    engines_ = false;
}

bool Schedule::wraps_engines() {
    std::lock_guard lock(mutex_);
    return engines_;
}

int Schedule::next_submit(const io::Transfer& first) {
    std::lock_guard lock(mutex_);
    const int answer = faults_.submits.next();
    if (answer < 0) {
        meet(first, answer);
    }
    return answer;
}

int Schedule::next_reap() {
    std::lock_guard lock(mutex_);
    if (faults_.dies_after >= 0 && reaps_++ >= faults_.dies_after) {
        return -EIO;
    }
    return faults_.reaps.next();
}

Fate Schedule::next_fate(const io::Transfer& transfer) {
    std::lock_guard lock(mutex_);
    const int64_t answer = faults_.fates.next();
    if (faults_.refuse_direct && opened_direct(transfer.fd)) {
        meet(transfer, -EINVAL);
        return Fate::fail(EINVAL);
    }
    if (faults_.refuse_fixed && transfer.buffer_index >= 0) {
        meet(transfer, -EFAULT);
        return Fate::fail(EFAULT);
    }
    if (answer >= transfer.nbytes) {
        return Fate::pass();
    }
    meet(transfer, answer);
    return answer < 0 ? Fate::fail(static_cast<int>(-answer))
                      : Fate::cut(static_cast<uint32_t>(answer));
}

int Schedule::next_hold() {
    std::lock_guard lock(mutex_);
    return faults_.holds.next();
}

int Schedule::next_register() {
    std::lock_guard lock(mutex_);
    return faults_.registers.next();
}

int Schedule::next_call(const char* call) {
    std::lock_guard lock(mutex_);
    report_.calls.emplace_back(call);
    int error = 0;
    for (Faults::Call& fault : faults_.calls) {
        if (fault.call == "*" || fault.call == call) {
            const uint64_t number = fault.seen++;
            if (number >= fault.first && number - fault.first < fault.count) {
                error = fault.error;
            }
        }
    }
    if (error != 0) {
        report_.failed_calls.emplace_back(call, error);
    }
    return error;
}

Schedule::Report Schedule::report() {
    std::lock_guard lock(mutex_);
    return report_;
}

void Schedule::saw_in_flight(size_t transfers) {
    std::lock_guard lock(mutex_);
    report_.most_in_flight = std::max(report_.most_in_flight, transfers);
}

void Schedule::saw_unmapped() {
    std::lock_guard lock(mutex_);
    ++report_.unmapped;
}

// The lock is held.
void Schedule::meet(const io::Transfer& transfer, int64_t result) {
    const std::string link = "/proc/self/fd/" + std::to_string(transfer.fd);
    char path[PATH_MAX];
    const ssize_t length = ::readlink(link.c_str(), path, sizeof path);
    report_.transfers.push_back({std::string(path, length > 0 ? static_cast<size_t>(length) : 0),
                                 transfer, opened_direct(transfer.fd), result});
}

}  // namespace deepnvme::test
