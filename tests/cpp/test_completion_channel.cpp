// Guards: the descriptor of a channel is readable exactly while there are tokens, which come out
// once and in order.
#include <poll.h>

#include <vector>

#include "check.h"
#include "io/completion_channel.h"

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
    return 0;
}
