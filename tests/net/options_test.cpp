// SPDX-License-Identifier: Apache-2.0
#include <skein/net/options.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace skein;

TEST_CASE("an identity survives the wire") {
    net::identity me;
    me.name = "worker-3";
    me.build_id = 0x1234567890abcdefULL;
    me.registry_hash = 7;
    me.pid = 4711;
    me.host = "node-1";
    me.purpose = "links";
    me.extra = to_buffer("more");
    net::identity back;
    REQUIRE(wire::decode(wire::encode(me), back));
    CHECK(back.name == me.name);
    CHECK(back.build_id == me.build_id);
    CHECK(back.registry_hash == me.registry_hash);
    CHECK(back.pid == me.pid);
    CHECK(back.host == me.host);
    CHECK(back.purpose == me.purpose);
    CHECK(back.extra == me.extra);
}

TEST_CASE("a peer is named with what its identity tells") {
    net::identity who;
    CHECK(net::to_string(who) == "peer");
    who.name = "rank 3";
    CHECK(net::to_string(who) == "rank 3");
    who.host = "node-1";
    CHECK(net::to_string(who) == "rank 3 (at node-1)");
    who.pid = 7;
    CHECK(net::to_string(who) == "rank 3 (pid 7 at node-1)");
    who.host.clear();
    CHECK(net::to_string(who) == "rank 3 (pid 7)");
}
