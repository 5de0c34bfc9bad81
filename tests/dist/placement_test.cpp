// SPDX-License-Identifier: Apache-2.0
#include <skein/dist/placement.hpp>

#include <catch2/catch_test_macros.hpp>

#include <vector>

using namespace skein::dist;

TEST_CASE("hosts are ordered by their first rank and ranks ascend inside") {
    const auto p = placement::from({"b", "a", "b", "c", "a"}, 4);
    CHECK(p.hosts == std::vector<std::vector<int>>{{0, 2}, {1, 4}, {3}});
    CHECK(p.my_host == 1);
    CHECK(p.my_place == 1);
    CHECK(p.leaders() == std::vector<int>{0, 1, 3});
}
