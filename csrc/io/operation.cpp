#include "io/operation.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "sys/syscalls.h"

namespace deepnvme::io {

Operation::Operation(Request request, std::shared_ptr<File> file, Plan plan,
                     std::shared_ptr<OperationGroup> group, std::shared_ptr<Activity> activity,
                     std::unique_ptr<const TracedRequest> traced)
    : request_(std::move(request)),
      file_(std::move(file)),
      group_(std::move(group)),
      activity_(std::move(activity)),
      traced_(std::move(traced)),
      plan_(plan),
      chunks_open_(plan_.chunks_left()) {
    group_->expect();
    activity_->requests[request_.write].fetch_add(1, std::memory_order_relaxed);
    activity_->in_flight.fetch_add(1, std::memory_order_release);
}

void Operation::copy_out(const Chunk& chunk, std::byte* block) const {
    if (request_.layout != nullptr) {
        request_.layout->gather(request_.data, chunk.position, block, chunk.nbytes);
    } else {
        std::memcpy(block, request_.data + chunk.position, chunk.nbytes);
    }
}

void Operation::copy_in(const Chunk& chunk, const std::byte* block) const {
    if (request_.layout != nullptr) {
        request_.layout->scatter(request_.data, chunk.position, block, chunk.nbytes);
    } else {
        std::memcpy(request_.data + chunk.position, block, chunk.nbytes);
    }
}

uint64_t Operation::abandon_rest() {
    const uint64_t rest = plan_.chunks_left();
    plan_ = Plan();
    return rest;
}

void Operation::fail(int error, const std::string& detail) {
    std::lock_guard lock(failure_mutex_);
    if (!failure_.has_value()) {
        failure_ = file_->failure(request_.write, request_.offset, request_.nbytes, error, detail);
        failed_.store(true, std::memory_order_release);
    }
}

void Operation::finish(uint64_t chunks, uint64_t nbytes) {
    nbytes_done_.fetch_add(nbytes, std::memory_order_relaxed);
    if (chunks_open_.fetch_sub(chunks, std::memory_order_acq_rel) != chunks) {
        return;
    }
    if (request_.validate && !failed()) {
        validate();
    }
    const uint64_t done = nbytes_done_.load(std::memory_order_relaxed);
    if (failure_.has_value()) {
        failure_->nbytes_done = done;
    }
    request_.region = {};
    request_.keepalive.reset();
    file_.reset();
    activity_->failed.fetch_add(failed() ? 1 : 0, std::memory_order_relaxed);
    activity_->in_flight.fetch_sub(1, std::memory_order_release);
    std::exchange(group_, nullptr)->finish(done, std::move(failure_));
}

void Operation::leak_memory() {
    static_cast<void>(new pin::RegionUse(request_.region));
    static_cast<void>(new std::shared_ptr<void>(request_.keepalive));
}

void Operation::validate() {
    constexpr uint32_t piece = 1 << 20;
    try {
        std::vector<std::byte> memory(std::min<uint64_t>(piece, request_.nbytes));
        std::vector<std::byte> stored(memory.size());
        // A writer's descriptor cannot read, so the file is opened anew; one byte asks for no
        // O_DIRECT.
        const FileName name{"/proc/self/fd/" + std::to_string(file_->buffered_descriptor())};
        auto reader = File::open(name, false, 1, 0, {});
        for (uint64_t position = 0; position < request_.nbytes; position += piece) {
            const Chunk chunk{
                position,
                static_cast<uint32_t>(std::min<uint64_t>(piece, request_.nbytes - position)), false,
                true};
            copy_out(chunk, memory.data());
            for (size_t done = 0; done < chunk.nbytes;) {
                const ssize_t result =
                    sys::pread(reader->buffered_descriptor(), stored.data() + done,
                               chunk.nbytes - done, offset(chunk) + static_cast<off_t>(done));
                if (result <= 0 && result != -EINTR) {
                    fail(result < 0 ? static_cast<int>(-result) : EIO,
                         "validation could not read the file back");
                    return;
                }
                done += result > 0 ? static_cast<size_t>(result) : 0;
            }
            if (std::memcmp(memory.data(), stored.data(), chunk.nbytes) != 0) {
                fail(EIO, "validation found that memory and file differ");
                return;
            }
        }
    } catch (const IoError& error) {
        fail(error.failure.error, "validation could not open the file again");
    } catch (const std::bad_alloc&) {
        fail(ENOMEM, "no memory to validate with");
    }
}

}  // namespace deepnvme::io
