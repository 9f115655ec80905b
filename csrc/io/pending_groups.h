// The asynchronous requests of a handle that no wait() has counted yet.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "io/operation_group.h"

namespace deepnvme::io {

class PendingGroups {
public:
    // A place in the current group, held while a request is made: a wait() in another thread waits
    // for it too.
    class Place {
    public:
        explicit Place(std::shared_ptr<OperationGroup> group) : group_(std::move(group)) {}
        Place(Place&&) = default;
        Place& operator=(Place&&) = delete;
        ~Place() {
            if (group_ != nullptr) {
                group_->withdraw();
            }
        }
        const std::shared_ptr<OperationGroup>& group() const { return group_; }

    private:
        std::shared_ptr<OperationGroup> group_;
    };

    Place join() {
        std::lock_guard lock(mutex_);
        if (groups_.empty()) {
            groups_.push_back(std::make_shared<OperationGroup>());
        }
        groups_.back()->expect();
        return Place(groups_.back());
    }

    // Waits for everything that joined, and forgets it. When `interrupt` throws, nothing is
    // forgotten.
    OperationGroup::Outcome wait(const Interrupt& interrupt) {
        std::vector<std::shared_ptr<OperationGroup>> waited;
        {
            std::lock_guard lock(mutex_);
            waited.swap(groups_);
        }
        try {
            for (const auto& group : waited) {
                group->wait(interrupt);
            }
        } catch (...) {
            std::lock_guard lock(mutex_);
            groups_.insert(groups_.begin(), waited.begin(), waited.end());
            throw;
        }
        OperationGroup::Outcome total;
        for (const auto& group : waited) {
            OperationGroup::Outcome outcome = group->outcome();
            total.completed += outcome.completed;
            total.nbytes += outcome.nbytes;
            total.failures.insert(total.failures.end(), outcome.failures.begin(),
                                  outcome.failures.end());
        }
        return total;
    }

private:
    std::mutex mutex_;
    std::vector<std::shared_ptr<OperationGroup>> groups_;
};

}  // namespace deepnvme::io
