// SPDX-License-Identifier: Apache-2.0
#include <tests/rt/apps.hpp>
#include <tests/support/sim_cluster.hpp>

#include <skein/rt/node.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace skein;
using namespace rt_test;
using namespace std::chrono_literals;
using test::in_sim;
using test::sim_cluster;

namespace {

template <class Body>
void with_node(Body body) {
    sim::loop loop(1);
    rt::node lonely(rt::node_options{});
    const rt::node::use current(lonely);
    loop.run(body(lonely));
}

} // namespace

TEST_CASE("calls wait for the first worker, which is asked for once", "[rt][node]") {
    with_node([](rt::node& n) -> task<void> {
        int asked = 0;
        n.on_first_call([&asked] { ++asked; });
        auto a = remote<&twice>(1);
        auto b = remote<&twice>(2);
        CHECK(asked == 1);
        CHECK(n.pending() == 2);
        n.give_up(error(errc::not_found, "no worker can be started"));
        auto ra = as_result(a);
        auto outcome = co_await std::move(ra);
        REQUIRE_FALSE(outcome);
        CHECK(outcome.error().text() == "no worker can be started");
        CHECK(n.pending() == 0);
        auto rb = as_result(remote<&twice>(3)); // and so do later ones
        {
            const auto got = co_await std::move(rb);
            CHECK_FALSE(got);
        }
    });
}

TEST_CASE("closing a node ends what waits", "[rt][node]") {
    with_node([](rt::node& n) -> task<void> {
        auto a = as_result(remote<&twice>(1));
        auto bye = n.close();
        co_await bye;
        auto outcome = co_await std::move(a);
        REQUIRE_FALSE(outcome);
        CHECK(outcome.error().code() == errc::closed);
        auto late = as_result(remote<&twice>(1));
        auto refused = co_await std::move(late);
        REQUIRE_FALSE(refused);
        CHECK(refused.error().code() == errc::closed);
    });
}

TEST_CASE("a worker that falls silent is given up and its tasks run elsewhere", "[rt][node]") {
    in_sim(2, 2, [](sim_cluster& c) -> task<void> {
        std::vector<ref<int>> refs;
        for (int i = 0; i < 4; ++i) refs.push_back(remote<&later>(i, 2000));
        co_await sleep_for(100ms);
        c.network().isolate(sim_cluster::host_of(0));
        for (int i = 0; i < 4; ++i) {
            const auto got = co_await refs[std::size_t(i)];
            CHECK(got == i);
        }
        CHECK(c.driver().stats().workers_lost >= 1);
        CHECK(c.driver().stats().retried >= 1);
        c.network().heal_all();
    });
}

TEST_CASE("the world is the same for the same seed", "[rt][node]") {
    const auto trace = [](std::uint64_t seed) {
        sim::loop loop(seed);
        sim::network network(loop, sim::faults{});
        sim_cluster cluster(loop, network, 2);
        loop.run(cluster.run([](sim_cluster& c) -> task<void> {
            std::vector<ref<int>> refs;
            for (int i = 0; i < 50; ++i) refs.push_back(remote<&later>(i, i));
            co_await sleep_for(30ms);
            c.kill(0);
            for (auto& r : refs) (void)co_await r;
        }));
        CHECK(network.open_streams() == 0);
        return loop.trace_hash();
    };
    CHECK(trace(5) == trace(5));
    CHECK(trace(5) != trace(6));
}

TEST_CASE("after a run no call, coroutine, actor or stream is left", "[rt][node]") {
    sim::loop loop(3);
    sim::network network(loop, sim::faults{});
    {
        sim_cluster cluster(loop, network, 2);
        loop.run(cluster.run([](sim_cluster&) -> task<void> {
            auto c = co_await actor<counter>(1);
            auto running = c.call<&counter::add_later>(1, 1000000);
            auto task_too = remote<&later>(1, 1000000);
            co_await sleep_for(10ms);
        }));
        CHECK(cluster.driver().pending() == 0);
        CHECK(cluster.running() == 0);
        CHECK(cluster.actors() == 0);
    }
    CHECK(network.open_streams() == 0);
}

TEST_CASE("frames that are no calls break the link and nothing else", "[rt][node]") {
    // A peer that knows the token but speaks nonsense: the driver drops it and goes on with the others.
    sim::loop loop(4);
    sim::network network(loop, sim::faults{});
    sim_cluster cluster(loop, network, 1);
    loop.run(cluster.run([](sim_cluster& c) -> task<void> {
        auto good = remote<&twice>(4);
        {
            const auto got = co_await good;
            CHECK(got == 8);
        }
        for (std::uint16_t kind : {0, 1, 9}) {
            auto fake = c.impostor();
            auto peer = co_await fake;
            peer->send(kind, 0, 1, as_bytes("nonsense"), {});
            auto ended = peer->wait_closed();
            co_await ended;
        }
        auto still = remote<&twice>(5);
        {
            const auto got = co_await still;
            CHECK(got == 10);
        }
    }));
}
