// Guards: requests that share one open file wait for descriptors as those do that open their own.
#include <cerrno>
#include <memory>
#include <string_view>

#include "check.h"
#include "handle_rig.h"
#include "scratch_file.h"
#include "sys/syscalls.h"

using namespace deepnvme;
using namespace deepnvme::test;

namespace {

// One call over many requests opens a file once. Its later requests may need the second descriptor,
// without O_DIRECT, when there is none: they wait for the earlier ones to give theirs back.
int opens_to_refuse = 0;

int refuse_opens(const char* call) {
    return std::string_view(call) == "open" && opens_to_refuse > 0 && opens_to_refuse-- > 0 ? EMFILE
                                                                                            : 0;
}

void a_shared_file_waits_for_descriptors() {
    const Bytes data = noise(32 << 10, 5);
    const ScratchFile file(data);
    if (!file.takes_direct()) {
        return;
    }
    const auto handle = make_handle("posix", 1);
    const auto group = std::make_shared<io::OperationGroup>();
    io::IoHandle::OpenFiles open_files;
    Bytes back(data.size());
    Bytes ragged(data.size() - 1);
    const auto first = handle->prepare(request(back.data(), back.size(), 0, false),
                                       {file.path(), -1}, group, {}, &open_files);
    sys::set_fault_hook(refuse_opens);
    opens_to_refuse = 1;
    const auto second =
        handle->prepare(request(ragged.data(), ragged.size(), 0, false), {file.path(), -1}, group,
                        {{}, [&] { handle->enqueue({&first, 1}); }}, &open_files);
    sys::set_fault_hook(nullptr);
    CHECK(opens_to_refuse == 0);
    handle->enqueue({&second, 1});
    group->wait({});
    CHECK(group->outcome().completed == 2);
    CHECK(back == data && std::equal(ragged.begin(), ragged.end(), data.begin()));
    // A file that the caller has open cannot be waited for: it is told so.
    const auto held = handle->open({file.path(), -1}, false, back.size(), 0, {});
    sys::set_fault_hook(refuse_opens);
    opens_to_refuse = 1;
    CHECK_THROWS(io::IoError, error,
                 handle->prepare(request(ragged.data(), ragged.size(), 0, false), {"", -1, held},
                                 group, {})) {
        CHECK(error.failure.error == EMFILE && error.failure.nbytes == ragged.size());
    }
    sys::set_fault_hook(nullptr);
}

}  // namespace

int main() {
    a_shared_file_waits_for_descriptors();
    return 0;
}
