// A handle, and requests to drive through it.
#pragma once

#include <memory>
#include <string>

#include "io/io_handle.h"
#include "io/operation_group.h"
#include "io/probe.h"
#include "pin/deepspeed_pin_tensor.h"

namespace deepnvme::test {

inline std::unique_ptr<io::IoHandle> make_handle(const std::string& engine, uint32_t workers,
                                                 size_t block_size = 16 << 10) {
    io::HandleOptions options;
    options.block_size = block_size;
    options.queue_depth = 8;
    options.intra_op_parallelism = workers;
    return io::make_handle(options, engine);
}

inline io::Request request(std::byte* data, size_t nbytes, size_t offset, bool write) {
    io::Request wanted;
    wanted.data = data;
    wanted.nbytes = nbytes;
    wanted.offset = static_cast<off_t>(offset);
    wanted.write = write;
    wanted.region = pin::deepspeed_pin_tensor_t::instance().use(data, nbytes);
    return wanted;
}

// What wait() does for the operations of one group.
inline io::OperationGroup::Outcome move(io::IoHandle& handle, const std::string& path,
                                        std::byte* data, size_t nbytes, size_t offset, bool write,
                                        bool at_once) {
    const auto group = std::make_shared<io::OperationGroup>();
    const auto operation =
        handle.prepare(request(data, nbytes, offset, write), {path, -1}, group, {});
    if (at_once) {
        handle.run(operation, *group, {});
    } else {
        handle.enqueue({&operation, 1});
        group->wait({});
    }
    return group->outcome();
}

}  // namespace deepnvme::test
