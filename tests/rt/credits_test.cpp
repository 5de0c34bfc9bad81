// SPDX-License-Identifier: Apache-2.0
// How much is sent ahead of what has begun: rt/detail/runtime_credits.ipp.
#include <tests/apps/apps.hpp>
#include <tests/support/sim_cluster.hpp>

#include <skein/core/event.hpp>
#include <skein/core/scope.hpp>
#include <skein/rt/actor.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include <catch2/catch_test_macros.hpp>

namespace credits_test {

using namespace skein;
using namespace std::chrono_literals;
using rt_test::counter;
using rt_test::journal;
using rt_test::later;
using test::in_sim;
using test::sim_cluster;

/// Calls that wait until a later one lets them go.
struct barrier {
    event opened;
    std::vector<int> order; ///< of those that have begun
    task<int> pass(int i) {
        order.push_back(i);
        co_await opened.wait();
        co_return i;
    }
    task<int> pass_in_group(int i) {
        order.push_back(i);
        co_await opened.wait();
        co_return i;
    }
    int take_turn(int i) {
        order.push_back(i);
        return i;
    }
    void open() { opened.set(); }
    std::vector<int> begun() const { return order; }
    int size_of(std::string text) { return static_cast<int>(text.size()); }
    using concurrency_groups =
        method_groups<method_group<"few", 2, &barrier::pass_in_group, &barrier::take_turn>>;
};

std::string failure_of(const ref<int>& r) {
    return r.ready() && r.state()->failed() ? r.state()->why().what.text() : std::string();
}
bool is_over(const ref<int>& r, errc code, std::string_view how_far) {
    return r.ready() && r.state()->failed() && r.state()->why().what.code() == code &&
           rt_test::contains(failure_of(r), how_far);
}

/// From a worker: many calls wait for one that comes after them.
task<int> pass_all(actor_handle<barrier> at, int count) {
    std::vector<ref<int>> refs;
    for (int i = 0; i < count; ++i) refs.push_back(at.call<&barrier::pass>(i));
    auto opened = at.call<&barrier::open>();
    co_await opened;
    int sum = 0;
    for (auto& r : refs) sum += co_await r;
    co_return sum;
}
struct passer {
    task<int> pass(actor_handle<barrier> at, int count) {
        auto all = pass_all(at, count);
        co_return co_await all;
    }
};

/// In the barrier's own process: two wait in its group, and plain ones behind them.
struct crowd {
    task<int> gather(actor_handle<barrier> at, int count) {
        auto first = at.call<&barrier::size_of>(std::string("known")); // where it is
        (void)co_await first;
        std::vector<ref<int>> refs;
        for (int i = 0; i < count; ++i)
            refs.push_back(i < 2 ? at.call<&barrier::pass_in_group>(i)
                                 : at.call<&barrier::take_turn>(i));
        auto opened = at.call<&barrier::open>();
        co_await opened;
        int sum = 0;
        for (auto& r : refs) sum += co_await r;
        co_return sum;
    }
};

task<int> deeper(int depth) {
    if (depth == 0) co_return 1;
    auto a = remote<&deeper>.with({.cpus = 0})(depth - 1);
    auto b = remote<&deeper>.with({.cpus = 0})(depth - 1);
    const int left = co_await a;
    co_return left + co_await b;
}

task<void> note_end(bool* ended, actor_handle<counter> of) {
    auto waiting = room(of);
    co_await waiting;
    *ended = true;
}

task<void> call_and_leave(std::vector<ref<int>>* refs) {
    auto b = co_await actor<barrier>();
    for (int i = 0; i < 20; ++i) refs->push_back(b.call<&barrier::pass_in_group>(i));
    for (int i = 0; i < 20; ++i) refs->push_back(b.call<&barrier::take_turn>(i));
    co_await sleep_for(100ms);
}

} // namespace credits_test

using namespace credits_test;

TEST_CASE("thousands of calls that wait for one that comes later do not keep it out",
          "[B2][rt][credits]") {
    in_sim(1, 1, [](sim_cluster&) -> task<void> {
        auto b = co_await actor<barrier>();
        std::vector<ref<int>> refs;
        for (int i = 0; i < 5000; ++i) refs.push_back(b.call<&barrier::pass>(i));
        auto opened = b.call<&barrier::open>();
        co_await opened;
        for (int i = 0; i < 5000; ++i) {
            const int got = co_await refs[static_cast<std::size_t>(i)];
            if (got != i) FAIL("a call got the value of another");
        }
        auto asked = b.call<&barrier::begun>();
        const auto order = co_await asked;
        CHECK(order.size() == 5000);
        CHECK(std::is_sorted(order.begin(), order.end()));
    });
}

TEST_CASE("so it is from workers, directly, through the driver, and within one process",
          "[B2][B6][rt][credits]") {
    for (const bool directly : {true, false}) {
        sim::loop loop(3);
        sim::network network(loop, sim::faults{});
        sim_cluster cluster(loop, network, 2, 2, 4);
        if (!directly) cluster.call_through_driver();
        loop.run(cluster.run([](sim_cluster&) -> task<void> {
            auto b = co_await actor<barrier>();
            auto other = co_await actor<passer>();
            auto near = co_await actor<passer>(); // on the same worker as the first
            auto a = other.call<&passer::pass>(b, 100);
            const int from_other = co_await a;
            CHECK(from_other == 4950);
            auto c = near.call<&passer::pass>(b, 100);
            const int from_near = co_await c;
            CHECK(from_near == 4950);
            auto lasting = co_await actor<barrier>.with({.restarts = 1})();
            auto d = other.call<&passer::pass>(lasting, 100); // by way of the driver
            const int passed_on = co_await d;
            CHECK(passed_on == 4950);
        }));
    }
}

TEST_CASE("calls of a full group do not keep others out, however many there are",
          "[B4][O13][M2][rt][credits]") {
    in_sim(
        1, 1,
        [](sim_cluster& c) -> task<void> {
            auto b = co_await actor<barrier>();
            std::vector<ref<int>> refs;
            for (int i = 0; i < 100; ++i)
                refs.push_back(i % 10 == 9 ? b.call<&barrier::take_turn>(i)
                                           : b.call<&barrier::pass_in_group>(i));
            auto other = b.call<&barrier::size_of>(std::string("four"));
            const int size = co_await other;
            CHECK(size == 4);
            CHECK(c.process_of(0).running() <= 2 + 2 * 4 + 1); // of the group, the rest is here
            refs[50].cancel();
            CHECK(is_over(refs[50], errc::cancelled, "did not run"));
            auto opened = b.call<&barrier::open>();
            co_await opened;
            for (std::size_t i = 0; i < refs.size(); ++i) {
                if (i == 50) continue;
                const int got = co_await refs[i];
                if (got != static_cast<int>(i)) FAIL("a call got the value of another");
            }
            auto asked = b.call<&barrier::begun>();
            const auto order = co_await asked;
            CHECK(order.size() == 99);
            CHECK(std::is_sorted(order.begin(), order.end()));
        },
        1, true, 4);
}

TEST_CASE("plain calls of a full group do not keep others out within one process, either",
          "[B4][D9][O13][rt][credits]") {
    in_sim(
        1, 1,
        [](sim_cluster&) -> task<void> {
            auto b = co_await actor<barrier>();
            auto c = co_await actor<crowd>();
            auto asked = as_result(with_timeout(as_task(c.call<&crowd::gather>(b, 100)), 60s));
            const auto sum = co_await asked;
            REQUIRE(sum);
            CHECK(*sum == 4950);
        },
        1, true, 4);
}

TEST_CASE("a worker holds few of the calls that wait for their turn",
          "[B1][B4][O10][rt][credits]") {
    in_sim(1, 1, [](sim_cluster& c) -> task<void> {
        auto b = co_await actor<barrier>.with({.max_concurrency = 1})();
        std::vector<ref<int>> refs;
        for (int i = 0; i < 20000; ++i) refs.push_back(b.call<&barrier::pass>(i));
        co_await sleep_for(1s);
        CHECK(c.process_of(0).running() <= 2 * limit::credit_calls + 2);
        CHECK(c.driver().pending() == 20000);
        skein::kill(b);
        CHECK(is_over(refs.back(), errc::not_found, "did not run"));
        for (auto& r : refs) {
            auto asked = as_result(r);
            const auto got = co_await asked;
            if (got) FAIL("a call of an actor that was killed gave a value");
        }
    });
}

TEST_CASE("each call that has waited has its own arguments, whatever went before it",
          "[B2][B4][rt][credits]") {
    for (const std::uint32_t credit : {4U, 1024U}) {
        in_sim(
            1, 1,
            [](sim_cluster&) -> task<void> {
                auto b = co_await actor<barrier>();
                std::vector<ref<int>> refs;
                const auto length = [](std::size_t i) { return i % 7 == 0 ? 500 + i : i % 61; };
                for (std::size_t i = 0; i < 4000;
                     ++i) // small ones and large ones, and a full group
                    refs.push_back(
                        i % 500 == 3 ? b.call<&barrier::pass_in_group>(static_cast<int>(length(i)))
                                     : b.call<&barrier::size_of>(std::string(length(i), 'x')));
                const auto is_cancelled = [](std::size_t i) { return i % 3 != 0 && i % 500 != 3; };
                for (std::size_t i = 1100; i < refs.size(); ++i)
                    if (is_cancelled(i)) refs[i].cancel();
                CHECK(is_over(refs[3998], errc::cancelled, "did not run"));
                auto opened = b.call<&barrier::open>();
                co_await opened;
                for (std::size_t i = 0; i < refs.size(); ++i) {
                    if (i >= 1100 && is_cancelled(i)) continue;
                    const int got = co_await refs[i];
                    if (got != static_cast<int>(length(i))) FAIL("a call had arguments of another");
                }
            },
            1, true, credit);
    }
}

TEST_CASE("an actor that begins nothing takes no credit of another on its worker",
          "[B3][rt][credits]") {
    in_sim(
        1, 1,
        [](sim_cluster&) -> task<void> {
            auto stuck = co_await actor<barrier>.with({.max_concurrency = 1})();
            auto other = co_await actor<counter>();
            std::vector<ref<int>> waiting;
            for (int i = 0; i < 50; ++i) waiting.push_back(stuck.call<&barrier::pass>(i));
            for (int i = 0; i < 50; ++i) {
                auto r = other.call<&counter::add>(1);
                const int got = co_await r;
                CHECK(got == i + 1);
            }
            CHECK_FALSE(waiting.front().ready());
            skein::kill(stuck);
        },
        1, true, 4);
}

TEST_CASE("what had no credit when the worker died did not run", "[B5][F5][rt][credits]") {
    // No memory is shared: of what was sent nobody knows whether it had begun.
    in_sim(
        1, 1,
        [](sim_cluster& c) -> task<void> {
            auto a = co_await actor<counter>();
            std::vector<ref<int>> refs;
            for (int i = 0; i < 50; ++i) refs.push_back(a.call<&counter::add>(1));
            c.kill(0);
            int maybe = 0, not_run = 0;
            for (auto& r : refs) {
                auto asked = as_result(r);
                (void)co_await asked;
                maybe += is_over(r, errc::worker_lost, "may have run") ? 1 : 0;
                not_run += is_over(r, errc::worker_lost, "did not run") ? 1 : 0;
            }
            CHECK(maybe == 10);
            CHECK(not_run == 40);
        },
        1, false, 10);
}

TEST_CASE("what had no credit goes on, in order, at the actor that is made again",
          "[B5][O4][rt][credits]") {
    in_sim(
        1, 2,
        [](sim_cluster& c) -> task<void> {
            auto a = co_await actor<barrier>.with({.restarts = 1})();
            std::vector<ref<int>> refs;
            for (int i = 0; i < 50; ++i) refs.push_back(a.call<&barrier::take_turn>(i));
            c.kill(0);
            c.kill(1);
            int lost = 0;
            for (auto& r : refs) {
                auto asked = as_result(r);
                const auto got = co_await asked;
                if (!got) ++lost;
            }
            CHECK(lost == 10); // those that were sent, and have no .call_retries
            auto asked = a.call<&barrier::begun>();
            const auto order = co_await asked;
            CHECK(order.size() == 40);
            CHECK(std::is_sorted(order.begin(), order.end()));
        },
        1, false, 10);
}

TEST_CASE("a call that waits for credit is cancelled at once", "[B5][C7][rt][credits]") {
    in_sim(
        1, 1,
        [](sim_cluster&) -> task<void> {
            auto a = co_await actor<counter>();
            std::vector<ref<int>> refs;
            for (int i = 0; i < 400; ++i) refs.push_back(a.call<&counter::add>(1));
            for (std::size_t i = 10; i < 399; ++i) {
                refs[i].cancel();
                if (!is_over(refs[i], errc::cancelled, "did not run"))
                    FAIL("a call that waits here is not cancelled at once");
            }
            refs[0].cancel();
            CHECK_FALSE(refs[0].ready()); // it may have begun
            const int last = co_await refs[399];
            CHECK(last == 11 - (refs[0].state()->failed() ? 1 : 0));
        },
        1, false, 10);
}

TEST_CASE("a call that was taken back gives its credit back when its place has come",
          "[B5][C7][rt][credits]") {
    in_sim(
        1, 1,
        [](sim_cluster&) -> task<void> {
            auto a = co_await actor<counter>();
            std::vector<ref<int>> refs;
            for (int i = 0; i < 40; ++i) refs.push_back(a.call<&counter::add>(1));
            for (std::size_t i = 0; i < 30; ++i) refs[i].cancel();
            for (std::size_t i = 0; i < 30; ++i)
                CHECK(is_over(refs[i], errc::cancelled, "did not run"));
            const int last = co_await refs.back();
            CHECK(last == 10);
            std::vector<ref<int>> tasks;
            for (int i = 0; i < 40; ++i) tasks.push_back(remote<&later>.with({.cpus = 0})(i, 1));
            for (std::size_t i = 0; i < 30; ++i) tasks[i].cancel();
            const int value = co_await tasks.back();
            CHECK(value == 39);
        },
        1, true, 4);
}

TEST_CASE("tasks without cores wait for credit, not for each other's end",
          "[B7][W3][rt][credits]") {
    in_sim(
        1, 2,
        [](sim_cluster& c) -> task<void> {
            const auto began = c.loop().now();
            std::vector<ref<int>> refs;
            for (int i = 0; i < 200; ++i) refs.push_back(remote<&later>.with({.cpus = 0})(i, 1000));
            for (int i = 0; i < 200; ++i) {
                const int got = co_await refs[static_cast<std::size_t>(i)];
                CHECK(got == i);
            }
            CHECK(c.loop().now() - began < 1500ms);
            auto tree = remote<&deeper>.with({.cpus = 0})(6);
            const int leaves = co_await tree;
            CHECK(leaves == 64);
        },
        1, true, 2);
}

TEST_CASE("tasks without cores that were not sent are no attempt of theirs",
          "[B7][F2][rt][credits]") {
    in_sim(
        1, 1,
        [](sim_cluster& c) -> task<void> {
            auto first = remote<&later>(1, 1);
            (void)co_await first; // the worker is there
            std::vector<ref<int>> refs;
            for (int i = 0; i < 20; ++i)
                refs.push_back(remote<&later>.with({.cpus = 0, .retries = 0})(i, 5));
            c.kill(0);
            int lost = 0;
            for (auto& r : refs) {
                auto asked = as_result(r);
                const auto got = co_await asked;
                if (!got) ++lost;
            }
            CHECK(lost == 4);
        },
        1, false, 4);
}

TEST_CASE("credit counts bytes, too", "[B1][rt][credits]") {
    in_sim(
        1, 1,
        [](sim_cluster& c) -> task<void> {
            auto b = co_await actor<barrier>();
            std::vector<ref<int>> refs;
            for (int i = 0; i < 30; ++i)
                refs.push_back(b.call<&barrier::size_of>(std::string(300, 'x')));
            refs.push_back(b.call<&barrier::size_of>(std::string(100000, 'x')));
            for (auto& r : refs) (void)co_await r;
            refs.clear();
            for (int i = 0; i < 30; ++i)
                refs.push_back(b.call<&barrier::size_of>(std::string(300, 'x')));
            c.kill(0);
            int maybe = 0;
            for (auto& r : refs) {
                auto asked = as_result(r);
                (void)co_await asked;
                maybe += is_over(r, errc::worker_lost, "may have run") ? 1 : 0;
            }
            CHECK(maybe == 3); // of 348 bytes each: the third one begins below 1,000 bytes
        },
        1, false, 1000, 1000);
}

TEST_CASE("room() lets a producer go on as fast as its calls begin", "[B8][rt][credits]") {
    in_sim(
        1, 1,
        [](sim_cluster&) -> task<void> {
            auto j = co_await actor<journal>();
            std::size_t most = 0;
            for (int i = 0; i < 500; ++i) {
                auto free = room(j);
                co_await free;
                (void)j.call<&journal::note>(i);
                most = std::max(most, j.pending());
            }
            CHECK(most == 8);
            auto asked = j.call<&journal::all>();
            const auto all = co_await asked;
            CHECK(all.size() == 500);
            CHECK(std::is_sorted(all.begin(), all.end()));
        },
        1, true, 8);
}

TEST_CASE("who waits for room can be cancelled, and is told of the actor's end",
          "[B8][rt][credits]") {
    in_sim(
        1, 1,
        [](sim_cluster& c) -> task<void> {
            auto a = co_await actor<counter>();
            std::vector<ref<int>> refs;
            for (int i = 0; i < 4; ++i) refs.push_back(a.call<&counter::add>(1));
            bool first = false, second = false;
            scope one, two;
            one.spawn(note_end(&first, a));
            two.spawn(note_end(&second, a));
            co_await yield();
            one.cancel();
            auto left = as_result(one.join());
            (void)co_await left;
            CHECK_FALSE(first);
            CHECK_FALSE(second);
            c.kill(0);
            auto joined = two.join();
            co_await joined;
            CHECK(second);
            CHECK(a.has_ended());
        },
        1, false, 4);
}

TEST_CASE("what waits for credit when the program ends fails with closed",
          "[B5][P8][rt][credits]") {
    std::vector<ref<int>> refs;
    sim::loop loop(1);
    sim::network network(loop, sim::faults{});
    {
        sim_cluster cluster(loop, network, 1, 1, 4);
        const auto body = [&refs](sim_cluster&) { return call_and_leave(&refs); };
        loop.run(cluster.run(body));
        for (const auto& r : refs) CHECK(is_over(r, errc::closed, "the program ended"));
        CHECK(cluster.driver().pending() == 0);
        refs.clear();
    }
    CHECK(network.open_streams() == 0);
}
