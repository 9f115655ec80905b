#include "io/completion_channel.h"

#include <system_error>
#include <utility>

#include "sys/syscalls.h"

namespace deepnvme::io {

CompletionChannel::CompletionChannel() : descriptor_(sys::event_descriptor(true)) {
    if (descriptor_ < 0) {
        throw std::system_error(-descriptor_, std::generic_category(), "eventfd");
    }
}

CompletionChannel::~CompletionChannel() { sys::close(descriptor_); }

void CompletionChannel::push(uint64_t token) {
    std::lock_guard lock(mutex_);
    tokens_.push_back(token);
    sys::event_signal(descriptor_);
}

std::vector<uint64_t> CompletionChannel::take() {
    std::lock_guard lock(mutex_);
    sys::event_drain(descriptor_);
    return std::exchange(tokens_, {});
}

}  // namespace deepnvme::io
