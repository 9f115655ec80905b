#include "pin/budget.h"

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "pin/page_alloc.h"

namespace deepnvme::pin {
namespace {

constexpr size_t owners_named = 10;

// "optimizer 1048576, params 4096 and 3 more", the largest first.
std::string described(const Budget::Owners& owners) {
    std::vector<std::pair<std::string, size_t>> sorted(owners.begin(), owners.end());
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
    std::string text;
    for (size_t i = 0; i < std::min(sorted.size(), owners_named); ++i) {
        const auto& [tag, nbytes] = sorted[i];
        text += (i == 0 ? "" : ", ") + (tag.empty() ? "without a tag" : tag) + " " +
                std::to_string(nbytes);
    }
    if (sorted.size() > owners_named) {
        text += " and " + std::to_string(sorted.size() - owners_named) + " more";
    }
    return text.empty() ? "none" : text;
}

}  // namespace

void Budget::reserve(size_t nbytes, size_t in_use, const Owners& owners) {
    if (limit_ != unlimited) {
        const size_t taken = in_use + reserved_;
        if (nbytes > limit_ - std::min(limit_, taken)) {
            throw PinError(
                "could not pin " + std::to_string(nbytes) + " bytes: the budget is " +
                    std::to_string(limit_) + " bytes, of which " + std::to_string(taken) +
                    " are in use (owners, in bytes: " + described(owners) +
                    (reserved_ > 0 ? "; being allocated: " + std::to_string(reserved_) : "") +
                    "); free pinned tensors, or raise it (DEEPNVME_PIN_BUDGET, set_budget())",
                EDQUOT, nbytes, taken, limit_);
        }
    }
    reserved_ += nbytes;
}

}  // namespace deepnvme::pin
