// Guards: a group tells that it is done once, and not before its last operation is.
#include <cerrno>

#include "check.h"
#include "io/operation_group.h"

using deepnvme::io::OperationGroup;

namespace {

void told_by_the_last() {
    OperationGroup group;
    int told = 0;
    group.expect(2);
    group.when_done([&] { ++told; });
    group.finish(10, {});
    CHECK(!group.done() && told == 0);
    group.when_done([&] { ++told; });  // one is left
    CHECK(told == 0);
    group.finish(20, {});
    CHECK(group.done() && told == 2);
    group.when_done([&] { ++told; });
    CHECK(told == 3);
    CHECK(group.outcome().completed == 2 && group.outcome().nbytes == 30);
}

void withdrawn_or_failed() {
    OperationGroup group;
    int told = 0;
    group.expect(2);
    group.when_done([&] { ++told; });
    group.withdraw();
    CHECK(!group.done() && told == 0);
    deepnvme::io::Failure failure;
    failure.error = EIO;
    group.finish(10, failure);
    CHECK(group.done() && told == 1);
    const auto outcome = group.outcome();
    CHECK(outcome.completed == 0 && outcome.nbytes == 0 && outcome.failures.size() == 1);
}

}  // namespace

int main() {
    told_by_the_last();
    withdrawn_or_failed();
    return 0;
}
