// Pure function: request + alignment -> segments, and segments -> chunks. No system calls, no
// state.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace deepnvme::io {

// What a file asks of direct I/O, in bytes, each a power of two.
struct Alignment {
    uint32_t memory = 4096;  // of buffer addresses; at most `granule`
    // Of file offsets and lengths, and at least a page and a file-system block: the unit that the
    // page cache reads, modifies and writes back. Direct and buffered I/O of one file never meet
    // inside such a unit, so that neither two segments of one request nor two writers of
    // neighbouring bytes can undo each other's bytes.
    uint32_t granule = 4096;
};

struct PlanLimits {
    size_t block = 1 << 20;         // largest chunk, bytes
    size_t staged_block = 1 << 20;  // largest chunk that is copied through a staging block, bytes
};

// Part of a request that travels in one way. Positions are bytes from the start of the request.
struct Segment {
    uint64_t begin = 0;
    uint64_t end = 0;
    uint32_t chunk_bytes = 0;  // every chunk but the last has this size
    bool direct = false;       // past the page cache
    bool staged = false;       // copied through an aligned staging block
};

struct Chunk {
    uint64_t position = 0;  // bytes from the start of the request
    uint32_t nbytes = 0;
    bool direct = false;
    bool staged = false;
};

class Plan {
public:
    // How `nbytes` at `address` travel to or from `offset`. `direct` says whether the file takes
    // direct I/O at all, `strided` that the elements do not lie one behind the other in memory, so
    // that every byte is copied.
    static Plan make(uintptr_t address, uint64_t nbytes, off_t offset, const Alignment& alignment,
                     bool direct, bool strided, const PlanLimits& limits);

    bool next(Chunk& chunk);       // the next chunk, in order; false after the last
    uint64_t chunks_left() const;  // that next() has not given out

private:
    void append(uint64_t begin, uint64_t end, size_t chunk_bytes, bool direct, bool staged);

    std::array<Segment, 3> segments_{};
    size_t count_ = 0;
    size_t current_ = 0;
    uint64_t position_ = 0;
};

// Whether any whole unit of `granule` bytes lies in [offset, offset + nbytes): without one, direct
// I/O is no use.
bool has_whole_unit(uint64_t nbytes, off_t offset, uint32_t granule);
// Whether it begins or ends inside a unit: that part takes the page cache.
bool is_ragged(uint64_t nbytes, off_t offset, uint32_t granule);

}  // namespace deepnvme::io
