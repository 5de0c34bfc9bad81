// SPDX-License-Identifier: Apache-2.0
// Values between nodes whose stores do not reach each other, and results that are lost on their way.
#include <tests/support/sim_cluster.hpp>

#include <skein/core/awaitable.hpp>
#include <skein/core/metric_registry.hpp>
#include <skein/core/timeout.hpp>
#include <skein/rt/actor.hpp>
#include <skein/rt/put.hpp>
#include <skein/rt/remote.hpp>
#include <skein/rt/view.hpp>

#include <chrono>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <catch2/catch_test_macros.hpp>

namespace far_values_test {

using namespace skein;
using namespace std::chrono_literals;
using numbers = std::vector<std::uint32_t>;

constexpr std::size_t many = 50'000;

int made = 0;
numbers make(std::uint32_t of) {
    ++made;
    return numbers(many, of);
}
std::uint32_t look(view<numbers> at) { return (*at)[many - 1]; }
std::uint32_t look_at_span(std::span<const std::uint32_t> at) { return at[many - 1]; }
std::uint32_t take(numbers all) { return all.size() == many ? all.back() : 0; }
std::vector<ref<numbers>> both(ref<numbers> one, ref<numbers> other) { return {one, other}; }
/// Made on one worker, read on another one.
task<std::uint32_t> make_and_look(std::uint32_t of) {
    const auto there = remote<&make>.with({.cpus = 0})(of);
    const auto seen = remote<&look>.with({.cpus = 0})(there);
    co_return co_await seen;
}

ref<numbers> same(ref<numbers> one) { return one; }
task<ref<numbers>> same_by_another(ref<numbers> one) {
    const auto called = remote<&same>(one);
    co_return co_await called;
}

/// The driver's store is on node 0, worker 1 on node 1, worker 2 on node 2.
template <class Body>
void on_nodes(Body body) {
    sim::loop loop(7);
    sim::network network(loop, sim::faults{});
    test::sim_cluster cluster(loop, network, 2);
    cluster.share_stores(std::uint64_t{8} << 20, 2);
    loop.run(cluster.run(body));
}

task<void> cut_for_good(test::sim_cluster* c, int one, int other) {
    c->network().partition(c->host_of_node(one), c->host_of_node(other));
    co_await sleep_for(20s); // until both know
}

task<void> without_a_way(test::sim_cluster* c, int one, int other) {
    auto cutting = cut_for_good(c, one, other);
    co_await cutting;
    auto putting = put(numbers(many, 3));
    const auto stored = co_await putting;
    const auto result = remote<&make>(5U);
    const auto copied = co_await result;
    CHECK(copied == numbers(many, 5));
    for (int i = 0; i < 4; ++i) { // on either node
        const auto seen = remote<&look>(stored);
        const auto of_span = remote<&look_at_span>(result);
        const auto taken = remote<&take>(numbers(many, 7));
        const auto passed = remote<&make_and_look>.with({.cpus = 0})(9U);
        const auto back = remote<&both>(stored, result);
        const auto saw = co_await seen;
        const auto saw_span = co_await of_span;
        CHECK((saw == 3 && saw_span == 5));
        const auto took = co_await taken;
        const auto looked = co_await passed;
        CHECK((took == 7 && looked == 9));
        const auto refs = co_await back;
        auto viewing = view(refs[1]);
        const auto first = co_await refs[0];
        const auto second = co_await viewing;
        CHECK((first.back() == 3 && (*second).back() == 5));
    }
}

TEST_CASE("without a way between stores values travel in messages", "[rt][objects][V16]") {
    on_nodes([](test::sim_cluster& c) { return without_a_way(&c, 0, 1); });
    on_nodes([](test::sim_cluster& c) { return without_a_way(&c, 1, 2); });
}

std::uint64_t bytes_sent() { // of all processes here
    return metric_registry::process()
        .counter("skein_net_sent_bytes_total", "Bytes sent to peers.")
        .value();
}

/// An actor that keeps what it is given.
struct keeper {
    std::vector<ref<numbers>> kept;
    void keep(ref<numbers> one) { kept.push_back(std::move(one)); }
    std::vector<ref<numbers>> give() { return kept; }
    std::uint32_t look(view<numbers> at) { return (*at)[many - 1]; }
    /// A call of the process to itself.
    task<std::uint32_t> look_by(actor_handle<keeper> self, ref<numbers> at) {
        const auto seen = self.call<&keeper::look>(at);
        co_return co_await seen;
    }
};

TEST_CASE("a ref is given back after its stores have lost each other and met again",
          "[rt][objects][V16]") {
    on_nodes([](test::sim_cluster& c) -> task<void> {
        auto putting = put(numbers(many, 3));
        const auto stored = co_await putting;
        auto making = actor<keeper>();
        const auto there = co_await making;
        const auto kept = there.call<&keeper::keep>(stored);
        co_await kept;
        for (const int node : {1, 2})
            c.network().partition(c.host_of_node(0), c.host_of_node(node));
        co_await sleep_for(30s);
        c.network().heal_all();
        co_await sleep_for(30s);
        CHECK(c.are_stores_linked());
        const auto back = there.call<&keeper::give>();
        const auto refs = co_await back;
        const auto value = co_await refs.at(0);
        CHECK(value.back() == 3);
    });
}

TEST_CASE("what a driver passes on with its bytes, and has itself, is not held by nobody",
          "[rt][objects][V16]") {
    on_nodes([](test::sim_cluster& c) -> task<void> {
        c.network().partition(c.host_of_node(0), c.host_of_node(2));
        auto cutting = cut_for_good(&c, 1, 2);
        co_await cutting;
        {
            auto putting = put(numbers(many, 3));
            const auto stored = co_await putting;
            for (int i = 0; i < 6; ++i) {
                const auto asked = remote<&same_by_another>(stored);
                const auto back = co_await asked;
                const auto value = co_await back;
                CHECK(value.back() == 3);
            }
        }
        co_await sleep_for(30s);
        CHECK(c.stored().objects == 0);
    });
}

TEST_CASE("what came in a message once is not asked for again", "[rt][objects][V16]") {
    on_nodes([](test::sim_cluster& c) -> task<void> {
        for (const int node : {1, 2})
            c.network().partition(c.host_of_node(0), c.host_of_node(node));
        co_await sleep_for(20s);
        auto putting = put(numbers(many, 3));
        const auto stored = co_await putting;
        auto making = actor<keeper>();
        const auto there = co_await making;
        const auto kept = there.call<&keeper::keep>(stored);
        co_await kept;
        const auto before = bytes_sent();
        std::vector<ref<std::uint32_t>> seen;
        for (int i = 0; i < 10; ++i) seen.push_back(there.call<&keeper::look>(stored));
        seen.push_back(there.call<&keeper::look_by>(there, stored)); // of its own process
        for (const auto& one : seen) CHECK(co_await one == 3);
        CHECK(bytes_sent() - before < many * sizeof(std::uint32_t));
    });
}

TEST_CASE("a task whose result is lost on its way runs again if it has retries",
          "[rt][objects][V11]") {
    on_nodes([](test::sim_cluster& c) -> task<void> {
        const auto before = remote<&make>(1U);
        (void)co_await before; // the stores have met
        made = 0;
        const auto again = remote<&make>.with({.retries = 1})(2U);
        const auto never = remote<&make>(3U);
        while (made < 2) co_await sleep_for(1ms);
        co_await sleep_for(200us); // the replies are on the way, their bytes are not
        for (const int node : {1, 2})
            c.network().partition(c.host_of_node(0), c.host_of_node(node));
        co_await sleep_for(100ms);
        for (const int node : {1, 2}) {
            auto killing = c.kill_node(node);
            co_await killing;
            c.network().heal(c.host_of_node(0), c.host_of_node(node));
        }
        auto asking = as_result(with_timeout(again, 100s));
        const auto value = co_await asking;
        REQUIRE(value);
        CHECK(*value == numbers(many, 2));
        auto other = as_result(with_timeout(never, 100s));
        const auto lost = co_await other;
        CHECK((lost || lost.error().code() == errc::object_lost));
    });
}

TEST_CASE("who cancels a call does not wait for the bytes of its result", "[rt][objects]") {
    on_nodes([](test::sim_cluster& c) -> task<void> {
        const auto before = remote<&make>(1U);
        (void)co_await before;
        made = 0;
        const auto call = remote<&make>(2U);
        while (made < 1) co_await sleep_for(100us);
        for (const int node : {1, 2})
            c.network().partition(c.host_of_node(0), c.host_of_node(node));
        co_await sleep_for(1s); // its answer is there
        const auto began = c.loop().now();
        call.cancel();
        auto asking = as_result(with_timeout(call, 100s));
        const auto value = co_await asking;
        CHECK_FALSE(value);
        CHECK(c.loop().now() - began < 5s);
        c.network().heal_all();
        co_await sleep_for(60s);
        CHECK(c.stored().objects == 2); // that of `before`, and the copy of it
    });
}

} // namespace far_values_test
