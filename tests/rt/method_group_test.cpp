// SPDX-License-Identifier: Apache-2.0
#include <tests/apps/local_pool.hpp>
#include <tests/support/sim_cluster.hpp>

#include <skein/core/event.hpp>
#include <skein/rt/actor.hpp>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include <catch2/catch_test_macros.hpp>

namespace method_group_test {

using namespace skein;
using namespace std::chrono_literals;
using test::in_sim;
using test::sim_cluster;

int peak = 0; ///< of all stores: all workers of a simulated world live in this process

struct store {
    std::vector<int> started;
    int reading = 0, compacting = 0, most_compacting = 0, others = 0, most_others = 0;

    task<int> read(int i) {
        started.push_back(i);
        peak = std::max(peak, ++reading);
        co_await sleep_for(10ms);
        --reading;
        co_return i;
    }
    task<int> list(int i) { return read(i); }
    task<int> compact(int i) {
        started.push_back(i);
        most_compacting = std::max(most_compacting, ++compacting);
        co_await sleep_for(10ms);
        --compacting;
        co_return i;
    }
    /// Plain: gives how many of its group are under way.
    int reset(int i) {
        started.push_back(i);
        return compacting;
    }
    task<int> other(int i) {
        started.push_back(i);
        most_others = std::max(most_others, ++others);
        co_await sleep_for(1ms);
        --others;
        co_return i;
    }
    void mark(int i) { started.push_back(i); }
    std::vector<int> in_order() const { return started; }
    std::vector<int> peaks() const { return {most_compacting, most_others}; }
    int worker() const { return static_cast<int>(rt::runtime::current().name().pid / 100) - 1; }

    using concurrency_groups =
        method_groups<method_group<"io", 2, &store::read, &store::list>,
                      method_group<"upkeep", 1, &store::compact, &store::reset>>;
};

/// Has the groups of its base.
struct large_store : store {
    task<int> extra(int i) { return other(i); }
};

static_assert(rt::detail::group_number<&store::read, store>() == 1);
static_assert(rt::detail::group_number<&store::reset, store>() == 2);
static_assert(rt::detail::group_number<&store::other, store>() == 0);
static_assert(rt::detail::group_number<&large_store::list, large_store>() == 1);
static_assert(rt::detail::group_number<&large_store::extra, large_store>() == 0);

/// Those of `all` between from and to, as they came.
std::vector<int> between(const std::vector<int>& all, int from, int to) {
    std::vector<int> out;
    for (const int i : all)
        if (i >= from && i < to) out.push_back(i);
    return out;
}

template <class T>
task<error> failure_of(ref<T> r) {
    auto asked = as_result(std::move(r));
    auto outcome = co_await asked;
    REQUIRE_FALSE(outcome);
    co_return outcome.error();
}

TEST_CASE("a full group holds back its own methods alone, and they start in order",
          "[O13][rt][method_group]") {
    in_sim(1, 1, [](sim_cluster&) -> task<void> {
        peak = 0;
        auto s = co_await actor<store>();
        std::vector<ref<int>> all;
        for (int i = 0; i < 6; ++i)
            all.push_back(i % 2 == 0 ? s.call<&store::read>(i) : s.call<&store::list>(i));
        for (int i = 10; i < 13; ++i) all.push_back(s.call<&store::compact>(i));
        for (int i = 20; i < 23; ++i) all.push_back(s.call<&store::other>(i));
        co_await s.call<&store::mark>(30);
        auto order = co_await s.call<&store::in_order>();
        CHECK(order == std::vector<int>{0, 1, 10, 20, 21, 22, 30}); // nothing has ended so far
        for (auto& r : all) co_await r;
        order = co_await s.call<&store::in_order>();
        CHECK(between(order, 0, 10) == std::vector<int>{0, 1, 2, 3, 4, 5});
        CHECK(between(order, 10, 20) == std::vector<int>{10, 11, 12});
        CHECK(peak == 2);
        const auto peaks = co_await s.call<&store::peaks>();
        CHECK(peaks == std::vector<int>{1, 3});
    });
}

TEST_CASE("methods that are in no group are under .max_concurrency, those of groups are not",
          "[O10][O13][rt][method_group]") {
    in_sim(2, 1, [](sim_cluster&) -> task<void> {
        peak = 0;
        auto s = co_await actor<store>.with({.max_concurrency = 1})();
        std::vector<ref<int>> all;
        for (int i = 0; i < 3; ++i) {
            all.push_back(s.call<&store::other>(i));
            all.push_back(s.call<&store::read>(10 + i));
        }
        for (auto& r : all) co_await r;
        CHECK(peak == 2);
        const auto peaks = co_await s.call<&store::peaks>();
        CHECK(peaks == std::vector<int>{0, 1});
    });
}

TEST_CASE("a plain method of a group has its turn in it", "[O13][O14][rt][method_group]") {
    in_sim(3, 1, [](sim_cluster&) -> task<void> {
        auto s = co_await actor<store>();
        auto first = s.call<&store::compact>(1);
        auto waits = s.call<&store::reset>(2);
        auto never = s.call<&store::reset>(3), nor = s.call<&store::compact>(4);
        auto last = s.call<&store::compact>(5);
        co_await s.call<&store::mark>(6);
        CHECK_FALSE(first.ready());
        for (auto* r : {&never, &nor}) {
            r->cancel();
            auto asked = failure_of(*r);
            const auto why = co_await asked;
            CHECK(why.code() == errc::cancelled);
            CHECK(why.text().find("did not run: it waited for others of group \"upkeep\", which "
                                  "takes 1 at a time") != std::string::npos);
        }
        CHECK_FALSE(first.ready());
        const int under_way = co_await waits;
        CHECK(under_way == 0);
        co_await last;
        auto alone = s.call<&store::reset>(7); // no line: at once
        co_await alone;
        const auto order = co_await s.call<&store::in_order>();
        CHECK(order == std::vector<int>{1, 6, 2, 5, 7});
    });
}

TEST_CASE("calls that wait in a group end with their actor", "[M6][O14][rt][method_group]") {
    in_sim(4, 1, [](sim_cluster& c) -> task<void> {
        auto s = co_await actor<store>();
        std::vector<ref<int>> all;
        for (int i = 0; i < 3; ++i) {
            all.push_back(s.call<&store::compact>(i));
            all.push_back(s.call<&store::reset>(i));
        }
        co_await s.call<&store::mark>(6);
        kill(s);
        for (auto& r : all) {
            auto asked = failure_of(r);
            const auto why = co_await asked;
            const bool ran = &r == &all.front();
            CHECK(why.code() == (ran ? errc::cancelled : errc::not_found));
        }
        s = {};
        co_await sleep_for(100ms);
        CHECK(c.running() == 0);
        CHECK(c.actors() == 0);
    });
}

TEST_CASE("an actor that is made again has its groups", "[O1][O13][rt][method_group]") {
    in_sim(5, 2, [](sim_cluster& c) -> task<void> {
        peak = 0;
        auto s = co_await actor<store>.with({.restarts = 2, .call_retries = 3})();
        const int at = co_await s.call<&store::worker>();
        std::vector<ref<int>> all;
        for (int i = 0; i < 7; ++i) all.push_back(s.call<&store::read>(i));
        for (int i = 10; i < 13; ++i) all.push_back(s.call<&store::reset>(i));
        co_await sleep_for(15ms); // two are done, two under way
        c.kill(at);
        for (auto& r : all) co_await r;
        CHECK(peak == 2);
        const auto order = co_await s.call<&store::in_order>();
        CHECK(between(order, 0, 10) == std::vector<int>{2, 3, 4, 5, 6});
    });
}

task<int> read_all(actor_handle<store> s, int from, int count) {
    std::vector<ref<int>> all;
    for (int i = 0; i < count; ++i) all.push_back(s.call<&store::read>(from + i));
    int total = 0;
    for (auto& r : all) {
        const int got = co_await r;
        total += got;
    }
    co_return total;
}

TEST_CASE("a group counts the calls of all workers together", "[D1][O13][rt][method_group]") {
    in_sim(6, 3, [](sim_cluster&) -> task<void> {
        peak = 0;
        auto s = co_await actor<store>();
        std::vector<ref<int>> callers;
        for (int i = 0; i < 3; ++i) callers.push_back(remote<&read_all>(s, 100 * i, 5));
        auto ends = s.call<&store::other>(1000); // no matter how many wait
        co_await ends;
        for (auto& r : callers) co_await r;
        CHECK(peak == 2);
        const auto order = co_await s.call<&store::in_order>();
        for (int i = 0; i < 3; ++i)
            CHECK(std::ranges::is_sorted(between(order, 100 * i, 100 * i + 100)));
    });
}

// ---- the line itself ---------------------------------------------------------------------------

using rt::detail::start_gate;

task<void> pass(start_gate* gate, int i, event* until, std::vector<int>* order) {
    {
        start_gate::turn turn(*gate, true);
        co_await turn;
    }
    const start_gate::seat seat(gate);
    order->push_back(i);
    co_await until->wait();
}

TEST_CASE("who comes to a line stands behind those that were let in and have not started",
          "[O10][rt][method_group]") {
    in_sim(7, 1, [](sim_cluster&) -> task<void> {
        start_gate gate;
        gate.limit = 2;
        event first, rest;
        std::vector<int> order;
        scope all;
        for (int i = 0; i < 3; ++i) all.spawn(pass(&gate, i, i < 2 ? &first : &rest, &order));
        co_await yield();
        CHECK(order == std::vector<int>{0, 1});
        // Both seats are free as the fourth comes, and the third is on its way to one of them.
        first.set();
        all.spawn(pass(&gate, 3, &rest, &order));
        co_await sleep_for(1ms);
        CHECK(order == std::vector<int>{0, 1, 2, 3});
        rest.set();
        auto joined = all.join();
        co_await joined;
    });
}

// ---- real workers ------------------------------------------------------------------------------

/// Its doors open when somebody says so: nothing here takes time.
struct doors {
    event open;
    int inside = 0;
    task<int> pass(int i) {
        ++inside;
        co_await open.wait();
        co_return i;
    }
    int leave() { return inside; }
    task<int> look() { co_return inside; }
    void unlock() { open.set(); }
    using concurrency_groups = method_groups<method_group<"doors", 2, &doors::pass, &doors::leave>>;
};
task<int> pass_from_elsewhere(actor_handle<doors> d) {
    auto r = d.call<&doors::pass>(100);
    co_return co_await r;
}

TEST_CASE("worker processes keep to the groups", "[D1][O13][rt][method_group]") {
    rt_test::pool p(rt_test::options(2));
    p.run([](rt_test::pool&) -> task<void> {
        auto d = co_await actor<doors>();
        std::vector<ref<int>> all;
        for (int i = 0; i < 4; ++i) all.push_back(d.call<&doors::pass>(i));
        auto left = d.call<&doors::leave>();
        auto there = remote<&pass_from_elsewhere>.with({.cpus = 0})(d);
        all[3].cancel();
        auto asked = failure_of(all[3]);
        const auto why = co_await asked;
        CHECK(why.text().find("did not run") != std::string::npos);
        const int inside = co_await d.call<&doors::look>();
        CHECK(inside == 2);
        CHECK_FALSE(left.ready());
        co_await d.call<&doors::unlock>();
        for (int i = 0; i < 3; ++i) {
            const int got = co_await all[std::size_t(i)];
            CHECK(got == i);
        }
        const int came = co_await left;
        CHECK(came >= 3);
        const int got = co_await there;
        CHECK(got == 100);
    });
}

// ---- threads -----------------------------------------------------------------------------------

/// Plain methods that wait for each other, or for the actor's other methods: on one thread none
/// would return.
struct reader {
    std::mutex lock;
    std::condition_variable changed;
    int here = 0, done = 0;
    bool open = false;

    int meet(int i) {
        std::unique_lock held(lock);
        ++here;
        changed.notify_all();
        changed.wait(held, [&] { return here >= 2; });
        return i;
    }
    std::string block(std::string text) {
        std::unique_lock held(lock);
        ++here;
        changed.notify_all();
        changed.wait(held, [&] { return open; });
        ++done;
        return text;
    }
    void fail() { throw std::runtime_error("on a thread"); }
    bool is_elsewhere() { return loop::try_current() == nullptr; }
    const std::string& text_of(const std::string& text) { return text; }

    task<int> inside() {
        const std::lock_guard held(lock);
        co_return here;
    }
    int ended() {
        const std::lock_guard held(lock);
        return done;
    }
    void unlock() {
        const std::lock_guard held(lock);
        open = true;
        changed.notify_all();
    }
    using concurrency_groups =
        method_groups<blocking_group<"meeting", 2, &reader::meet>,
                      blocking_group<"disk", 1, &reader::block, &reader::fail,
                                     &reader::is_elsewhere, &reader::text_of>>;
};

static_assert(rt::detail::is_blocking<&reader::block, reader>());
static_assert(!rt::detail::is_blocking<&reader::ended, reader>());
static_assert(!rt::detail::is_blocking<&store::reset, store>());

TEST_CASE("plain methods of a blocking group run beside each other and beside the worker's loop",
          "[O15][rt][method_group]") {
    rt_test::pool p(rt_test::options(1));
    p.run([](rt_test::pool&) -> task<void> {
        auto r = co_await actor<reader>();
        auto a = r.call<&reader::meet>(1), b = r.call<&reader::meet>(2);
        const int one = co_await a;
        const int two = co_await b;
        CHECK(one == 1);
        CHECK(two == 2);
        // One is on its thread, two wait for it, and the actor answers meanwhile.
        std::vector<ref<std::string>> all;
        for (const char* text : {"x", "y", "z"}) all.push_back(r.call<&reader::block>(text));
        for (;;) {
            const int inside = co_await r.call<&reader::inside>();
            if (inside == 3) break;
        }
        const int ended = co_await r.call<&reader::ended>();
        CHECK(ended == 0);
        all[1].cancel();
        auto asked = failure_of(all[1]);
        const auto why = co_await asked;
        CHECK(why.code() == errc::cancelled);
        CHECK(why.text().find("did not run") != std::string::npos);
        CHECK(why.text().find("\"disk\"") != std::string::npos);
        co_await r.call<&reader::unlock>();
        const auto first = co_await all[0];
        const auto last = co_await all[2];
        CHECK(first == "x");
        CHECK(last == "z");
        const int both = co_await r.call<&reader::ended>();
        CHECK(both == 2);
        auto thrown = failure_of(r.call<&reader::fail>());
        const auto what = co_await thrown;
        CHECK(what.code() == errc::remote_exception);
        CHECK(what.text().find("on a thread") != std::string::npos);
        const bool elsewhere = co_await r.call<&reader::is_elsewhere>();
        CHECK(elsewhere);
        const auto text = co_await r.call<&reader::text_of>("copied");
        CHECK(text == "copied");
    });
}

/// Keeps its state over a restart.
struct space_server {
    int n = 0;
    int add(int k) { return n += k; }
    int worker() const { return static_cast<int>(rt::runtime::current().name().pid / 100) - 1; }
    int save() const { return n; }
    void load(int saved) { n = saved; }
    using concurrency_groups = method_groups<blocking_group<"adding", 1, &space_server::add>>;
};

TEST_CASE("what a method on a thread has changed is saved before its reply",
          "[O2][O15][rt][method_group]") {
    in_sim(9, 2, [](sim_cluster& c) -> task<void> {
        auto k = co_await actor<space_server>.with({.restarts = 1})();
        std::vector<ref<int>> all;
        for (int i = 0; i < 5; ++i) all.push_back(k.call<&space_server::add>(1));
        for (int i = 0; i < 5; ++i) {
            const int got = co_await all[std::size_t(i)];
            CHECK(got == i + 1); // in order: it has one thread
        }
        const int at = co_await k.call<&space_server::worker>();
        c.kill(at);
        const int after = co_await k.call<&space_server::add>(1);
        CHECK(after == 6);
    });
}

} // namespace method_group_test
