// SPDX-License-Identifier: Apache-2.0
#include <skein/core/ids.hpp>

#include <catch2/catch_test_macros.hpp>

#include <concepts>
#include <unordered_set>

using skein::actor_id;
using skein::node_id;

TEST_CASE("ids of different kinds do not mix") {
    STATIC_CHECK_FALSE(std::equality_comparable_with<node_id, actor_id>);
    STATIC_CHECK_FALSE(std::convertible_to<node_id, actor_id>);
    STATIC_CHECK_FALSE(std::convertible_to<std::uint64_t, node_id>);
    STATIC_CHECK_FALSE(std::convertible_to<node_id, std::uint64_t>);
}

TEST_CASE("ids compare, hash and print as their value") {
    CHECK(node_id(1) < node_id(2));
    CHECK(node_id(2) == node_id(2));
    CHECK_FALSE(node_id());
    CHECK(node_id(1));
    const std::unordered_set<node_id> set = {node_id(1), node_id(1), node_id(2)};
    CHECK(set.size() == 2);
    CHECK(fmt::format("{}", node_id(17)) == "17");
    CHECK(fmt::format("{:04x}", node_id(17)) == "0011");
}
