// Which memory an engine has registered. Mappings are registered at their first use, in pieces of
// at most max_registered_bytes, known by serial (addresses are reused, serials are not), and taken
// out when the registry releases them. Failing to register is no error: the memory is then used as
// any other.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "io/engine.h"

namespace deepnvme::io {

class FixedBuffers {
public:
    explicit FixedBuffers(Engine& engine) : engine_(engine) {}

    // The index for [data, data + nbytes) inside the mapping [base, base + size), registering it if
    // it is new; -1 where it is not registered or where the bytes lie across two pieces.
    int index_of(uint64_t serial, std::byte* base, size_t size, const std::byte* data,
                 size_t nbytes);
    void forget(uint64_t serial);

private:
    std::vector<int> register_pieces(std::byte* base, size_t size);

    Engine& engine_;
    std::unordered_map<uint64_t, std::vector<int>> pieces_;  // empty: could not be registered
    uint64_t last_serial_ = 0;
    const std::vector<int>* last_ = nullptr;  // requests come in runs on one mapping
};

}  // namespace deepnvme::io
