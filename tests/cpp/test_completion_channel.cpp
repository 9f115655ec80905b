// Guards: the descriptor of a channel is readable exactly while there are tokens, which come out
// once and in order; without a descriptor there is no channel, and the error says why.
#include <poll.h>

#include <cerrno>
#include <string_view>
#include <system_error>
#include <vector>

#include "check.h"
#include "io/completion_channel.h"
#include "sys/syscalls.h"

using deepnvme::io::CompletionChannel;

namespace {

bool readable(const CompletionChannel& channel) {
    pollfd polled{channel.descriptor(), POLLIN, 0};
    return ::poll(&polled, 1, 0) == 1;
}

}  // namespace

int main() {
    CompletionChannel channel;
    CHECK(!readable(channel) && channel.take().empty());
    for (int round = 0; round < 2; ++round) {
        channel.push(7);
        channel.push(3);
        CHECK(readable(channel) && readable(channel));
        CHECK(channel.take() == (std::vector<uint64_t>{7, 3}));
        CHECK(!readable(channel) && channel.take().empty());
    }
    deepnvme::sys::set_fault_hook(
        [](const char* call) { return std::string_view(call) == "eventfd" ? EMFILE : 0; });
    CHECK_THROWS(std::system_error, error, CompletionChannel()) {
        CHECK(error.code() == std::errc::too_many_files_open);
    }
    deepnvme::sys::set_fault_hook(nullptr);
    return 0;
}
