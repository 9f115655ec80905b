// An eventfd and the tokens of groups that are done: how an event loop, or a thread, learns of
// completions without polling.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

namespace deepnvme::io {

class CompletionChannel {
public:
    CompletionChannel();  // throws std::system_error
    ~CompletionChannel();
    CompletionChannel(const CompletionChannel&) = delete;
    CompletionChannel& operator=(const CompletionChannel&) = delete;

    int descriptor() const { return descriptor_; }  // readable while tokens are there; nonblocking
    void push(uint64_t token);                      // any thread
    std::vector<uint64_t> take();

private:
    int descriptor_;
    std::mutex mutex_;
    std::vector<uint64_t> tokens_;
};

}  // namespace deepnvme::io
