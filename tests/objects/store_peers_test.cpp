// SPDX-License-Identifier: Apache-2.0
// Stores of several nodes find each other by the one of the driver.
#include "objects/far_support.hpp"

#include <catch2/catch_test_macros.hpp>

namespace store_peers_test {

using namespace skein;
using far_objects_test::world;

constexpr std::uint64_t mebi = std::uint64_t{1} << 20;

TEST_CASE("all stores of a program have links with each other", "[objects][far][V10]") {
    world w;
    w.run([](world& w) -> task<void> {
        for (int i = 0; i < 4; ++i) w.add(mebi);
        co_await sleep_for(std::chrono::seconds(1));
        for (const auto& one : w.nodes) {
            CHECK(one->far->peers().linked() == 3);
            CHECK(one->far->peers().has_hub() == (one != w.nodes.front()));
        }
    });
}

TEST_CASE(
    "a store that has ended is lost, for those who want it and for those who told it something",
    "[objects][far][V11]") {
    world w;
    w.run([](world& w) -> task<void> {
        for (int i = 0; i < 3; ++i) w.add(mebi);
        co_await sleep_for(std::chrono::seconds(1));
        auto& peers = w.nodes[2]->far->peers();
        auto killing = w.kill(*w.nodes[1]);
        co_await killing;
        co_await sleep_for(std::chrono::seconds(60)); // for as long a link may be away
        auto reaching = as_result(peers.reach(4712));
        const auto reached = co_await reaching;
        CHECK((!reached && reached.error().code() == errc::object_lost));
        CHECK(peers.linked() == 1);
        peers.at(4712)->tell(objects::ended_note());
    });
}

TEST_CASE("stores that have lost each other meet again", "[objects][far][V16]") {
    world w;
    w.run([](world& w) -> task<void> {
        for (int i = 0; i < 3; ++i) w.add(mebi);
        const auto reader = w.join(*w.nodes[2]);
        co_await sleep_for(std::chrono::seconds(1));
        reader->open();
        auto reaching = reader->others().wait(4712);
        const bool is_reached = co_await reaching;
        CHECK(is_reached);
        const auto before = w.nodes[2]->far->peers().at(4712)->counts_as;
        w.network.partition("n0", "n1");
        w.network.partition("n1", "n2");
        co_await sleep_for(std::chrono::seconds(60));
        CHECK(w.nodes[1]->far->peers().linked() == 0);
        CHECK(w.nodes[2]->far->peers().linked() == 1);
        CHECK_FALSE(reader->others().has(4712));
        CHECK(reader->others().has(4711));
        w.network.heal("n0", "n1");
        w.network.heal("n1", "n2");
        co_await sleep_for(std::chrono::seconds(30));
        for (const auto& one : w.nodes) CHECK(one->far->peers().linked() == 2);
        CHECK(reader->others().has(4712));
        CHECK(w.nodes[2]->far->peers().at(4712)->counts_as != before);
    });
}

TEST_CASE("a store that the driver's has lost is not dialled for ever", "[objects][far]") {
    world w;
    w.run([](world& w) -> task<void> {
        for (int i = 0; i < 3; ++i) w.add(mebi);
        co_await sleep_for(std::chrono::seconds(1));
        auto killing = w.kill(*w.nodes[2]);
        co_await killing;
        co_await sleep_for(std::chrono::seconds(60));
        const auto events = w.loop.events();
        co_await sleep_for(std::chrono::seconds(600));
        CHECK(w.nodes[1]->far->peers().linked() == 1);
        CHECK(w.loop.events() - events < 20'000); // a link that lives says so now and then
    });
}

TEST_CASE("a store that nobody has heard of is lost after a while", "[objects][far][V11]") {
    world w;
    w.run([](world& w) -> task<void> {
        for (int i = 0; i < 2; ++i) w.add(mebi);
        auto reaching = as_result(w.nodes[1]->far->peers().reach(99));
        const auto reached = co_await reaching;
        CHECK((!reached && reached.error().code() == errc::object_lost));
        const auto began = w.loop.now(); // and is not waited for again
        auto once_more = as_result(w.nodes[1]->far->peers().reach(99));
        const auto never = co_await once_more;
        CHECK_FALSE(never);
        CHECK(w.loop.now() - began < std::chrono::seconds(1));
    });
}

} // namespace store_peers_test
