#include "io/handle_options.h"

#include <stdexcept>
#include <string>

namespace deepnvme::io {
namespace {

constexpr size_t max_block_size = size_t{1} << 40;
constexpr uint32_t max_queue_depth = 16384;  // io_uring's largest ring has 32768 entries
constexpr uint32_t max_workers = 256;

void check_range(const char* name, uint64_t value, uint64_t limit, const char* remedy) {
    if (value < 1 || value > limit) {
        throw std::invalid_argument(std::string(name) + " is " + std::to_string(value) +
                                    ", but must be between 1 and " + std::to_string(limit) + "; " +
                                    remedy);
    }
}

}  // namespace

void HandleOptions::check() const {
    check_range("block_size", block_size, max_block_size, "give bytes, 1048576 is usual");
    check_range("queue_depth", queue_depth, max_queue_depth, "128 keeps any drive busy");
    check_range("intra_op_parallelism", intra_op_parallelism, max_workers,
                "1 to 8 workers saturate a drive");
}

}  // namespace deepnvme::io
