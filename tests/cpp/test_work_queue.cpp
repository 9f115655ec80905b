// Guards: a worker does not sleep on work that it could start, nor on memory that it is to let go
// of, and is woken once for either; every worker finds some of what there is; what failed is not
// started.
#include <atomic>
#include <cerrno>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"
#include "io/work_queue.h"
#include "scratch_file.h"

using namespace deepnvme;
using io::WorkQueue;
using test::ScratchFile;

namespace {

struct CountingEngine final : io::Engine {
    int submit(std::span<const io::Transfer> /*transfers*/) override { return -EAGAIN; }
    int reap(std::span<io::Completion> /*completions*/, bool /*block*/) override { return 0; }
    void wake() override { ++wakes; }
    int wakes = 0;
};

constexpr size_t kChunk = 512;

struct Work {
    explicit Work(size_t chunks) {
        const ScratchFile file{test::Bytes(chunks * kChunk)};
        io::Request request;
        request.nbytes = chunks * kChunk;
        const auto plan = io::Plan::make(0, request.nbytes, 0, {}, false, false, {kChunk, kChunk});
        auto opened = io::File::open({file.path(), -1}, false, request.nbytes, 0, {});
        operation = std::make_shared<io::Operation>(std::move(request), std::move(opened), plan,
                                                    group, std::make_shared<io::Activity>());
    }
    std::shared_ptr<io::OperationGroup> group = std::make_shared<io::OperationGroup>();
    std::shared_ptr<io::Operation> operation;
};

struct Queue : WorkQueue {
    explicit Queue(size_t workers) : WorkQueue(workers) { join(worker, engine); }
    ~Queue() { leave(worker); }
    void push(const Work& work) { WorkQueue::push({&work.operation, 1}); }
    size_t take(size_t room) {
        std::vector<io::Piece> pieces;
        WorkQueue::take(room, pieces);
        return pieces.size();
    }
    CountingEngine engine;
    Worker worker;
};

void woken_for_work() {
    Queue queue(1);
    const Work first(4);
    const Work second(4);
    CHECK(queue.may_block(queue.worker, true));
    queue.push(first);
    CHECK(queue.engine.wakes == 1);
    queue.push(second);
    CHECK(queue.engine.wakes == 1);  // it comes already
    CHECK(queue.unblocked(queue.worker).empty());
    CHECK(!queue.may_block(queue.worker, true));  // there is something to start
    CHECK(queue.may_block(queue.worker, false));  // for which it has no room
    CHECK(queue.take(100) == 8);
    queue.push(Work(1));
    CHECK(queue.engine.wakes == 1);
}

void woken_to_let_memory_go() {
    Queue queue(1);
    queue.mapping_released(queue.worker, 7);
    CHECK(!queue.may_block(queue.worker, true) && !queue.may_block(queue.worker, false));
    CHECK(queue.engine.wakes == 0);  // it was not asleep
    CHECK(queue.unblocked(queue.worker) == std::vector<uint64_t>{7});
    CHECK(queue.may_block(queue.worker, true));
    queue.mapping_released(queue.worker, 8);
    queue.mapping_released(queue.worker, 9);
    CHECK(queue.engine.wakes == 1);
    CHECK(queue.unblocked(queue.worker) == (std::vector<uint64_t>{8, 9}));
    queue.leave(queue.worker);
    queue.mapping_released(queue.worker, 10);  // as its engine ends
    CHECK(queue.engine.wakes == 1);
}

void every_worker_finds_some() {
    Queue alone(1);
    Queue many(4);
    alone.push(Work(64));
    many.push(Work(64));
    CHECK(alone.take(100) == 64 && alone.chunks_waiting() == 0);
    size_t taken = 0;
    for (uint64_t left = 64; left > 0; left = many.chunks_waiting()) {
        const size_t count = many.take(100);
        CHECK(count >= 1 && count <= std::max<size_t>(1, left / 4));
        taken += count;
    }
    CHECK(taken == 64);
}

void what_failed_is_not_started() {
    Queue queue(2);
    const Work failing(64);
    queue.push(failing);
    const size_t begun = queue.take(3);
    CHECK(begun == 3 && queue.chunks_waiting() == 61);
    failing.operation->fail(EIO);
    CHECK(queue.take(100) == 0 && queue.chunks_waiting() == 0);
    CHECK(!failing.group->done());
    failing.operation->finish(begun, 0);
    CHECK(failing.group->done() && failing.group->outcome().failures.size() == 1);
}

// A worker with nothing to do hears of each mapping that is released, and of the end.
void waiting_is_ended() {
    Queue queue(1);
    std::atomic<uint64_t> heard{0};
    std::thread worker([&] {
        while (queue.wait(queue.worker)) {
            for (const uint64_t serial : queue.unblocked(queue.worker)) {
                heard = serial;
                heard.notify_all();
            }
        }
    });
    for (uint64_t serial = 1; serial <= 100; ++serial) {
        queue.mapping_released(queue.worker, serial);
        heard.wait(serial - 1);
    }
    queue.stop();
    worker.join();
}

}  // namespace

int main() {
    woken_for_work();
    woken_to_let_memory_go();
    every_worker_finds_some();
    what_failed_is_not_started();
    waiting_is_ended();
    return 0;
}
