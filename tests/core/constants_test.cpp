// SPDX-License-Identifier: Apache-2.0
#include <skein/core/constants.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace std::chrono_literals;

TEST_CASE("the table of a local network is as documented") {
    constexpr auto lan = skein::time_constants::lan();
    STATIC_CHECK(lan.group_heartbeat == 100ms);
    STATIC_CHECK(lan.agent_heartbeat == 500ms);
    STATIC_CHECK(lan.suspect_after == 1s);
    STATIC_CHECK(lan.dead_after == 3s);
}

TEST_CASE("the table of a wide network is the same times five") {
    constexpr auto wan = skein::time_constants::wan();
    STATIC_CHECK(wan.group_heartbeat == 500ms);
    STATIC_CHECK(wan.dead_after == 15s);
    STATIC_CHECK(wan.reconnect_most == 10s);
    STATIC_CHECK(wan.collective_timeout == 150s);
}

TEST_CASE("exit codes are those of the manual") {
    STATIC_CHECK(skein::exit_code::done == 0);
    STATIC_CHECK(skein::exit_code::failed == 1);
    STATIC_CHECK(skein::exit_code::usage == 2);
    STATIC_CHECK(skein::exit_code::deadline == 124);
    STATIC_CHECK(skein::exit_code::interrupted == 130);
}
