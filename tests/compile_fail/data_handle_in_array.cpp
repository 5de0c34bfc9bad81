// SPDX-License-Identifier: Apache-2.0
// expect: skein: rows left of on() travel: their fields are numbers, enums
#include <skein/data/loader.hpp>

#include <array>

using namespace skein;

// Two crops of a picture: handles into the memory of who made them.
struct crops {
    std::array<data::image<float, 3>, 2> two = std::array<data::image<float, 3>, 2>();
};
crops make(std::int64_t) { return {}; }
float first(const crops&) { return 0; }

auto wrong() {
    return data::loader(data::range(9) | data::map<&make>() | data::on(data::helpers{.most = 1}) |
                        data::map<&first>() | data::batch(1));
}
