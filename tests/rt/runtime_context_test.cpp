// SPDX-License-Identifier: Apache-2.0
#include <tests/apps/apps.hpp>
#include <tests/support/sim_cluster.hpp>

#include <skein/rt/runtime_context.hpp>

#include <skein/core/as_completed.hpp>
#include <skein/core/event.hpp>

#include <set>

#include <catch2/catch_test_macros.hpp>

using namespace skein;
using namespace rt_test;
using namespace std::chrono_literals;
using test::in_sim;
using test::sim_cluster;

namespace context_test {

/// What a call knows of itself, as it can travel.
struct told {
    std::string process, function;
    std::uint64_t by = 0, number = 0, parent = 0, trace = 0, trace_by = 0, actor = 0;
    std::int64_t left_ns = -1;
};

told tell() {
    const auto here = runtime_context();
    told out;
    out.process = here.process;
    out.function = here.function;
    out.by = here.call.value().incarnation;
    out.number = here.call.value().number;
    out.parent = here.parent.value().number;
    out.trace = here.trace.value().number;
    out.trace_by = here.trace.value().incarnation;
    out.actor = here.actor.value().number;
    if (here.time_left) out.left_ns = here.time_left->count();
    return out;
}

/// Itself, its child, and its child's child.
task<std::vector<told>> family(int below) {
    std::vector<told> all{tell()};
    co_await sleep_for(1ms);
    const auto again = tell();
    if (again.number != all[0].number || again.process != all[0].process)
        all.clear(); // it has forgotten
    if (below > 0) {
        auto child = remote<&family>(below - 1);
        const auto rest = co_await child;
        all.insert(all.end(), rest.begin(), rest.end());
    }
    co_return all;
}

struct space_server {
    told tell_method() const { return tell(); }
    task<told> tell_later() {
        co_await sleep_for(1ms);
        co_return tell();
    }
};

/// Makes an actor of its own and asks it.
task<told> ask_own_actor() {
    auto mine = co_await skein::actor<space_server>();
    auto asked = mine.call<&space_server::tell_method>();
    co_return co_await asked;
}

/// How many of these wait now; all runtimes of a simulated world are in this process.
int waiting = 0;
task<int> wait_for_ever() {
    ++waiting;
    try {
        co_await sleep_for(std::chrono::hours(1));
    } catch (...) {
        --waiting;
        throw;
    }
    --waiting;
    co_return 0;
}
task<int> wait_below(int below) {
    auto child = below > 0 ? remote<&wait_below>(below - 1) : remote<&wait_for_ever>();
    co_return co_await child;
}
/// Lets go of its child, which goes on.
task<int> start_one() {
    (void)remote<&wait_for_ever>();
    co_await sleep_for(1ms);
    co_return 7;
}
task<int> wait_with_deadline_of(int ms) {
    auto child = remote<&wait_for_ever>.with({.deadline = std::chrono::milliseconds(ms)})();
    co_return co_await child;
}
/// Lets go of an actor before anybody has said that it is there.
task<int> drop_while_making() {
    auto dropped = with_timeout(skein::actor<space_server>(), 1ns);
    auto asked = as_result(std::move(dropped));
    const auto outcome = co_await asked;
    co_return outcome ? 1 : 0;
}

} // namespace context_test

using namespace context_test;

TEST_CASE("a task of the driver is no call", "[rt][context]") {
    in_sim(1, 1, [](sim_cluster&) -> task<void> {
        const auto here = runtime_context();
        CHECK(here.process == "driver");
        CHECK_FALSE(here.call);
        CHECK_FALSE(here.time_left);
        CHECK(here.function.empty());
        co_return;
    });
    CHECK_THROWS_AS(runtime_context(), error);
}

TEST_CASE("a call knows where it runs, its parent and the first of its tree",
          "[C11][rt][context]") {
    in_sim(2, 3, [](sim_cluster& c) -> task<void> {
        auto first = remote<&family>(3);
        const auto all = co_await first;
        REQUIRE(all.size() == 4);
        CHECK(all[0].by == c.driver().incarnation());
        CHECK(all[0].trace == all[0].number);
        CHECK(all[0].parent == 0);
        std::set<std::pair<std::uint64_t, std::uint64_t>> ids;
        for (std::size_t i = 0; i < all.size(); ++i) {
            CHECK(all[i].function == "context_test::family(int)");
            CHECK(all[i].process.starts_with("worker-"));
            CHECK(all[i].trace == all[0].number);
            CHECK(all[i].trace_by == c.driver().incarnation());
            if (i > 0) CHECK(all[i].parent == all[i - 1].number);
            ids.emplace(all[i].by, all[i].number);
        }
        CHECK(ids.size() == all.size());
    });
}

TEST_CASE("methods know their actor, also one that a worker has made", "[rt][context]") {
    in_sim(3, 2, [](sim_cluster&) -> task<void> {
        auto made = co_await skein::actor<space_server>();
        auto a = made.call<&space_server::tell_method>();
        auto b = made.call<&space_server::tell_later>();
        const told plain = co_await a;
        const told slow = co_await b;
        CHECK(plain.actor == made.id().value().number);
        CHECK(slow.actor == plain.actor);
        CHECK(slow.number != plain.number);
        auto c = remote<&ask_own_actor>();
        const told inner = co_await c;
        CHECK(inner.actor != 0);
        CHECK(inner.parent != 0);
    });
}

TEST_CASE("calls that workers make go through their own runtime, many at a time", "[rt][context]") {
    in_sim(4, 3, [](sim_cluster& c) -> task<void> {
        std::vector<ref<std::vector<told>>> all;
        for (int i = 0; i < 50; ++i) all.push_back(remote<&family>(2));
        for (auto& r : all) {
            const auto got = co_await r;
            CHECK(got.size() == 3);
        }
        CHECK(c.driver().pending() == 0);
    });
}

TEST_CASE("cancelling a call cancels what it has called, all the way down", "[C7][rt][context]") {
    in_sim(5, 2, [](sim_cluster& c) -> task<void> {
        waiting = 0;
        auto top = remote<&wait_below>(3);
        while (waiting == 0) co_await sleep_for(1ms);
        top.cancel();
        auto asked = as_result(top);
        const auto outcome = co_await asked;
        REQUIRE_FALSE(outcome);
        CHECK(outcome.error().code() == errc::cancelled);
        for (int i = 0; i < 100 && c.running() != 0; ++i) co_await sleep_for(1ms);
        CHECK(waiting == 0);
        CHECK(c.running() == 0);
    });
}

TEST_CASE("a child whose parent has ended goes on, and ends with its own cancellation",
          "[C11][rt][context]") {
    in_sim(6, 1, [](sim_cluster& c) -> task<void> {
        waiting = 0;
        auto top = remote<&start_one>();
        const int got = co_await top;
        CHECK(got == 7);
        co_await sleep_for(1s);
        CHECK(waiting == 1);
        CHECK(c.running() == 1);
    });
    CHECK(waiting == 0);
}

TEST_CASE("a deadline goes down the tree, and what is left shrinks", "[C11][rt][context]") {
    in_sim(7, 2, [](sim_cluster& c) -> task<void> {
        auto limited = remote<&family>.with({.deadline = 10s})(2);
        const auto all = co_await limited;
        REQUIRE(all.size() == 3);
        CHECK(all[0].left_ns > 0);
        CHECK(all[0].left_ns <= std::chrono::nanoseconds(10s).count());
        CHECK(all[1].left_ns < all[0].left_ns);
        CHECK(all[2].left_ns < all[1].left_ns);

        waiting = 0;
        auto top = remote<&wait_below>.with({.deadline = 500ms})(2);
        auto asked = as_result(top);
        const auto outcome = co_await asked;
        REQUIRE_FALSE(outcome);
        CHECK(outcome.error().code() == errc::timeout);
        for (int i = 0; i < 100 && c.running() != 0; ++i) co_await sleep_for(1ms);
        CHECK(waiting == 0);
    });
}

TEST_CASE("the shorter deadline counts: a child's own, or what its parent has left",
          "[rt][context]") {
    in_sim(8, 1, [](sim_cluster& c) -> task<void> {
        const auto before = c.loop().now();
        auto own = as_result(remote<&wait_with_deadline_of>.with({.deadline = 60s})(100));
        const auto first = co_await own;
        REQUIRE_FALSE(first);
        CHECK(first.error().code() == errc::timeout);
        CHECK(c.loop().now() - before < 1s);
        CHECK(contains(first.error().what(), "within 0.1 s;"));
        auto parents = as_result(remote<&wait_with_deadline_of>.with({.deadline = 200ms})(60'000));
        const auto second = co_await parents;
        REQUIRE_FALSE(second);
        CHECK(second.error().code() == errc::timeout);
        CHECK(c.loop().now() - before < 2s);
    });
}

TEST_CASE("an actor that a worker lets go before it is there does not stay", "[rt][context]") {
    in_sim(9, 2, [](sim_cluster& c) -> task<void> {
        auto made = remote<&drop_while_making>();
        const int there = co_await made;
        CHECK(there == 0);
        for (int i = 0; i < 100 && c.actors() != 0; ++i) co_await sleep_for(1ms);
        CHECK(c.actors() == 0);
    });
}

TEST_CASE("what is left of a deadline is counted when the call leaves", "[rt][context]") {
    in_sim(10, 1, [](sim_cluster&) -> task<void> {
        auto first = remote<&later>(1, 4000); // the only core, so the next one waits at the driver
        auto second = remote<&family>.with({.deadline = 10s})(0);
        const auto told = co_await second;
        REQUIRE(told.size() == 1);
        CHECK(told[0].left_ns > 0);
        CHECK(told[0].left_ns <= std::chrono::nanoseconds(6s).count());
        const int done = co_await first;
        CHECK(done == 1);
    });
}
