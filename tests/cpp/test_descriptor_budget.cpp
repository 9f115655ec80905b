// Guards: whoever finds no descriptor left waits for files that are given back, misses none, does
// not take a failed attempt for one, and learns when nothing is left to wait for.
#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "check.h"
#include "io/descriptor_budget.h"

using deepnvme::io::DescriptorBudget;
using Token = DescriptorBudget::Token;

namespace {

constexpr size_t limit = 8;

Token opened(DescriptorBudget& budget) {
    Token token = budget.acquire({});
    token.opened();
    return token;
}

// Calls wait_for_release in a thread; `meanwhile` runs once that thread has begun to wait.
template <typename Meanwhile>
bool waited(DescriptorBudget& budget, uint64_t seen, Meanwhile meanwhile) {
    std::atomic<bool> waiting{false};
    bool answer = false;
    std::thread waiter([&] {
        answer = budget.wait_for_release(seen, {{}, [&] {
                                                    waiting.store(true);
                                                    waiting.notify_all();
                                                }});
    });
    waiting.wait(false);
    meanwhile();
    waiter.join();
    return answer;
}

void test_nothing_held() {
    auto budget = std::make_shared<DescriptorBudget>(limit);
    CHECK(!budget->wait_for_release(budget->releases(), {}));
}

void test_released_between_the_attempt_and_the_wait() {
    auto budget = std::make_shared<DescriptorBudget>(limit);
    std::optional<Token> only(opened(*budget));
    const uint64_t seen = budget->releases();
    only.reset();
    CHECK(budget->wait_for_release(seen, {}));  // nothing is held, but an attempt can succeed now
}

void test_released_while_waiting() {
    auto budget = std::make_shared<DescriptorBudget>(limit);
    std::optional<Token> first(opened(*budget));
    const Token second = opened(*budget);
    CHECK(waited(*budget, budget->releases(), [&] { first.reset(); }));
}

void test_a_failed_attempt_is_no_release() {
    auto budget = std::make_shared<DescriptorBudget>(limit);
    const uint64_t seen = budget->releases();
    {
        const Token failed = budget->acquire({});
    }
    CHECK(budget->releases() == seen);
    CHECK(!budget->wait_for_release(seen, {}));
}

void test_the_attempt_of_another_fails() {
    auto budget = std::make_shared<DescriptorBudget>(limit);
    std::optional<Token> attempt(budget->acquire({}));
    CHECK(!waited(*budget, budget->releases(), [&] { attempt.reset(); }));
}

// Every wait of a storm ends, at the limit and without descriptors.
void test_storm() {
    auto budget = std::make_shared<DescriptorBudget>(2);
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
        threads.emplace_back([&budget, thread] {
            for (int round = 0; round < 2000; ++round) {
                const uint64_t seen = budget->releases();
                std::optional<Token> token(budget->acquire({}));
                if ((round + thread) % 3 == 0) {
                    token.reset();  // the attempt failed
                    static_cast<void>(budget->wait_for_release(seen, {}));
                } else {
                    token->opened();
                }
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    CHECK(!budget->wait_for_release(budget->releases(), {}));
}

}  // namespace

int main() {
    test_nothing_held();
    test_released_between_the_attempt_and_the_wait();
    test_released_while_waiting();
    test_a_failed_attempt_is_no_release();
    test_the_attempt_of_another_fails();
    test_storm();
}
