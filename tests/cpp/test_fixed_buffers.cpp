// Guards: a mapping is registered whole or not at all, once, in pieces; bytes across two pieces
// have no index; what is forgotten is taken out, and asked for anew if its serial comes back.
#include <cerrno>
#include <cstddef>
#include <set>

#include "check.h"
#include "io/fixed_buffers.h"

using namespace deepnvme;

namespace {

constexpr size_t kPiece = io::max_registered_bytes;
constexpr size_t kTail = 4096;

// Registers without looking at the memory, which need not be there.
class Table final : public io::Engine {
public:
    int submit(std::span<const io::Transfer>) override { return 0; }
    int reap(std::span<io::Completion>, bool) override { return 0; }
    void wake() override {}
    int register_buffer(std::byte*, size_t nbytes) override {
        CHECK(nbytes > 0 && nbytes <= kPiece);
        if (asked++ == refuses) {
            return -ENOMEM;
        }
        CHECK(held.insert(asked).second);
        return asked;
    }
    void unregister_buffer(int index) override { CHECK(held.erase(index) == 1); }

    int asked = 0;
    int refuses = -1;  // the call of this number
    std::set<int> held;
};

std::byte* base() { return reinterpret_cast<std::byte*>(uintptr_t{1} << 40); }

void pieces_by_position() {
    Table table;
    io::FixedBuffers buffers(table);
    const size_t size = 2 * kPiece + kTail;
    const auto index = [&](size_t position, size_t nbytes) {
        return buffers.index_of(7, base(), size, base() + position, nbytes);
    };
    CHECK(index(0, 1) == 1 && index(kPiece - 1, 1) == 1 && index(0, kPiece) == 1);
    CHECK(index(kPiece, 1) == 2 && index(2 * kPiece - 1, 1) == 2);
    CHECK(index(2 * kPiece, kTail) == 3);
    CHECK(index(kPiece - 1, 2) == -1 && index(2 * kPiece - 1, 2) == -1);
    CHECK(table.asked == 3);
}

void whole_or_not_at_all(int refused) {
    Table table;
    table.refuses = refused;
    io::FixedBuffers buffers(table);
    for (int i = 0; i < 3; ++i) {
        CHECK(buffers.index_of(7, base(), 3 * kPiece, base() + static_cast<size_t>(i) * kPiece,
                               1) == -1);
        CHECK(table.held.empty());
    }
    CHECK(table.asked == refused + 1);  // never again
    CHECK(buffers.index_of(8, base(), kTail, base(), 1) == table.asked);
}

void forgotten_ones_are_taken_out() {
    Table table;
    io::FixedBuffers buffers(table);
    for (uint64_t serial : {1, 2}) {
        CHECK(buffers.index_of(serial, base(), 2 * kPiece, base(), 1) > 0);
    }
    buffers.forget(1);
    CHECK(table.held == std::set<int>({3, 4}));
    buffers.forget(1);
    buffers.forget(9);
    CHECK(table.held == std::set<int>({3, 4}));
    CHECK(buffers.index_of(2, base(), 2 * kPiece, base(), 1) == 3);
    CHECK(buffers.index_of(1, base(), 2 * kPiece, base(), 1) == 5);
    buffers.forget(1);
    CHECK(buffers.index_of(1, base(), 2 * kPiece, base(), 1) == 7);  // the last one looked at
    buffers.forget(1);
    buffers.forget(2);
    CHECK(table.held.empty());
}

}  // namespace

int main() {
    pieces_by_position();
    for (int refused : {0, 1, 2}) {
        whole_or_not_at_all(refused);
    }
    forgotten_ones_are_taken_out();
    return 0;
}
