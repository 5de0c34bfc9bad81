// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>

#include <skein/cluster/detail/drains.hpp>
#include <skein/cluster/detail/room_elsewhere.hpp>
#include <skein/cluster/leased_ranks.hpp>
#include <skein/core/timeout.hpp>
#include <skein/sim/disk.hpp>
#include <skein/spmd/environment.hpp>
#include <skein/spmd/meeting.hpp>
#include <skein/wire/encode.hpp>
#include <tests/cluster/lease_support.hpp>
#include <tests/support/sim_jobs.hpp>
#include <tests/support/sim_nodes.hpp>

#include <catch2/matchers/catch_matchers_string.hpp>

#include <csignal>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

using namespace skein;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

namespace drains_test {

/// A head, nodes of so many cpus each, and jobs.
struct stage {
    test::sim_nodes& c;
    test::sim_jobs& jobs;

    task<cluster::drain_reply> ask(std::string node,
                                   std::int64_t within_ms = cluster::no_drain_deadline,
                                   bool force = false, bool on = true) {
        cluster::ask_drain what;
        what.node = std::move(node);
        what.within_ms = within_ms;
        what.force = force;
        what.on = on;
        return test::ask_drain(&c, std::move(what));
    }
    task<cluster::drain_reply> look(std::string node) {
        cluster::ask_drain what;
        what.node = std::move(node);
        what.look = true;
        return test::ask_drain(&c, std::move(what));
    }
    task<cluster::submit_reply> submit(std::string id, std::vector<std::string> does,
                                       std::string label = {}) {
        cluster::job_request what;
        what.id = std::move(id);
        what.command = {"/bin/sh"};
        what.command.insert(what.command.end(), does.begin(), does.end());
        what.demand = "cpu=1";
        what.label = std::move(label);
        what.by = "ann@desk";
        return jobs.submit(std::move(what));
    }
    [[nodiscard]] std::uint32_t workers_on(const std::string& node) const {
        for (const auto& n : c.head().status().nodes)
            if (n.name == node) return n.workers;
        return 0;
    }
};

void with_nodes(std::uint64_t seed, int nodes, const std::function<task<void>(stage&)>& body,
                sim::disk* disk = nullptr, int cpus = 1) {
    test::sim_jobs jobs;
    test::in_world_of_nodes(seed,
                            [&](test::sim_nodes& c) -> task<void> { // NOLINT: outlives the run
                                c.head_disk = disk;
                                c.head_defaults.runs = "/runs";
                                c.start_head();
                                jobs.attach(c);
                                for (int i = 0; i < nodes; ++i) jobs.add_node(cpus);
                                auto there = jobs.until_nodes(static_cast<std::size_t>(nodes));
                                co_await there;
                                stage s{c, jobs};
                                auto rest = body(s);
                                co_await rest;
                            });
}

} // namespace drains_test

using drains_test::stage;
using drains_test::with_nodes;

TEST_CASE("an entry process is told to end in time for its grace, and its next attempt begins on "
          "another node",
          "[cluster][drain]") {
    with_nodes(3, 2, [](stage& s) -> task<void> {
        auto submitting = s.submit("a", {"sleep", "1000000"}, "");
        co_await submitting;
        auto running = s.jobs.until("a", cluster::job_state::running);
        const auto node = (co_await running).node;
        const auto began = s.c.loop().now();
        auto asking = s.ask(node, 20'000);
        const auto reply = co_await asking;
        REQUIRE(reply.leases.size() == 1);
        const auto& l = reply.leases.front();
        CHECK(l.what == "entry process");
        CHECK(l.job == "a");
        CHECK(l.pid != 0);
        CHECK(l.word == static_cast<std::uint8_t>(cluster::leave_word::moves));
        CHECK_THAT(l.why, ContainsSubstring("told to end in 15 s"));
        while (s.workers_on(node) != 0) co_await sleep_for(10ms);
        CHECK(s.c.loop().now() - began > 14s);
        CHECK(s.c.loop().now() - began < 20s);
        auto again = s.jobs.until("a", cluster::job_state::running);
        const auto now = co_await again;
        CHECK(now.node != node);
        CHECK(now.attempt == 2);
        CHECK(now.not_counted == 1);
        auto stopping = s.jobs.stop("a");
        co_await stopping;
    });
}

TEST_CASE(
    "what no other node has room for stays, and says why; by force it ends, and is not counted",
    "[cluster][drain]") {
    with_nodes(4, 1, [](stage& s) -> task<void> {
        auto submitting = s.submit("a", {"sleep", "1000000"});
        co_await submitting;
        auto running = s.jobs.until("a", cluster::job_state::running);
        co_await running;
        auto asking = s.ask("n1", 2000);
        const auto reply = co_await asking;
        REQUIRE(reply.leases.size() == 1);
        CHECK(reply.open == 0);
        CHECK(reply.leases.front().word == static_cast<std::uint8_t>(cluster::leave_word::stays));
        CHECK_THAT(reply.leases.front().why, ContainsSubstring("no other node has room for cpu=1"));
        co_await sleep_for(10s);
        auto looking = s.look("n1");
        const auto late = co_await looking;
        CHECK(late.left_ms == 0);
        CHECK(late.workers == 1);
        auto forcing = s.ask("n1", 1000, true);
        const auto forced = co_await forcing;
        CHECK(forced.force);
        co_await sleep_for(3s);
        CHECK(s.workers_on("n1") == 0);
        auto pending = s.jobs.info("a");
        const auto waits = co_await pending;
        CHECK(cluster::state_of(waits) == cluster::job_state::pending);
        auto undoing = s.ask("n1", cluster::no_drain_deadline, false, false);
        co_await undoing;
        auto again = s.jobs.until("a", cluster::job_state::running);
        const auto heard1 = co_await again;
        CHECK(heard1.not_counted == 1);
        co_await sleep_for(10s); // nothing is ended by force any more
        CHECK(s.workers_on("n1") == 1);
        auto stopping = s.jobs.stop("a");
        co_await stopping;
    });
}

TEST_CASE("room that comes is used, also after the deadline", "[cluster][drain]") {
    with_nodes(5, 1, [](stage& s) -> task<void> {
        auto submitting = s.submit("a", {"sleep", "1000000"});
        co_await submitting;
        auto running = s.jobs.until("a", cluster::job_state::running);
        co_await running;
        auto asking = s.ask("n1", 1000);
        co_await asking;
        co_await sleep_for(5s);
        CHECK(s.workers_on("n1") == 1);
        s.jobs.add_node(1);
        while (s.workers_on("n1") != 0) co_await sleep_for(10ms);
        auto again = s.jobs.until("a", cluster::job_state::running);
        const auto heard2 = co_await again;
        CHECK(heard2.node == "n2");
        auto stopping = s.jobs.stop("a");
        co_await stopping;
    });
}

TEST_CASE("a head that is started again goes on with a drain and its deadline",
          "[cluster][drain]") {
    sim::loop loop(1);
    sim::disk disk(loop.random());
    with_nodes(
        6, 2,
        [](stage& s) -> task<void> {
            auto submitting = s.submit("a", {"sleep", "1000000"});
            co_await submitting;
            auto running = s.jobs.until("a", cluster::job_state::running);
            const auto node = (co_await running).node;
            auto asking = s.ask(node, 15'000, true);
            co_await asking;
            auto killed = s.c.kill_head();
            co_await killed;
            co_await sleep_for(1s);
            s.c.start_head();
            auto there = s.jobs.until_nodes(2);
            co_await there;
            auto looking = s.look(node);
            const auto now = co_await looking;
            CHECK(now.draining);
            CHECK(now.force);
            CHECK(now.left_ms > 10'000);
            CHECK(now.left_ms < 14'500);
            co_await sleep_for(15s);
            CHECK(s.workers_on(node) == 0);
            auto again = s.jobs.until("a", cluster::job_state::running);
            const auto heard3 = co_await again;
            CHECK(heard3.not_counted == 1);
            auto stopping = s.jobs.stop("a");
            co_await stopping;
        },
        &disk);
}

TEST_CASE("a stop while an attempt moves wins", "[cluster][drain]") {
    with_nodes(7, 2, [](stage& s) -> task<void> {
        auto submitting = s.submit("a", {"ignore", "sleep", "1000000"});
        co_await submitting;
        auto running = s.jobs.until("a", cluster::job_state::running);
        const auto node = (co_await running).node;
        auto asking = s.ask(node, 1000);
        co_await asking;
        co_await sleep_for(500ms); // it was told, and is deaf
        auto stopping = s.jobs.stop("a");
        co_await stopping;
        auto over = s.jobs.until("a", cluster::job_state::stopped);
        const auto end = co_await over;
        CHECK(end.attempt == 1);
        CHECK(s.jobs.starts_of("a") == std::vector<int>{1});
    });
}

TEST_CASE("a node that is about to be taken away drains as long as its agent lives",
          "[cluster][drain]") {
    with_nodes(8, 2, [](stage& s) -> task<void> {
        auto submitting = s.submit("a", {"sleep", "1000000"});
        co_await submitting;
        auto running = s.jobs.until("a", cluster::job_state::running);
        const auto node = (co_await running).node;
        auto& gone = s.c.at(node == "n1" ? 0 : 1);
        auto killed = s.c.kill_agent(gone);
        co_await killed;
        auto how = s.c.agent_defaults();
        how.notice_within = 10s;
        how.until_notice = []() -> task<std::string> {
            co_await sleep_for(1s);
            co_return "the file is there";
        };
        s.c.start_agent(gone, std::move(how));
        co_await sleep_for(3s);
        auto looking = s.look(node);
        const auto now = co_await looking;
        CHECK(now.draining);
        CHECK(now.left_ms > 7000);
        CHECK(now.left_ms < 10'000);
        auto asking = s.ask(node, 3'600'000); // the earlier one counts, and the agent ends first
        const auto both = co_await asking;
        CHECK(both.left_ms < 10'000);
        auto dies = s.c.kill_agent(gone);
        co_await dies;
        s.c.start_agent(gone);
        co_await sleep_for(10s);
        auto again = s.look(node);
        const auto heard4 = co_await again;
        CHECK(heard4.draining);
        CHECK(heard4.left_ms > 3'500'000);
        auto undoing = s.ask(node, cluster::no_drain_deadline, false, false);
        const auto undone = co_await undoing;
        CHECK_FALSE(undone.draining);
        auto stopping = s.jobs.stop("a");
        co_await stopping;
    });
}

TEST_CASE("ranks are to leave where others have room for all of them", "[cluster][drain]") {
    const auto be_rank = [](sim::process*) -> task<int> {
        co_await sleep_for(1h);
        co_return 0;
    };
    with_nodes(
        9, 1,
        [&](stage& s) -> task<void> {
            s.c.at(0).children->add(spmd::rank_role, be_rank);
            cluster::leased_ranks_options how;
            how.head = test::sim_nodes::head_address();
            how.secret = s.c.secret();
            how.program = {"/app", "/", {}};
            how.name = how.host = "trainer";
            how.pid = 7;
            how.incarnation = 77;
            cluster::leased_ranks ranks(s.c.network().loop_of("trainer"),
                                        s.c.network().host("trainer"), how);
            std::vector<std::string> asked;
            ranks.on_leave([&](const std::string& why) { asked.push_back(why); });
            auto opening = ranks.open();
            co_await opening;
            auto reserving = ranks.reserve(2);
            co_await reserving;
            std::vector<std::unique_ptr<proc::child>> all;
            for (int r = 0; r < 2; ++r) {
                proc::child_options what;
                what.name = fmt::format("worker {}", r);
                what.message = wire::encode(
                    std::map<std::string, std::string>{{spmd::group_variable, "tcp:*:4711"}});
                what.argv = {"train"};
                auto starting = ranks.start(std::move(what));
                all.push_back(co_await starting);
            }
            while (s.c.processes() != 2) co_await sleep_for(10ms);
            auto plain = s.ask("n1"); // without a deadline it goes on
            co_await plain;
            co_await sleep_for(1s);
            CHECK(asked.empty());
            auto asking = s.ask("n1", 60'000);
            co_await asking;
            co_await sleep_for(1s);
            auto looking = s.look("n1");
            const auto stays = co_await looking;
            REQUIRE(stays.leases.size() == 2);
            CHECK(stays.leases.front().word ==
                  static_cast<std::uint8_t>(cluster::leave_word::stays));
            CHECK_THAT(stays.leases.front().why, ContainsSubstring("no room for 2 ranks of cpu=1"));
            CHECK(asked.empty());
            s.jobs.add_node(2).children->add(spmd::rank_role, be_rank);
            while (asked.empty()) co_await sleep_for(10ms);
            CHECK_THAT(asked.front(), ContainsSubstring("node n1 is drained"));
            auto again = s.look("n1");
            const auto heard5 = co_await again;
            CHECK(heard5.leases.front().word ==
                  static_cast<std::uint8_t>(cluster::leave_word::moves));
            for (const auto& one : all) one->signal(SIGTERM);
            for (const auto& one : all) {
                auto ending = one->ended();
                const auto heard6 = co_await ending;
                CHECK(heard6.lost.empty());
            }
            ranks.release();
            auto elsewhere = ranks.reserve(2);
            co_await elsewhere;
            ranks.release();
            auto closing = ranks.close();
            co_await closing;
        },
        nullptr, 2);
}

namespace drains_test {

struct holder {
    int hold(int n) { return n; }
};

} // namespace drains_test

TEST_CASE("a worker with an actor stays, and the actor is named", "[cluster][drain]") {
    test::in_cluster(10, 1, [](test::sim_nodes& c, test::sim_nodes::driver&) -> task<void> {
        auto making = skein::actor<drains_test::holder>();
        auto one = co_await making;
        auto calling = one.call<&drains_test::holder::hold>(7);
        const auto heard7 = co_await calling;
        CHECK(heard7 == 7);
        cluster::ask_drain what;
        what.node = "n1";
        what.within_ms = 60'000;
        auto asking = test::ask_drain(&c, what);
        co_await asking;
        co_await sleep_for(1s);
        what.look = true;
        auto looking = test::ask_drain(&c, what);
        const auto now = co_await looking;
        REQUIRE_FALSE(now.leases.empty());
        bool is_named = false;
        for (const auto& l : now.leases)
            is_named =
                is_named || (l.word == static_cast<std::uint8_t>(cluster::leave_word::stays) &&
                             l.why.find("holder") != std::string::npos &&
                             l.why.find("cannot move") != std::string::npos);
        CHECK(is_named);
        CHECK(now.leases.front().of == "driver");
    });
}

TEST_CASE("a plan gives each its own room on nodes that stay", "[cluster][drain]") {
    using namespace lease_test;
    lease_test::world w;
    w.node(n1, "cpu=2");
    w.want(app, 1, "cpu=1");
    w.want(app, 2, "cpu=1");
    w.leases.pump();
    w.node(n2, "cpu=1");
    (void)w.leases.schedule().drain(w.leases.find_node(n1)->place());
    parts::room_elsewhere plan(w.leases);
    CHECK(plan.take(*w.leases.find({app, 1})).empty());
    CHECK_THAT(plan.take(*w.leases.find({app, 2})), ContainsSubstring("no other node has room"));
    CHECK(parts::room_elsewhere(w.leases).take(*w.leases.find({app, 2})).empty());
}

TEST_CASE("an entry process has the room of what its own attempt holds elsewhere",
          "[cluster][drain]") {
    using namespace lease_test;
    for (const bool in_group : {false, true}) {
        CAPTURE(in_group);
        constexpr std::uint64_t attempt = 11, train = 12;
        lease_test::world w;
        w.node(n1, "cpu=1");
        auto& entry = w.leases.holder(attempt);
        entry.attempt_of = "digits";
        w.want(attempt, 1, "cpu=1");
        w.leases.pump();
        w.node(n2, "cpu=2");
        w.leases.holder(train).job = "digits";
        if (in_group) {
            known_group group;
            group.number = 5;
            group.bundles = {"cpu=1"};
            w.leases.want_group(w.leases.holder(train), group);
            w.leases.pump();
            w.want(train, 1, "cpu=1", "@5/0");
        } else {
            w.want(train, 1, "cpu=1");
        }
        w.want(other, 1, "cpu=1");
        w.leases.pump();
        REQUIRE(w.leases.find_node(n2)->leases.size() == 2);
        (void)w.leases.schedule().drain(w.leases.find_node(n1)->place());
        const auto& own = *w.leases.find({attempt, 1});
        {
            parts::room_elsewhere plan(w.leases);
            CHECK(plan.take(own).empty());
            CHECK_THAT(plan.take(own), ContainsSubstring("no other node has room"));
        }
        w.leases.holder(train).job = "another";
        CHECK_THAT(parts::room_elsewhere(w.leases).take(own),
                   ContainsSubstring("no other node has room"));
    }
}
