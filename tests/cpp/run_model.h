// Runs of pages as a plain array of flags, first fit: what RunAllocator must be like.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <vector>

namespace deepnvme::test {

struct RunModel {
    explicit RunModel(size_t pages) : used(pages, false) {}

    std::optional<size_t> allocate(size_t count) {
        size_t run = 0;
        for (size_t page = 0; page < used.size(); ++page) {
            run = used[page] ? 0 : run + 1;
            if (run == count) {
                const size_t first = page + 1 - count;
                mark(first, count, true);
                live.emplace(first, count);
                return first;
            }
        }
        return std::nullopt;
    }
    void release(std::map<size_t, size_t>::iterator run) {
        mark(run->first, run->second, false);
        live.erase(run);
    }
    std::map<size_t, size_t>::iterator at(size_t number) {  // of the runs that are taken
        return std::next(live.begin(), static_cast<std::ptrdiff_t>(number % live.size()));
    }

    std::vector<bool> used;
    std::map<size_t, size_t> live;  // length of each run that is taken, by its first page

private:
    void mark(size_t first, size_t count, bool taken) {
        std::fill_n(used.begin() + static_cast<std::ptrdiff_t>(first), count, taken);
    }
};

}  // namespace deepnvme::test
