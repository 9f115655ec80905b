// What the kernel says of this process: the independent side of the accounting checks.
#pragma once

#include <cstdlib>
#include <fstream>
#include <string>

namespace deepnvme::test {

inline size_t locked_bytes() {  // VmLck
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
        if (line.rfind("VmLck:", 0) == 0) {
            return std::strtoull(line.c_str() + 6, nullptr, 10) * 1024;
        }
    }
    return 0;
}

inline size_t mappings() {  // counted by vm.max_map_count
    std::ifstream maps("/proc/self/maps");
    size_t lines = 0;
    for (std::string line; std::getline(maps, line);) {
        ++lines;
    }
    return lines;
}

}  // namespace deepnvme::test
