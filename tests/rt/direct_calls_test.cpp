// SPDX-License-Identifier: Apache-2.0
// Workers call the actors of each other, and their own, without their driver.
#include <tests/apps/apps.hpp>
#include <tests/support/sim_cluster.hpp>
#include <tests/support/temporary_folder.hpp>

#include <skein/core/scope.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/proc/children.hpp>
#include <skein/program/local_workers.hpp>
#include <skein/rt/actor.hpp>
#include <skein/rt/detail/direct_message.hpp>
#include <skein/rt/worker_link.hpp>
#include <skein/wire/encode.hpp>

#include <fstream>
#include <string>
#include <vector>

#include <catch2/catch_test_macros.hpp>

namespace direct_calls_test {

using namespace skein;
using namespace std::chrono_literals;
using rt_test::counter;
using test::in_sim;
using test::sim_cluster;

/// Calls a counter, from wherever it lives.
struct caller {
    actor_handle<counter> kept;

    task<int> add(actor_handle<counter> to, int times) {
        int last = 0;
        for (int i = 0; i < times; ++i) {
            auto r = to.call<&counter::add>(1);
            last = co_await r;
        }
        co_return last;
    }
    /// As errors say it.
    task<std::string> failure(actor_handle<counter> to, int ms) {
        auto r = to.call<&counter::add_later>(1, ms);
        auto asked = as_result(r);
        const auto got = co_await asked;
        co_return got ? std::string("none")
                      : std::string(to_string(got.error().code())) + ": " + got.error().text();
    }
    /// Calls it, kills it, and says what a call after that fails with.
    task<std::string> kill_and_call(actor_handle<counter> to) {
        auto before = to.call<&counter::add>(1);
        co_await before;
        skein::kill(to);
        auto after = failure(to, 0);
        co_return co_await after;
    }
    void keep(actor_handle<counter> it) { kept = std::move(it); }
    task<void> keep_later(actor_handle<counter> it, int ms) {
        kept = std::move(it);
        co_await sleep_for(std::chrono::milliseconds(ms));
    }
    task<int> add_to_kept() {
        auto r = kept.call<&counter::add>(1);
        co_return co_await r;
    }
    actor_handle<counter> give() { return kept; }
    void forget() { kept = {}; }
    std::int64_t pid() { return rt::runtime::current().name().pid; }
};

struct holder {
    /// Makes a counter of its own and leaves it with another one.
    task<void> place(actor_handle<caller> with) {
        auto made = skein::actor<counter>(40);
        auto c = co_await made;
        auto kept = with.call<&caller::keep>(c);
        co_await kept;
    }
    /// The same, and meanwhile another call of it ends, 500 ms later.
    task<void> place_slowly(actor_handle<caller> with) {
        auto link = with.call<&caller::pid>();
        co_await link;
        auto made = skein::actor<counter>(40);
        auto c = co_await made;
        auto slow = with.call<&caller::keep_later>(c, 1500);
        co_await sleep_for(500ms);
        auto quick = with.call<&caller::pid>();
        co_await slow;
        c = {};
        co_await quick;
    }
    /// Asks the other one for what it keeps, has it forget that, and calls it.
    task<int> fetch(actor_handle<caller> from) {
        auto r = from.call<&caller::give>();
        auto c = co_await r;
        auto forgotten = from.call<&caller::forget>();
        co_await forgotten;
        auto added = c.call<&counter::add>(2);
        co_return co_await added;
    }
};

/// Two actors on two workers.
struct pair_of_actors {
    actor_handle<counter> to;
    actor_handle<caller> from;
};
task<pair_of_actors> make_pair_of_actors() {
    pair_of_actors out;
    auto first = skein::actor<counter>(0);
    out.to = co_await first;
    auto second = skein::actor<caller>();
    out.from = co_await second;
    co_return out;
}
/// The worker (from 0) on which the called one of two actors on two workers lives.
task<int> worker_of_called(actor_handle<caller> other) {
    auto r = other.call<&caller::pid>();
    const auto pid = co_await r;
    co_return pid / 100 == 1 ? 1 : 0;
}

TEST_CASE("the driver knows nothing of calls between workers", "[D1][rt][direct]") {
    for (const bool direct : {true, false}) {
        sim::loop loop(1);
        sim::network network(loop, sim::faults{});
        sim_cluster cluster(loop, network, 2);
        if (!direct) cluster.call_through_driver();
        loop.run(cluster.run([&](sim_cluster& c) -> task<void> {
            auto making = make_pair_of_actors();
            const auto both = co_await making;
            const auto before = c.driver().stats().submitted;
            auto r = both.from.call<&caller::add>(both.to, 100);
            const int got = co_await r;
            CHECK(got == 100);
            CHECK(c.driver().stats().submitted - before == (direct ? 1 : 101));
        }));
    }
}

TEST_CASE("an actor of the same worker is called without the driver, too", "[D1][rt][direct]") {
    in_sim(2, 1, [](sim_cluster& c) -> task<void> {
        auto making = make_pair_of_actors();
        const auto both = co_await making;
        const auto before = c.driver().stats().submitted;
        auto r = both.from.call<&caller::add>(both.to, 100);
        const int got = co_await r;
        CHECK(got == 100);
        CHECK(c.driver().stats().submitted - before == 1);
    });
}

TEST_CASE("the calls of an actor that is made again go through the driver", "[D2][rt][direct]") {
    in_sim(3, 2, [](sim_cluster& c) -> task<void> {
        auto making = skein::actor<counter>.with({.restarts = 1})(0);
        const auto to = co_await making;
        auto second = skein::actor<caller>();
        const auto from = co_await second;
        const auto before = c.driver().stats().submitted;
        auto r = from.call<&caller::add>(to, 10);
        const int got = co_await r;
        CHECK(got == 10);
        CHECK(c.driver().stats().submitted - before == 11);
    });
}

TEST_CASE("a direct call whose worker dies fails with what the driver knows of that",
          "[D5][rt][direct]") {
    in_sim(4, 2, [](sim_cluster& c) -> task<void> {
        auto making = make_pair_of_actors();
        const auto both = co_await making;
        auto r = both.from.call<&caller::failure>(both.to, 60'000);
        auto where = worker_of_called(both.from);
        const int at = co_await where;
        co_await sleep_for(1s);
        c.kill(at);
        const auto said = co_await r;
        INFO(said);
        CHECK(said.starts_with("worker_lost: "));
        CHECK(said.find("had started: worker-" + std::to_string(at + 1)) != std::string::npos);
        CHECK(said.find("was lost: ") != std::string::npos);
        auto again = both.from.call<&caller::failure>(both.to, 0);
        const auto later = co_await again;
        INFO(later);
        CHECK(later.find("did not run") != std::string::npos);
    });
}

TEST_CASE("who kills an actor calls it no more", "[D4][rt][direct]") {
    in_sim(10, 2, [](sim_cluster&) -> task<void> {
        auto making = make_pair_of_actors();
        const auto both = co_await making;
        auto r = both.from.call<&caller::kill_and_call>(both.to);
        const auto said = co_await r;
        INFO(said);
        CHECK(said.starts_with("not_found: "));
        CHECK(said.find("was killed") != std::string::npos);
    });
}

TEST_CASE("what a worker has called ends with it", "[D7][rt][direct]") {
    in_sim(11, 2, [](sim_cluster& c) -> task<void> {
        auto making = make_pair_of_actors();
        const auto both = co_await making;
        auto r = both.from.call<&caller::failure>(both.to, 60'000);
        auto where = worker_of_called(both.from);
        const int at = co_await where;
        co_await sleep_for(1s);
        c.kill(1 - at);
        auto asked = as_result(r);
        const auto lost = co_await asked;
        CHECK(!lost);
        co_await sleep_for(120s);
        auto left = both.to.call<&counter::get>();
        const int got = co_await left;
        CHECK(got == 0);
    });
}

TEST_CASE("a link between workers that breaks costs no call", "[D6][rt][direct]") {
    in_sim(12, 2, [](sim_cluster& c) -> task<void> {
        auto making = make_pair_of_actors();
        const auto both = co_await making;
        const auto before = c.driver().stats().submitted;
        auto slow = both.from.call<&caller::failure>(both.to, 20'000);
        auto many = both.from.call<&caller::add>(both.to, 20'000);
        for (int i = 0; i < 100; ++i) {
            co_await sleep_for(50ms);
            c.network().reset(sim_cluster::host_of(0), sim_cluster::host_of(1));
        }
        c.network().partition(sim_cluster::host_of(0), sim_cluster::host_of(1));
        co_await sleep_for(10s);
        c.network().heal_all();
        const auto said = co_await slow;
        CHECK(said == "none");
        const int got = co_await many;
        CHECK(got >= 20'000);
        CHECK(c.driver().stats().submitted - before == 2); // and all of it went directly
    });
}

TEST_CASE(
    "calls over a link that stays broken may have run; those behind them go through the driver",
    "[D6][rt][direct]") {
    in_sim(5, 2, [](sim_cluster& c) -> task<void> {
        auto making = make_pair_of_actors();
        const auto both = co_await making;
        auto r = both.from.call<&caller::failure>(both.to, 60'000);
        co_await sleep_for(1s);
        c.network().partition(sim_cluster::host_of(0), sim_cluster::host_of(1));
        c.network().reset(sim_cluster::host_of(0), sim_cluster::host_of(1));
        const auto said = co_await r;
        INFO(said);
        CHECK(said.starts_with("reset: "));
        CHECK(said.find("had started: the link to worker-") != std::string::npos);
        CHECK(said.find("it lives") != std::string::npos);
        const auto before = c.driver().stats().submitted;
        auto more = both.from.call<&caller::add>(both.to, 10);
        const int got = co_await more;
        CHECK(got == 10);
        CHECK(c.driver().stats().submitted - before == 11);
    });
}

TEST_CASE("handles in direct calls and their results keep their actors", "[D3][rt][direct]") {
    in_sim(6, 2, [](sim_cluster& c) -> task<void> {
        auto first = skein::actor<caller>();
        const auto space_server = co_await first;
        auto second = skein::actor<holder>();
        const auto maker = co_await second;
        auto placed = maker.call<&holder::place>(space_server);
        co_await placed;
        co_await sleep_for(1s);
        CHECK(c.actors() == 3);
        auto fetched = maker.call<&holder::fetch>(space_server);
        const int got = co_await fetched;
        CHECK(got == 42);
        co_await sleep_for(1s);
        CHECK(c.actors() == 2);
    });
}

// What the driver was told ahead of one reply, others that had begun by then wait for as well.
TEST_CASE("no reply overtakes the news of who holds its handles", "[D3][rt][direct]") {
    in_sim(14, 2, [](sim_cluster& c) -> task<void> {
        auto first = skein::actor<caller>();
        const auto space_server = co_await first;
        auto which = space_server.call<&caller::pid>();
        const auto pid = co_await which;
        auto second = skein::actor<holder>();
        const auto maker = co_await second;
        auto placed = maker.call<&holder::place_slowly>(space_server);
        co_await sleep_for(300ms);
        CHECK(c.actors() == 3);
        c.network().partition(sim_cluster::host_of(pid / 100 == 1 ? 0 : 1), "driver");
        co_await sleep_for(2s);
        c.network().heal_all();
        co_await placed;
        co_await sleep_for(1s);
        auto added = space_server.call<&caller::add_to_kept>();
        const int got = co_await added;
        CHECK(got == 41);
    });
}

struct foreman {
    task<int> have_done(int x) {
        auto r = remote<&rt_test::twice>(x);
        co_return co_await r;
    }
};
task<int> asks(actor_handle<foreman> who) {
    auto r = who.call<&foreman::have_done>(21);
    co_return co_await r;
}

TEST_CASE("a task that waits for a direct call gives its core back", "[D8][rt][direct]") {
    in_sim(7, 2, [](sim_cluster&) -> task<void> {
        auto making = skein::actor<foreman>();
        const auto who = co_await making;
        // One per core: the tasks that the actor makes need the cores of those that wait for it.
        std::vector<ref<int>> all;
        for (int i = 0; i < 8; ++i) all.push_back(remote<&asks>(who));
        for (auto& r : all) {
            auto limited = with_timeout(r, 60s);
            const int got = co_await limited;
            CHECK(got == 42);
        }
    });
}

struct leaver {
    void leave() { leave_actor(); }
};
struct succession {
    /// The name is free when the call that ended the actor has been answered.
    task<bool> take_over(actor_handle<leaver> from) {
        auto left = from.call<&leaver::leave>();
        co_await left;
        auto made = as_result(skein::actor<leaver>.with({.name = "throne"})());
        const auto got = co_await made;
        co_return got.has_value();
    }
};

TEST_CASE("who is answered directly finds the driver informed", "[D3][rt][direct]") {
    in_sim(8, 2, [](sim_cluster&) -> task<void> {
        for (int i = 0; i < 20; ++i) {
            auto first = skein::actor<leaver>.with({.name = "throne"})();
            auto old = co_await first;
            auto second = skein::actor<succession>();
            auto heir = co_await second;
            auto r = heir.call<&succession::take_over>(old);
            const bool got = co_await r;
            CHECK(got);
            old = {};
            heir = {};
            co_await sleep_for(100ms);
        }
    });
}

TEST_CASE("over a direct link nothing but calls of actors is believed", "[rt][direct]") {
    in_sim(9, 2, [](sim_cluster& c) -> task<void> {
        auto making = make_pair_of_actors();
        const auto both = co_await making;
        const auto hello = c.process_of(0).hello();
        wire::writer actor;
        actor.fixed(both.to.id().value().incarnation);
        actor.fixed(both.to.id().value().number);
        for (const auto kind :
             {rt::detail::message_kill, rt::detail::message_drop, rt::detail::message_reply,
              rt::detail::message_cut, rt::detail::message_there, rt::detail::message_call}) {
            rt::runtime_options who;
            who.name = "stranger";
            who.incarnation = 1000U + kind;
            rt::runtime stranger(who);
            rt::worker_link how{c.secret()};
            how.start = 5s;
            auto options = rt::worker_connection(stranger, how);
            options.self.purpose = rt::detail::direct_purpose;
            options.self.extra =
                wire::encode(rt::detail::direct_hello{who.incarnation, hello.incarnation, 1});
            const auto to = net::address::parse(hello.far_address).value();
            auto connecting = net::link::connect(c.network().host("w1"), to, std::move(options));
            auto wire = co_await connecting;
            wire->send(kind, 0, 1, actor.bytes(), {});
            auto next = as_result(wire->receive());
            const auto came = co_await next;
            CHECK(!came.has_value());
        }
        auto r = both.from.call<&caller::add>(both.to, 3);
        const int got = co_await r;
        CHECK(got == 3);
    });
}

// ---- processes ----------------------------------------------------------------------------------

struct bell {
    int ring(std::string path) {
        std::ofstream(path) << "rung";
        return 1;
    }
    long pid() { return ::getpid(); }
};
struct ringer {
    /// Its own way to the bell is there before the driver stands still.
    task<int> ring(actor_handle<bell> at, std::string go, std::string done) {
        rt_test::wait_for_file(go);
        auto r = at.call<&bell::ring>(done);
        co_return co_await r;
    }
    task<long> pid_of(actor_handle<bell> at) {
        auto r = at.call<&bell::pid>();
        co_return co_await r;
    }
    long pid() { return ::getpid(); }
};

TEST_CASE("workers call each other while their driver computes", "[D1][rt][direct]") {
    const test::temporary_folder folder;
    const auto go = folder / "go", done = folder / "done";
    net::real_loop loop;
    net::real_network network{loop};
    proc::local_children children{loop};
    rt::runtime driver{rt::runtime_options{}};
    program::local_workers_options how;
    how.count = 2;
    how.program = "rt_tests";
    SECTION("over Unix sockets") { how.over_tcp = false; }
    SECTION("of workers that reach their driver over TCP") { how.over_tcp = true; }
    program::local_workers workers(loop, network, children, driver, how);
    const auto app = [&]() -> task<void> {
        auto first = skein::actor<bell>();
        const auto at = co_await first;
        auto second = skein::actor<ringer>();
        const auto by = co_await second;
        auto there = by.call<&ringer::pid_of>(at);
        const long bell_pid = co_await there;
        auto own = by.call<&ringer::pid>();
        const long ringer_pid = co_await own;
        CHECK(bell_pid != ringer_pid);
        auto r = by.call<&ringer::ring>(at, go, done);
        auto flushed = at.call<&bell::pid>(); // the call has left, too
        (void)co_await flushed;
        std::ofstream(go) << "go";
        rt_test::wait_for_file(done); // nothing else happens in this process
        const int got = co_await r;
        CHECK(got == 1);
    };
    const auto everything = [&]() -> task<void> {
        scope services;
        services.spawn(workers.serve());
        driver.ask(&workers);
        auto work = as_result(app());
        const auto outcome = co_await work;
        workers.stop();
        auto bye = driver.close();
        co_await bye;
        services.cancel();
        auto joined = as_result(services.join());
        (void)co_await joined;
        if (!outcome) throw outcome.error();
    };
    const rt::runtime::use current(driver);
    loop.run(everything());
}

} // namespace direct_calls_test
