// SPDX-License-Identifier: Apache-2.0
#include "cluster/lease_support.hpp"

#include <skein/cluster/detail/job_runner.hpp>
#include <skein/cluster/jobs.hpp>
#include <skein/core/awaitable.hpp>

#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

namespace job_runner_test {

using namespace lease_test;
using Catch::Matchers::ContainsSubstring;
using parts::job_ptr;
using parts::submitted_job;

/// A head whose nodes do what the test says.
struct job_head final : fake_head, parts::job_sources, parts::attempt_events {
    parts::job_runner* runner = nullptr;
    std::vector<start_worker_order> ordered;
    bool is_followed = false;

    [[nodiscard]] std::string why_pending(const submitted_job&) const override { return "full"; }
    [[nodiscard]] std::string silence_of(const submitted_job&) const override { return {}; }
    [[nodiscard]] parts::texts_by_job held_up_jobs() const override { return {}; }
    task<node_log> ask_nodes(job_ptr, ask_node_log) override { return nothing(); }
    static task<node_log> nothing() { co_return node_log(); }

    [[nodiscard]] parts::lease_holder& make_attempt(std::uint64_t attempt,
                                                    const std::string& job) override {
        auto& made = leases->holder(attempt);
        made.attempt_of = job;
        return made;
    }
    void send_order(std::uint64_t, const start_worker_order& order) override {
        ordered.push_back(order);
    }
    [[nodiscard]] bool has_followers() const override { return is_followed; }

    void start_process(parts::lease& l) override {
        if (l.of->attempt_of.empty()) return fake_head::start_process(l);
        runner->placed(l.of->attempt_of, {{l.of->incarnation, l.number},
                                          sched::to_string(l.demand),
                                          l.gpus.bits(),
                                          l.at->incarnation,
                                          l.at->name});
    }
    void entry_ended(const std::string& job, bool started, const std::string& why,
                     const ended_lease& end, bool is_ordered) override {
        runner->ended(job, started, why, end, is_ordered);
    }
};

/// Two nodes of one cpu each.
struct job_world {
    sim::loop loop{9};
    job_head head;
    parts::lease_table leases{loop, head, {10s, 2s, 30s, 5s}};
    parts::head_memory memory{loop}; // without a log: what is kept is kept at once
    parts::left_attempts given_up;
    parts::package_service packages{nullptr};
    parts::job_book jobs{loop, memory, given_up, head};
    parts::job_runner runner{
        loop, {jobs, memory, packages, given_up, leases}, head, {"/runs", 30s}};

    job_world() {
        head.leases = &leases;
        head.runner = &runner;
        for (const auto n : {n1, n2})
            leases.add_node(n, "n" + std::to_string(n - 70), *sched::parse_resources("cpu=1"), {});
    }
    task<job_ptr> submit(std::string id, std::uint32_t retries) {
        submit_job asked;
        asked.what.id = std::move(id);
        asked.what.command = {"/bin/true"};
        asked.what.demand = "cpu=1";
        asked.what.retries = retries;
        return submitted(this, std::move(asked));
    }
    static task<job_ptr> submitted(job_world* in, submit_job asked) {
        auto submitting = in->runner.submit(std::move(asked));
        const auto reply = co_await submitting;
        co_await sleep_for(1ms); // its order goes out
        co_return in->jobs.called(reply.id);
    }
    void start(const submitted_job& job) {
        leases.pump();
        runner.runs(job.what.id, job.lease_of, 4711);
    }
    [[nodiscard]] parts::lease* lease_of(const submitted_job& job) const {
        return leases.find({job.lease_of, parts::entry_lease});
    }
    /// The lease of its newest attempt is over.
    void end(const submitted_job& job, const std::string& why, const ended_lease& how = {}) {
        leases.end(*lease_of(job), how.started, why, how);
        leases.pump();
    }
};

cluster::ended_lease exits(std::int32_t code) {
    cluster::ended_lease out;
    out.code = code;
    return out;
}

void run(std::function<task<void>(job_world&)> work) {
    job_world w;
    auto body = [](job_world* in, std::function<task<void>(job_world&)> does) -> task<void> {
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
    run([](job_world& w) -> task<void> {
        auto submitting = w.submit("one", 0);
        const auto job = co_await submitting;
        CHECK(job->state == job_state::starting);
        CHECK(job->node == "n1");
        REQUIRE(w.head.ordered.size() == 1);
        const auto& entry = std::get<cluster::entry_process>(w.head.ordered[0].kind);
        CHECK(entry.job == "one");
        CHECK(entry.attempt == 1);
        REQUIRE(w.head.ordered[0].variables.size() == 1);
        CHECK_THAT(w.head.ordered[0].variables[0], ContainsSubstring("SKEIN_RUNS_DIR=/runs/one-"));
        w.start(*job);
        CHECK(job->state == job_state::running);
        CHECK(job->pid == 4711);
        w.end(*job, "exited with 0", exits(0));
        CHECK(job->state == job_state::succeeded);
        CHECK(w.leases.holders().empty());
    });
}

TEST_CASE("ranks that came out of a job are killed with its attempt", "[cluster][jobs]") {
    run([](job_world& w) -> task<void> {
        auto submitting = w.submit("one", 1);
        const auto job = co_await submitting;
        w.start(*job);
        auto& d = w.leases.holder(app);
        d.job = "one";
        d.has_ranks = true;
        w.leases.want(d, {1, "cpu=1", {}, false, {}, {}});
        w.leases.pump();
        REQUIRE(w.leases.find({app, 1})->at != nullptr);
        auto course = w.runner.course_of(*job);
        REQUIRE(course.ranks.size() == 1); // its number is not known
        CHECK(course.ranks[0].rank == -1);
        CHECK(course.ranks[0].node == "n2");
        w.end(*job, "exited with 1", exits(1));
        CHECK(w.head.stopped == names{{app, 1}});
        rank_order rank;
        rank.place = {"SKEIN_WORLD=2", "SKEIN_RANK=1"};
        w.runner.rank_placed("one", rank, "n1");
        w.runner.rank_placed("nobody", rank, "n1");
        course = w.runner.course_of(*job);
        REQUIRE(course.ranks.size() == 1);
        CHECK(course.ranks[0].rank == 1);
    });
}

TEST_CASE("an attempt that fails is followed by another one after a pause, while it has retries",
          "[cluster][jobs]") {
    run([](job_world& w) -> task<void> {
        auto submitting = w.submit("one", 1);
        const auto job = co_await submitting;
        const auto first = job->lease_of;
        w.start(*job);
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
        w.start(*job);
        w.end(*job, "exited with 1", exits(1));
        CHECK(job->state == job_state::failed);
        CHECK(w.runner.course_of(*job).attempts.size() == 1);
    });
}

TEST_CASE("an attempt whose order never came is none of its retries", "[cluster][jobs]") {
    run([](job_world& w) -> task<void> {
        auto submitting = w.submit("one", 0);
        const auto job = co_await submitting;
        w.lease_of(*job)->is_ordered = false;
        w.end(*job, "node n1 was lost");
        CHECK(job->state == job_state::retrying);
        CHECK(job->not_counted == 1);
    });
}

TEST_CASE("a node that cannot start it costs no attempt; once all may have been tried it waits",
          "[cluster][jobs]") {
    run([](job_world& w) -> task<void> {
        auto submitting = w.submit("one", 0);
        const auto job = co_await submitting;
        ended_lease fault;
        fault.started = false;
        fault.of_node = true;
        for (std::size_t i = 0; i < w.leases.nodes().size(); ++i) {
            w.end(*job, "its disk is full", fault);
            CHECK(job->attempt == 1);
            REQUIRE(w.lease_of(*job) != nullptr);
        }
        w.end(*job, "its disk is full", fault);
        CHECK(w.lease_of(*job) == nullptr);
        CHECK(job->state == job_state::pending);
        CHECK_THAT(job->reason, ContainsSubstring("full"));
        co_await sleep_for(1s);
        w.runner.look();
        CHECK(w.lease_of(*job) != nullptr);
        CHECK(job->attempt == 1);
    });
}

TEST_CASE("an attempt on a node that was given up keeps the next one waiting", "[cluster][jobs]") {
    run([](job_world& w) -> task<void> {
        auto submitting = w.submit("one", 1);
        const auto job = co_await submitting;
        w.start(*job);
        const auto fence = w.runner.fence(0, job->what);
        CHECK(fence > 30s);
        auto& n = *w.leases.find_node(n1);
        w.runner.leave(n, 0, w.loop.now());
        w.leases.remove_node(n, "node n1 was lost");
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
    run([](job_world& w) -> task<void> {
        auto submitting = w.submit("one", 3);
        const auto job = co_await submitting;
        w.start(*job);
        w.runner.stop(*job, job_state::stopped, "stopped by me");
        CHECK(job->state == job_state::running);
        CHECK(w.head.stopped == names{{job->lease_of, parts::entry_lease}});
        CHECK(w.memory.jobs().at("one").is_stopping);
        w.end(*job, "killed by signal 15", exits(-1));
        CHECK(job->state == job_state::stopped);
        CHECK(job->reason == "stopped by me");
        auto again = w.submit("two", 3);
        const auto two = co_await again;
        w.start(*two);
        w.end(*two, "exited with 1", exits(1));
        w.runner.stop(*two, job_state::stopped, "stopped by me");
        CHECK(two->state == job_state::stopped);
    });
}

TEST_CASE("a job that runs or waits for too long is stopped", "[cluster][jobs]") {
    run([](job_world& w) -> task<void> {
        auto submitting = w.submit("one", 0);
        const auto job = co_await submitting;
        job->what.pending_ms = 1000;
        job->what.timeout_ms = 2000;
        w.start(*job);
        co_await sleep_for(1500ms);
        w.runner.look();
        CHECK(w.head.stopped.empty());
        co_await sleep_for(1s);
        w.runner.look();
        CHECK(w.head.stopped.size() == 1);
        CHECK(job->stops_as == job_state::failed);
        auto another = w.submit("two", 0);
        const auto two = co_await another;
        w.start(*two);
        auto third = w.submit("three", 0);
        const auto three = co_await third;
        CHECK(three->state == job_state::pending);
        three->what.pending_ms = 1000;
        co_await sleep_for(1s);
        w.runner.look();
        CHECK(three->state == job_state::failed);
        CHECK_THAT(three->stops_for, ContainsSubstring("no node had room for it within 1 s: full"));
    });
}

TEST_CASE("the next head begins what waits anew, and expects what ran", "[cluster][jobs]") {
    run([](job_world& w) -> task<void> {
        auto first = w.submit("ran", 0);
        const auto ran = co_await first;
        w.start(*ran);
        auto second = w.submit("ran_too", 0);
        (void)co_await second;
        auto third = w.submit("waits", 0);
        (void)co_await third;
        job_world next;
        for (const auto& [id, record] : w.memory.jobs()) next.memory.job_is(record);
        CHECK(next.runner.remember());
        const auto waits = next.jobs.called("waits");
        CHECK(waits->attempt == 1);
        CHECK(next.lease_of(*waits)->state == parts::lease_state::waits);
        REQUIRE(next.lease_of(*ran) != nullptr);
        CHECK(next.lease_of(*ran)->state == parts::lease_state::expected);
        held_lease held;
        held.lease = {ran->lease_of, parts::entry_lease};
        held.job = "ran";
        CHECK(next.runner.claims(held));
        held.lease.driver += 1;
        CHECK_FALSE(next.runner.claims(held));
    });
}

} // namespace job_runner_test
