// Guards: every device has a place of its own for ever, and the last place is for all that come
// when there is none left.
#include <vector>

#include "check.h"
#include "io/device_table.h"

using deepnvme::io::DeviceNumber;
using deepnvme::io::DeviceTable;

int main() {
    DeviceTable table;
    std::vector<DeviceNumber> devices;
    for (uint32_t i = 0; i < DeviceTable::capacity + 20; ++i) {
        devices.push_back({i % 3, i});
    }
    for (int round = 0; round < 2; ++round) {
        for (size_t i = 0; i < devices.size(); ++i) {
            const size_t place = table.place_of(devices[i]);
            const bool own = i + 1 < DeviceTable::capacity;
            CHECK(place == (own ? i : DeviceTable::capacity - 1));
            const DeviceNumber found = table.device(place);
            CHECK(found.major == (own ? devices[i].major : 0));
            CHECK(found.minor == (own ? devices[i].minor : 0));
        }
    }
    return 0;
}
