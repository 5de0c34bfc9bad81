// SPDX-License-Identifier: Apache-2.0
#include <skein/spmd/loss_listeners.hpp>

#include <catch2/catch_test_macros.hpp>

#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

using namespace skein;
using namespace skein::spmd;
using namespace std::chrono_literals;

namespace {
const error gone(errc::peer_lost, "gone");
}

TEST_CASE("every listener hears of the loss, once") {
    spmd::loss_listeners losses;
    std::vector<std::string> heard;
    const auto first = losses.add(
        [&](int rank, const error& why) { heard.push_back(std::to_string(rank) + why.text()); });
    const auto second = losses.add([&](int, const error&) { heard.push_back("second"); });
    losses.tell(3, gone);
    losses.tell(4, gone); // an echo
    CHECK(heard == std::vector<std::string>{"3gone", "second"});
}

TEST_CASE("a listener whose subscription has ended hears nothing; the others do") {
    spmd::loss_listeners losses;
    int ended = 0, other = 0, moved = 0;
    const auto stays = losses.add([&](int, const error&) { ++other; });
    auto goes = losses.add([&](int, const error&) { ++ended; });
    {
        const auto leaves = losses.add([&](int, const error&) { ++ended; });
    }
    auto from = losses.add([&](int, const error&) { ++moved; });
    const auto to = std::move(from);
    goes.reset();
    CHECK_FALSE(goes);
    losses.tell(1, gone);
    CHECK(ended == 0);
    CHECK(other == 1);
    CHECK(moved == 1);
}

TEST_CASE("who comes after the loss is told at once") {
    spmd::loss_listeners losses;
    losses.tell(2, gone);
    int rank = -1;
    const auto late = losses.add([&](int lost, const error&) { rank = lost; });
    CHECK(rank == 2);
    CHECK(losses.wait(0ms));
}

TEST_CASE("a listener may end its own subscription and another's") {
    spmd::loss_listeners losses;
    int told = 0;
    spmd::subscription own, other;
    own = losses.add([&](int, const error&) {
        ++told;
        own.reset();
        other.reset();
    });
    other = losses.add([&](int, const error&) { told += 100; });
    losses.tell(0, gone);
    CHECK(told == 1);
}

TEST_CASE("a subscription may outlive what it listens to") {
    std::optional<spmd::loss_listeners> losses(std::in_place);
    auto left = losses->add([](int, const error&) {});
    losses.reset();
    left.reset();
    CHECK_FALSE(left);
}

TEST_CASE("a waiter wakes at the loss, and gives up at its limit") {
    spmd::loss_listeners losses;
    CHECK_FALSE(losses.wait(1ms));
    std::thread teller([&] { losses.tell(1, gone); });
    CHECK(losses.wait(20s));
    teller.join();
}
