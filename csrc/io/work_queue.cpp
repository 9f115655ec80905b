#include "io/work_queue.h"

#include <algorithm>
#include <utility>

namespace deepnvme::io {

void WorkQueue::join(Worker& worker, Engine& engine) {
    std::lock_guard lock(mutex_);
    worker.engine = &engine;
    joined_.push_back(&worker);
}

void WorkQueue::leave(Worker& worker) {
    std::lock_guard lock(mutex_);
    worker.engine = nullptr;
    std::erase(joined_, &worker);
}

void WorkQueue::push(std::span<const std::shared_ptr<Operation>> operations) {
    uint64_t chunks = 0;
    for (const auto& operation : operations) {
        chunks += operation->chunks_left();
    }
    std::lock_guard lock(mutex_);
    chunks_waiting_ += chunks;
    operations_.insert(operations_.end(), operations.begin(), operations.end());
    uint64_t wanted = std::min<uint64_t>(chunks, workers_);
    for (size_t i = 0; i < idle_ && wanted > 0; ++i, --wanted) {
        work_.notify_one();
    }
    for (Worker* worker : joined_) {
        if (wanted > 0 && worker->blocked_with_room) {
            rouse(*worker);
            --wanted;
        }
    }
}

void WorkQueue::stop() {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    work_.notify_all();
}

void WorkQueue::take(size_t room, std::vector<Piece>& pieces) {
    std::vector<std::pair<std::shared_ptr<Operation>, uint64_t>> abandoned;
    {
        std::lock_guard lock(mutex_);
        while (room > 0 && !operations_.empty()) {
            const std::shared_ptr<Operation>& operation = operations_.front();
            if (operation->failed()) {
                abandoned.emplace_back(operation, operation->abandon_rest());
                chunks_waiting_ -= abandoned.back().second;
                operations_.pop_front();
                continue;
            }
            // Guided self-scheduling: large portions first, single chunks at the end.
            const uint64_t left = operation->chunks_left();
            size_t portion = room;
            if (workers_ > 1 && left > 1) {
                portion = std::min<size_t>(room, std::max<uint64_t>(1, left / (2 * workers_)));
            }
            Chunk chunk;
            for (; portion > 0 && operation->next(chunk); --portion, --room) {
                pieces.push_back({operation, chunk});
                --chunks_waiting_;
            }
            if (operation->chunks_left() > 0) {
                break;
            }
            operations_.pop_front();
        }
    }
    for (const auto& [operation, chunks] : abandoned) {
        if (chunks > 0) {
            operation->finish(chunks, 0);
        }
    }
}

bool WorkQueue::wait(Worker& worker) {
    std::unique_lock lock(mutex_);
    ++idle_;
    work_.wait(lock, [&] {
        return !operations_.empty() || stopping_ || !worker.released_mappings.empty();
    });
    --idle_;
    return !operations_.empty() || !stopping_;
}

bool WorkQueue::may_block(Worker& worker, bool has_room) {
    std::lock_guard lock(mutex_);
    if ((has_room && !operations_.empty()) || !worker.released_mappings.empty()) {
        return false;
    }
    worker.blocked_with_room = has_room;
    return true;
}

std::vector<uint64_t> WorkQueue::unblocked(Worker& worker) {
    std::lock_guard lock(mutex_);
    worker.blocked_with_room = false;
    return std::exchange(worker.released_mappings, {});
}

void WorkQueue::mapping_released(Worker& worker, uint64_t serial) {
    std::lock_guard lock(mutex_);
    worker.released_mappings.push_back(serial);
    work_.notify_all();
    if (worker.engine != nullptr && worker.blocked_with_room) {
        rouse(worker);
    }
}

uint64_t WorkQueue::chunks_waiting() const {
    std::lock_guard lock(mutex_);
    return chunks_waiting_;
}

void WorkQueue::rouse(Worker& worker) {
    worker.blocked_with_room = false;
    worker.engine->wake();
}

}  // namespace deepnvme::io
