// SPDX-License-Identifier: Apache-2.0
#include <skein/data/image.hpp>

#include <cstdint>
#include <type_traits>

#include <catch2/catch_test_macros.hpp>

using namespace skein;

TEST_CASE("images are handles into the current arena") {
    static_assert(std::is_trivially_copyable_v<data::image<float, 3>>);
    data::arena memory;
    const data::arena_scope scope(memory);
    const auto made = data::make_image<std::uint8_t, 3>(5, 7);
    CHECK(made.height == 5);
    CHECK(made.width == 7);
    CHECK(made.size() == 105);
    CHECK(made.values().size() == 105);
    CHECK(memory.used() >= 105);
    CHECK(data::make_image<float, 1>(0, 3).size() == 0);
}
