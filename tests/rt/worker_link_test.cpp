// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>

#include <skein/rt/detail/message.hpp>
#include <skein/rt/registry.hpp>
#include <skein/rt/runtime.hpp>
#include <skein/rt/worker_link.hpp>
#include <skein/wire/decode.hpp>

#include <algorithm>

using namespace skein;

TEST_CASE("a worker says how many cpus it has and which process it is", "[rt][worker_link]") {
    const rt::runtime self(rt::runtime_options{"worker-3", "h", 7, 42});
    rt::worker_link how{net::token::generate()};
    how.cpus = 4;
    how.shares_memory = true;
    how.start = std::chrono::seconds(9);
    const auto o = rt::worker_connection(self, how);
    CHECK(o.secret == how.secret);
    CHECK(o.self.name == "worker-3");
    CHECK(o.self.pid == 7);
    CHECK(o.self.registry_hash == rt::registry::instance().hash());
    CHECK(o.require_same_build);
    CHECK(o.checksum_bodies);
    CHECK(o.bounds.handshake_deadline == std::chrono::seconds(9));
    const auto hello = wire::decode<rt::detail::worker_hello>(o.self.extra);
    REQUIRE(hello);
    CHECK(hello->cpus == 4);
    CHECK(hello->incarnation == 42);
    CHECK(hello->shares_memory);
    how.in_memory = true;
    CHECK_FALSE(rt::worker_connection(self, how).checksum_bodies);
}

TEST_CASE("a space server's secret travels sealed", "[N10][rt][worker_link]") {
    const auto mine = net::token::generate(), other = net::token::generate();
    const auto secret = net::token::generate();
    const auto sealed = rt::seal_secret(mine, 7, secret.bytes());
    const auto same = [&](const byte_buffer& b) {
        return std::equal(b.begin(), b.end(), secret.bytes().begin(), secret.bytes().end());
    };
    CHECK_FALSE(same(sealed));
    CHECK(same(rt::seal_secret(mine, 7, sealed)));
    CHECK_FALSE(same(rt::seal_secret(other, 7, sealed)));
    CHECK_FALSE(same(rt::seal_secret(mine, 8, sealed)));
}
