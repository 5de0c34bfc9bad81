// SPDX-License-Identifier: Apache-2.0
#include <skein/core/constants.hpp>
#include <skein/net/limits.hpp>

#include <catch2/catch_test_macros.hpp>

#include <type_traits>

using namespace skein;

TEST_CASE("the limits agree with the table of time constants and sizes") {
    constexpr auto t = time_constants::lan();
    const net::limits l;
    const net::keep_alive k;
    CHECK(l.handshake_deadline == t.handshake_timeout);
    CHECK(l.max_frame == limit::frame_bytes);
    CHECK(k.ping_after == t.agent_heartbeat);
    CHECK(k.suspect_after == t.suspect_after);
    CHECK(k.dead_after == t.dead_after);
    CHECK(k.stalled_after == t.stalled_after);
    CHECK(l.close_deadline == t.close_timeout);
    CHECK(l.max_send_queue == limit::queue_bytes);
    CHECK(l.max_receive_queue == limit::queue_bytes);
}

TEST_CASE("limits may stand in an awaited expression") {
    CHECK(std::is_trivially_destructible_v<net::limits>);
    CHECK(std::is_trivially_destructible_v<net::keep_alive>);
}
