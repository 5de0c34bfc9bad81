// SPDX-License-Identifier: Apache-2.0
#include "dist/ranks.hpp"

#include <catch2/catch_test_macros.hpp>

#include <atomic>
#include <thread>

using namespace skein;
using namespace skein::dist;
using skein::sim::local_world;
using namespace std::chrono_literals;

TEST_CASE("an exchange gives all blobs in rank order, key by key") {
    local_world world({"a", "b", "a"});
    const auto errors = ranks::each(3, [&](int r) {
        auto& me = world.at(r);
        for (int round = 0; round < 50; ++round) {
            const std::string mine = std::to_string(r * 100 + round);
            const auto all =
                me.exchange("round " + std::to_string(round), as_bytes(std::string_view(mine)));
            for (int p = 0; p < 3; ++p) {
                if (to_string(byte_span(all[static_cast<std::size_t>(p)])) !=
                    std::to_string(p * 100 + round)) {
                    throw error(errc::internal, "another blob");
                }
            }
        }
    });
    CHECK(ranks::first_error(errors).empty());
    CHECK(world.at(2).local_rank() == 1);
    CHECK(world.at(2).local_size() == 2);
    CHECK(world.at(1).local_size() == 1);
    CHECK(world.at(0).secret() == world.at(2).secret());
}

TEST_CASE("a missing rank is named after the deadline") {
    local_world world(3);
    world.set_deadline(50ms);
    try {
        world.at(0).exchange("k", byte_span{});
        FAIL("no error");
    } catch (const error& e) {
        CHECK(e.code() == errc::timeout);
        CHECK(std::string(e.what()).find("rank 1 2") != std::string::npos);
    }
}

TEST_CASE("a lost rank ends exchanges and is told once") {
    local_world world(2);
    int told = 0;
    const auto watching =
        world.at(0).on_lost([&](int rank, const error&) { told += rank == 1 ? 1 : 100; });
    world.lose(1, error(errc::peer_lost, "killed"));
    world.lose(1, error(errc::peer_lost, "killed again"));
    CHECK(told == 1);
    CHECK_THROWS_AS(world.at(0).exchange("k", byte_span{}), error);
    const auto late = world.at(0).on_lost([&](int, const error&) { told += 1; });
    CHECK(told == 2); // at once, since it has happened
}

TEST_CASE("a loss at the moment of asking for it is told exactly once") {
    for (int i = 0; i < 500; ++i) {
        local_world world(2);
        std::atomic<int> told{0};
        std::thread loses([&] { world.lose(1, error(errc::peer_lost, "killed")); });
        const auto watching = world.at(0).on_lost([&](int, const error&) { ++told; });
        loses.join();
        CHECK(told == 1);
    }
}
