// SPDX-License-Identifier: Apache-2.0
// The ring in virtual time: neighbours that die, fall silent or are cut off. The laws of
// collectives are in communicator_test.cpp, random faults in tests/sim/dist_ring_scenario.cpp.
#include <skein/dist/ring.hpp>

#include <skein/core/all.hpp>
#include <skein/core/awaitable.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/dist/links.hpp>
#include <skein/net/network.hpp>
#include <skein/sim/faults.hpp>
#include <skein/sim/loop.hpp>
#include <skein/sim/network.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <memory>
#include <optional>
#include <string>
#include <vector>

using namespace skein;
using namespace skein::dist;
using namespace std::chrono_literals;

namespace {

struct ring_world {
    explicit ring_world(int n)
        : loop(7), network(loop, sim::faults{}), errors(static_cast<std::size_t>(n)) {
        secret = net::token::generate(loop.random());
        for (int r = 0; r < n; ++r) {
            const std::string name = "r" + std::to_string(r);
            listeners.push_back(network.host(name).listen(net::address::sim(name, 0)));
            addresses.push_back(listeners.back()->local());
            group.push_back(r);
        }
    }
    sim::loop loop;
    sim::network network;
    net::token secret;
    std::vector<std::unique_ptr<net::listener>> listeners;
    std::vector<net::address> addresses;
    std::vector<int> group;
    std::vector<std::optional<error>> errors;
    std::vector<duration> took = std::vector<duration>(8);
};

/// Two all-reduces; before the second, rank `victim` does what `fault` says.
task<void> life(ring_world* w, int rank, int victim, int fault, std::size_t count) {
    auto& host = w->network.host("r" + std::to_string(rank));
    auto net =
        std::make_shared<links>(std::shared_ptr<net::network>(std::shared_ptr<void>(), &host),
                                std::move(w->listeners[static_cast<std::size_t>(rank)]), rank,
                                w->addresses, w->secret, "test");
    net->start();
    collective_options limits;
    limits.deadline = 10s;
    auto connecting = ring_communicator::connect(net, w->group, rank, {}, limits);
    auto ring = co_await std::move(connecting);
    std::vector<float> v(count, 1.0f);
    auto first = ring->all_reduce(view_of(std::span(v)), reduce_op::sum);
    co_await std::move(first);
    if (v.back() != static_cast<float>(w->group.size())) throw error(errc::internal, "wrong sum");
    auto nap = sleep_for(1s);
    co_await nap;
    const time_point begin = w->loop.now();
    try {
        if (rank == victim) {
            if (fault == 0) w->network.crash("r" + std::to_string(rank), true);
            if (fault == 1) w->network.crash("r" + std::to_string(rank), false);
            if (fault == 2) w->network.isolate("r" + std::to_string(rank));
            auto late = sleep_for(60s);
            co_await late;
            throw error(errc::cancelled, "the victim");
        }
        auto second = ring->all_reduce(view_of(std::span(v)), reduce_op::sum);
        co_await std::move(second);
    } catch (const error& e) {
        w->errors[static_cast<std::size_t>(rank)] = e;
        w->took[static_cast<std::size_t>(rank)] = w->loop.now() - begin;
    }
    auto closing = ring->close();
    co_await std::move(closing);
}

} // namespace

TEST_CASE("a rank that dies, falls silent or is cut off is named on all others in time") {
    const int fault =
        GENERATE(0, 1, 2, 3); // reset, silent machine, partition, a rank that does not come
    const int n = GENERATE(2, 3, 5);
    const std::size_t count = GENERATE(10u, 100000u);
    ring_world w(n);
    std::vector<task<void>> ranks;
    for (int r = 0; r < n; ++r) ranks.push_back(life(&w, r, 1, fault, count));
    w.loop.run(all(std::move(ranks)));
    for (int r = 0; r < n; ++r) {
        if (r == 1) continue;
        const auto& e = w.errors[static_cast<std::size_t>(r)];
        REQUIRE(e);
        INFO("fault " << fault << ", rank " << r << " of " << n << ", " << count << ": "
                      << e->what());
        CHECK(std::string(e->what()).find("rank 1 failed in") != std::string::npos);
        const auto took = w.took[static_cast<std::size_t>(r)];
        if (fault == 0) {
            CHECK(e->code() == errc::peer_lost);
            CHECK(took < 1s);
        } else {
            CHECK(took < 13s);
        }
    }
}

TEST_CASE("a ring that cannot be closed says which rank was not there") {
    ring_world w(3);
    const auto start = [](ring_world* world, int rank) -> task<void> {
        auto& host = world->network.host("r" + std::to_string(rank));
        auto net =
            std::make_shared<links>(std::shared_ptr<net::network>(std::shared_ptr<void>(), &host),
                                    std::move(world->listeners[static_cast<std::size_t>(rank)]),
                                    rank, world->addresses, world->secret, "test");
        net->start();
        collective_options limits;
        limits.deadline = 5s;
        auto connecting =
            as_result(ring_communicator::connect(net, world->group, rank, {}, limits));
        auto outcome = co_await std::move(connecting);
        if (!outcome) world->errors[static_cast<std::size_t>(rank)] = outcome.error();
    };
    std::vector<task<void>> ranks; // rank 2 never comes
    ranks.push_back(start(&w, 0));
    ranks.push_back(start(&w, 1));
    w.loop.run(all(std::move(ranks)));
    REQUIRE(w.errors[0]);
    INFO(w.errors[0]->what());
    CHECK(std::string(w.errors[0]->what()).find("rank 2") != std::string::npos);
    REQUIRE(w.errors[1]);
    INFO(w.errors[1]->what());
    CHECK(std::string(w.errors[1]->what()).find("rank 2") != std::string::npos);
}
