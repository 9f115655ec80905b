#include "io/staging.h"

#include <new>

#include "sys/syscalls.h"

namespace deepnvme::io {
namespace {

size_t pages(size_t nbytes) { return pin::round_up_to_page(nbytes) / sys::page_size(); }

}  // namespace

std::byte* Staging::take(size_t nbytes) {
    if (nbytes > nbytes_) {
        throw std::bad_alloc();  // not null: waiting for it would be for ever
    }
    if (!runs_.has_value()) {
        mapping_ = pin::PageMapping(nbytes_, pin::PageMapping::Residency::unlocked);
        runs_.emplace(pages(nbytes_));
    }
    const auto first = runs_->allocate(pages(nbytes));
    return first.has_value() ? mapping_.data() + *first * sys::page_size() : nullptr;
}

void Staging::give_back(std::byte* block, size_t nbytes) {
    runs_->release(static_cast<size_t>(block - mapping_.data()) / sys::page_size(), pages(nbytes));
}

}  // namespace deepnvme::io
