// SPDX-License-Identifier: Apache-2.0
#include <skein/cluster/detail/job_runner.hpp>
#include <skein/cluster/jobs.hpp>
#include <skein/core/awaitable.hpp>
#include <skein/core/sleep.hpp>
#include <skein/sim/loop.hpp>

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

namespace job_runner_test {

using namespace skein;
using namespace std::chrono_literals;
namespace parts = skein::cluster::detail;
using Catch::Matchers::ContainsSubstring;
using cluster::job_state;
using parts::job_ptr;
using parts::submitted_job;

constexpr std::uint64_t n1 = 71, n2 = 72; // nodes

/// A head without nodes: the test says what becomes of the leases that are asked for.
struct fake_head final : parts::job_sources, parts::entry_leases {
    std::map<std::uint64_t, std::string> wanted; ///< attempts that have a lease: ids of jobs
    std::map<std::uint64_t, time_point> expected;
    std::vector<cluster::start_worker_order> ordered;
    std::vector<std::uint64_t> stopped;
    std::vector<std::string> ranks_ended, rank_nodes;
    std::size_t nodes = 2;
    bool is_followed = false;

    [[nodiscard]] std::string why_pending(const submitted_job&) const override { return "full"; }
    [[nodiscard]] std::string silence_of(const submitted_job&) const override { return {}; }
    [[nodiscard]] parts::texts_by_job held_up_jobs() const override { return {}; }
    task<cluster::node_log> ask_nodes(job_ptr, cluster::ask_node_log) override { return nothing(); }
    static task<cluster::node_log> nothing() { co_return cluster::node_log(); }

    [[nodiscard]] bool has_driver(std::uint64_t number) const override {
        return wanted.contains(number);
    }
    void want_entry(std::uint64_t attempt, const cluster::job_request& job) override {
        wanted[attempt] = job.id;
    }
    void expect_entry(std::uint64_t attempt, const cluster::job_request& job,
                      const sched::resources&, time_point until) override {
        wanted[attempt] = job.id;
        expected[attempt] = until;
    }
    void order_entry(std::uint64_t, cluster::start_worker_order order) override {
        ordered.push_back(std::move(order));
    }
    void stop_entry(std::uint64_t attempt) override { stopped.push_back(attempt); }
    void end_ranks_of(const std::string& job) override { ranks_ended.push_back(job); }
    [[nodiscard]] std::vector<std::string> rank_nodes_of(const std::string&) const override {
        return rank_nodes;
    }
    [[nodiscard]] std::size_t count_nodes() const override { return nodes; }
    [[nodiscard]] bool has_followers() const override { return is_followed; }
    void pump() override {}
};

struct world {
    sim::loop loop{9};
    fake_head head;
    parts::head_memory memory{loop}; // without a log: what is kept is kept at once
    parts::left_attempts given_up;
    parts::package_service packages{nullptr};
    parts::job_book jobs{loop, memory, given_up, head};
    parts::job_runner runner{loop, {jobs, memory, packages, given_up}, head, {"/runs", 30s}};

    task<job_ptr> submit(std::string id, std::uint32_t retries) {
        cluster::submit_job asked;
        asked.what.id = std::move(id);
        asked.what.command = {"/bin/true"};
        asked.what.demand = "cpu=1";
        asked.what.retries = retries;
        return submitted(this, std::move(asked));
    }
    static task<job_ptr> submitted(world* in, cluster::submit_job asked) {
        auto submitting = in->runner.submit(std::move(asked));
        const auto reply = co_await submitting;
        co_return in->jobs.called(reply.id);
    }
    /// Its newest attempt gets room, and runs.
    void start(const submitted_job& job, std::uint64_t node) {
        runner.placed(job.what.id, {{job.lease_of, parts::entry_lease},
                                    "cpu=1",
                                    0,
                                    node,
                                    "n" + std::to_string(node - 70)});
        runner.runs(job.what.id, job.lease_of, 4711);
    }
    /// The lease of its newest attempt is over.
    void end(const submitted_job& job, const std::string& why, cluster::ended_lease how = {},
             bool is_ordered = true) {
        head.wanted.erase(job.lease_of);
        runner.ended(job.what.id, how.started, why, how, is_ordered);
    }
};

cluster::ended_lease exits(std::int32_t code) {
    cluster::ended_lease out;
    out.code = code;
    return out;
}

void run(std::function<task<void>(world&)> work) {
    world w;
    auto body = [](world* in, std::function<task<void>(world&)> does) -> task<void> {
        auto doing = as_result(does(*in));
        const auto done = co_await doing;
        in->runner.cancel();
        auto joining = as_result(in->runner.join());
        (void)co_await joining;
        if (!done) throw done.error();
    };
    w.loop.run(body(&w, std::move(work)));
}

TEST_CASE("a job asks for room, is ordered, runs, and has succeeded", "[cluster][jobs]") {
    run([](world& w) -> task<void> {
        auto submitting = w.submit("one", 0);
        const auto job = co_await submitting;
        CHECK(job->state == job_state::pending);
        REQUIRE(w.head.wanted.contains(job->lease_of));
        w.start(*job, n1);
        CHECK(job->state == job_state::running);
        CHECK(job->node == "n1");
        CHECK(job->pid == 4711);
        co_await sleep_for(1ms);
        REQUIRE(w.head.ordered.size() == 1);
        CHECK(w.head.ordered[0].job == "one");
        CHECK(w.head.ordered[0].attempt == 1);
        REQUIRE(w.head.ordered[0].variables.size() == 1);
        CHECK_THAT(w.head.ordered[0].variables[0], ContainsSubstring("SKEIN_RUNS_DIR=/runs/one-"));
        w.end(*job, "exited with 0", exits(0));
        CHECK(job->state == job_state::succeeded);
        CHECK(w.head.ranks_ended == std::vector<std::string>{"one"});
    });
}

TEST_CASE("an attempt that fails is followed by another one after a pause, while it has retries",
          "[cluster][jobs]") {
    run([](world& w) -> task<void> {
        auto submitting = w.submit("one", 1);
        const auto job = co_await submitting;
        const auto first = job->lease_of;
        w.start(*job, n1);
        w.end(*job, "exited with 1", exits(1));
        CHECK(job->state == job_state::retrying);
        CHECK(job->reason == "attempt 1 of 2 has failed: exited with 1");
        w.runner.look();
        CHECK(job->attempt == 1);
        co_await sleep_for(2s);
        w.runner.look();
        CHECK(job->state == job_state::pending);
        CHECK(job->attempt == 2);
        CHECK(job->lease_of != first);
        w.start(*job, n2);
        w.end(*job, "exited with 1", exits(1));
        CHECK(job->state == job_state::failed);
        CHECK(w.runner.course_of(*job).attempts.size() == 1);
    });
}

TEST_CASE("an attempt whose order never came is none of its retries", "[cluster][jobs]") {
    run([](world& w) -> task<void> {
        auto submitting = w.submit("one", 0);
        const auto job = co_await submitting;
        w.runner.placed("one", {{job->lease_of, parts::entry_lease}, "cpu=1", 0, n1, "n1"});
        w.end(*job, "node n1 was lost", {}, false);
        CHECK(job->state == job_state::retrying);
        CHECK(job->not_counted == 1);
    });
}

TEST_CASE("a node that cannot start it costs no attempt; once all may have been tried it waits",
          "[cluster][jobs]") {
    run([](world& w) -> task<void> {
        auto submitting = w.submit("one", 0);
        const auto job = co_await submitting;
        cluster::ended_lease fault;
        fault.started = false;
        fault.of_node = true;
        for (std::size_t i = 0; i < w.head.nodes; ++i) {
            w.end(*job, "its disk is full", fault);
            CHECK(job->attempt == 1);
            REQUIRE(w.head.wanted.contains(job->lease_of));
        }
        w.end(*job, "its disk is full", fault);
        CHECK(w.head.wanted.empty());
        CHECK(job->state == job_state::pending);
        CHECK_THAT(job->reason, ContainsSubstring("could not start it: its disk is full"));
        co_await sleep_for(1s);
        w.runner.look();
        CHECK(w.head.wanted.contains(job->lease_of));
        CHECK(job->attempt == 1);
    });
}

TEST_CASE("an attempt on a node that was given up keeps the next one waiting", "[cluster][jobs]") {
    run([](world& w) -> task<void> {
        auto submitting = w.submit("one", 1);
        const auto job = co_await submitting;
        w.start(*job, n1);
        const auto fence = w.runner.fence(0, job->what);
        CHECK(fence > 30s);
        w.given_up.leave(job->lease_of, {n1, "n1", fence, w.loop.now() + fence});
        w.end(*job, "node n1 was lost");
        CHECK_THAT(job->reason, ContainsSubstring("it may run there still"));
        co_await sleep_for(fence - 1s);
        w.runner.look();
        CHECK(job->state == job_state::retrying);
        co_await sleep_for(2s);
        w.runner.look();
        CHECK(job->state == job_state::pending);
    });
}

TEST_CASE("what is stopped ends at once between attempts, and with its lease otherwise",
          "[cluster][jobs]") {
    run([](world& w) -> task<void> {
        auto submitting = w.submit("one", 3);
        const auto job = co_await submitting;
        w.start(*job, n1);
        w.runner.stop(*job, job_state::stopped, "stopped by me");
        CHECK(job->state == job_state::running);
        REQUIRE(w.head.stopped == std::vector<std::uint64_t>{job->lease_of});
        CHECK(w.memory.jobs().at("one").is_stopping);
        w.end(*job, "killed by signal 15", exits(-1));
        CHECK(job->state == job_state::stopped);
        CHECK(job->reason == "stopped by me");
        auto again = w.submit("two", 3);
        const auto two = co_await again;
        w.start(*two, n1);
        w.end(*two, "exited with 1", exits(1));
        w.runner.stop(*two, job_state::stopped, "stopped by me");
        CHECK(two->state == job_state::stopped);
    });
}

TEST_CASE("a job that runs or waits for too long is stopped", "[cluster][jobs]") {
    run([](world& w) -> task<void> {
        auto submitting = w.submit("one", 0);
        const auto job = co_await submitting;
        job->what.pending_ms = 1000;
        job->what.timeout_ms = 2000;
        w.start(*job, n1);
        co_await sleep_for(1500ms);
        w.runner.look();
        CHECK(w.head.stopped.empty());
        co_await sleep_for(1s);
        w.runner.look();
        CHECK(w.head.stopped.size() == 1);
        CHECK(job->stops_as == job_state::failed);
        auto another = w.submit("two", 0);
        const auto two = co_await another;
        two->what.pending_ms = 1000;
        co_await sleep_for(1s);
        w.runner.look();
        CHECK_THAT(two->stops_for, ContainsSubstring("no node had room for it within 1 s: full"));
    });
}

TEST_CASE("the next head begins what waits anew, and expects what ran", "[cluster][jobs]") {
    run([](world& w) -> task<void> {
        auto first = w.submit("ran", 0);
        const auto ran = co_await first;
        auto second = w.submit("waits", 0);
        (void)co_await second;
        w.start(*ran, n1);
        world next;
        for (const auto& [id, record] : w.memory.jobs()) next.memory.job_is(record);
        next.runner.remember();
        const auto waits = next.jobs.called("waits");
        CHECK(waits->attempt == 1);
        CHECK(next.head.wanted.contains(waits->lease_of));
        REQUIRE(next.head.expected.contains(ran->lease_of));
        cluster::held_lease held;
        held.lease = {ran->lease_of, parts::entry_lease};
        held.job = "ran";
        CHECK(next.runner.claims(held));
        held.lease.driver += 1;
        CHECK_FALSE(next.runner.claims(held));
    });
}

TEST_CASE("ranks are shown by number, or by their nodes alone", "[cluster][jobs]") {
    run([](world& w) -> task<void> {
        auto submitting = w.submit("one", 0);
        const auto job = co_await submitting;
        w.head.rank_nodes = {"n2", "n1"};
        auto course = w.runner.course_of(*job);
        REQUIRE(course.ranks.size() == 2);
        CHECK(course.ranks[0].rank == -1);
        CHECK(course.ranks[0].node == "n2");
        cluster::rank_order rank;
        rank.place = {"SKEIN_WORLD=2", "SKEIN_RANK=1"};
        w.runner.rank_placed("one", rank, "n1");
        w.runner.rank_placed("nobody", rank, "n1");
        course = w.runner.course_of(*job);
        REQUIRE(course.ranks.size() == 1);
        CHECK(course.ranks[0].rank == 1);
    });
}

} // namespace job_runner_test
