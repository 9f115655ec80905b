// Guards: the registry of pinned memory answers and counts as a plain list of regions does,
// whatever the kernel refuses; no two regions share a byte, and all locked memory is in the
// accounts.
#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <string_view>
#include <vector>

#include "check.h"
#include "draws.h"
#include "locked_bytes.h"
#include "pin/deepspeed_pin_tensor.h"
#include "sys/syscalls.h"

using namespace deepnvme;
using namespace deepnvme::test;

namespace {

constexpr int kMostSteps = 60;
constexpr size_t kMostRegions = 24;
constexpr size_t kMostBytes = size_t{600} << 10;  // more than half have a mapping of their own
constexpr size_t kEnough = size_t{32} << 20;      // of RLIMIT_MEMLOCK, for all of them

bool refusing = false;

int refuse(const char* call) {
    const std::string_view name(call);
    return refusing && (name == "mmap" || name == "mlock2" || name == "mlock") ? ENOMEM : 0;
}

pin::deepspeed_pin_tensor_t& registry() { return pin::deepspeed_pin_tensor_t::instance(); }

struct Live {
    std::shared_ptr<pin::Region> alias;  // null once it is dropped
    std::vector<pin::RegionUse> uses;
    std::byte* data;
    size_t nbytes;
    std::string tag;
    uint64_t serial;  // of its mapping
    std::byte mark;
    bool pinned = true;

    size_t rounded() const { return pin::round_up_to_page(nbytes); }
    bool holds(uintptr_t address, size_t length) const {
        const auto base = reinterpret_cast<uintptr_t>(data);
        return pinned && address >= base && address - base < nbytes && length > 0 &&
               length <= nbytes - (address - base);
    }
    // Its bytes, at every page and at the end, are nobody else's.
    void check_bytes() const {
        for (size_t at = 0; at < nbytes; at += sys::page_size()) {
            CHECK(data[at] == mark);
        }
        CHECK(data[nbytes - 1] == mark);
    }
};

class Sequence {
public:
    explicit Sequence(fuzz::Draws& draws)
        : draws_(draws), before_(registry().stats()), locked_before_(locked_bytes()) {
        peak_ = before_.peak;
        listener_ = registry().add_release_listener([this](uint64_t serial) {
            CHECK(std::none_of(live_.begin(), live_.end(), [&](const Live& region) {
                return region.serial == serial && !region.uses.empty();
            }));
        });
    }

    void operator()() {
        for (int step = 0; step < kMostSteps && !draws_.empty(); ++step) {
            switch (draws_.below(8)) {
                case 0:
                case 1:
                    allocate();
                    break;
                case 2:
                    drop(false);
                    break;
                case 3:
                    drop(true);
                    break;
                case 4:
                    look_up();
                    break;
                case 5:
                    release();
                    break;
                case 6:
                    registry().set_cache_limit(draws_.number(size_t{4} << 20));
                    break;
                default:
                    registry().empty_cache();
            }
            check_accounts();
        }
        CHECK(registry().stats().in_use + registry().stats().cached ==
              locked_bytes() - locked_before_);
    }

    ~Sequence() {
        while (!live_.empty()) {
            live_.back().check_bytes();
            forget(live_.end() - 1);
        }
        registry().empty_cache();
        registry().remove_release_listener(listener_);
        const pin::Stats stats = registry().stats();
        CHECK(stats.in_use == 0 && stats.cached == 0 && stats.regions == 0);
        CHECK(stats.by_tag.empty() && locked_bytes() == locked_before_);
    }

private:
    using At = std::vector<Live>::iterator;

    At any() { return live_.begin() + static_cast<std::ptrdiff_t>(draws_.below(live_.size())); }

    void allocate() {
        const size_t nbytes = 1 + draws_.number(kMostBytes - 1);
        const std::string tag(1, static_cast<char>('a' + draws_.below(3)));
        refusing = draws_.below(4) == 3;
        if (live_.size() == kMostRegions) {
            return;
        }
        try {
            enter(registry().allocate(nbytes, tag), nbytes, tag);
        } catch (const pin::PinError& error) {
            CHECK(error.nbytes == nbytes && (refusing || error.limit < kEnough));
        }
        refusing = false;
    }

    void enter(std::shared_ptr<pin::Region> region, size_t nbytes, const std::string& tag) {
        CHECK(region->nbytes() == nbytes && region->tag() == tag);
        std::byte* data = region->data();
        CHECK(reinterpret_cast<uintptr_t>(data) % sys::page_size() == 0);
        const size_t rounded = pin::round_up_to_page(nbytes);
        for (const Live& other : live_) {
            CHECK(data + rounded <= other.data || other.data + other.rounded() <= data);
        }
        const std::byte mark{static_cast<uint8_t>(1 + calls_ % 255)};
        std::memset(data, static_cast<int>(mark), nbytes);
        const uint64_t serial = region->mapping()->serial;
        live_.push_back({std::move(region), {}, data, nbytes, tag, serial, mark});
        ++calls_;
        peak_ = std::max(peak_, in_use());
    }

    // Lets go of an alias, or of a use; a region without either is gone.
    void drop(bool use) {
        if (live_.empty()) {
            return;
        }
        const At region = any();
        region->check_bytes();
        if (use && region->uses.empty()) {
            return;
        }
        if (region->uses.size() + (region->alias != nullptr ? 1 : 0) == 1) {
            forget(region);
        } else if (use) {
            pin::RegionUse gone = std::move(region->uses.back());
            region->uses.pop_back();
        } else {
            region->alias.reset();
        }
    }
    void forget(At region) {
        Live gone = std::move(*region);
        live_.erase(region);  // first: what follows may call the listener
    }

    void look_up() {
        uintptr_t address = draws_.number(SIZE_MAX);
        if (!live_.empty()) {
            const At region = any();
            address = reinterpret_cast<uintptr_t>(region->data) + draws_.number(region->nbytes) -
                      draws_.below(3);
        }
        const size_t length = draws_.number(SIZE_MAX);
        const auto found = std::find_if(live_.begin(), live_.end(), [&](const Live& region) {
            return region.holds(address, length);
        });
        const auto* pointer = reinterpret_cast<const void*>(address);
        CHECK(registry().is_pinned(pointer, length) == (found != live_.end()));
        pin::RegionUse use = registry().use(pointer, length);
        CHECK(static_cast<bool>(use) == (found != live_.end()));
        if (use && draws_.yes()) {
            CHECK(use->data() == found->data);
            found->uses.push_back(draws_.yes() ? use : std::move(use));
        }
    }

    void release() {
        if (live_.empty()) {
            return;
        }
        const At region = any();
        const size_t inside = draws_.number(region->nbytes);
        const bool expected = region->pinned && inside == 0;
        const auto elsewhere = std::any_of(live_.begin(), live_.end(), [&](const Live& other) {
            return other.pinned && other.data == region->data + inside;
        });
        CHECK(registry().release(region->data + inside) == (expected || elsewhere));
        for (Live& other : live_) {
            other.pinned = other.pinned && other.data != region->data + inside;
        }
        region->check_bytes();
    }

    size_t in_use() const {
        size_t total = 0;
        for (const Live& region : live_) {
            total += region.pinned ? region.rounded() : 0;
        }
        return total;
    }

    void check_accounts() const {
        const pin::Stats stats = registry().stats();
        std::map<std::string, size_t> by_tag;
        size_t regions = 0;
        for (const Live& region : live_) {
            if (region.pinned) {
                by_tag[region.tag] += region.rounded();
                ++regions;
            }
        }
        CHECK(stats.in_use == in_use() && stats.by_tag == by_tag && stats.regions == regions);
        CHECK(stats.calls == before_.calls + calls_ && stats.peak == peak_);
    }

    fuzz::Draws& draws_;
    const pin::Stats before_;
    const size_t locked_before_;
    std::vector<Live> live_;
    uint64_t calls_ = 0;
    size_t peak_ = 0;
    uint64_t listener_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const bool hooked = (sys::set_fault_hook(refuse), true);
    static_cast<void>(hooked);
    fuzz::Draws draws(data, size);
    registry().set_cache_limit(size_t{2} << 20);
    Sequence sequence(draws);
    sequence();
    return 0;
}
