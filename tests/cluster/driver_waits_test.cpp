// SPDX-License-Identifier: Apache-2.0
#include "cluster/node_support.hpp"

#include <skein/cluster/detail/driver_waits.hpp>
#include <skein/core/sleep.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

namespace driver_waits_test {

using namespace lease_test;
using Catch::Matchers::ContainsSubstring;
using parts::lease_state;

constexpr std::uint64_t attempt = 9; ///< of the job that drivers come out of

/// A book that asks nobody.
struct no_sources final : parts::job_sources {
    [[nodiscard]] std::string why_pending(const parts::submitted_job&) const override { return {}; }
    [[nodiscard]] std::string silence_of(const parts::submitted_job&) const override { return {}; }
    [[nodiscard]] parts::texts_by_job held_up_jobs() const override { return {}; }
    task<node_log> ask_nodes(parts::job_ptr, ask_node_log) override { return nothing(); }
    static task<node_log> nothing() { co_return node_log(); }
};

/// A job whose entry process runs on a node of two cpus, and a driver that came out of it.
struct waiting_world final : node_world {
    no_sources sources;
    parts::left_attempts given_up;
    parts::job_book jobs{loop, memory, given_up, sources};
    parts::fair_shares shares{loop, leases};
    parts::driver_waits waits{loop, {leases, shares, nodes, jobs}, head};

    waiting_world() {
        join(n1, "n1");
        job_request request;
        request.id = "job";
        request.command = {"/bin/true"};
        request.demand = "cpu=2";
        jobs.add(std::move(request), {})->lease_of = attempt;
        leases.holder(attempt).attempt_of = "job";
        leases.holder(attempt).name = "job job";
        want(attempt, parts::entry_lease, "cpu=2");
        leases.pump();
        leases.holder(app).name = "mnist";
        leases.holder(app).job = "job";
    }
};

TEST_CASE("an entry process lends its cpus to what came out of its job, and has them back",
          "[cluster][leases]") {
    waiting_world w;
    w.want(app, 1, "cpu=1");
    w.want(other, 1, "cpu=1"); // of no job
    w.waits.find_room(w.leases.holder(other), false);
    CHECK(w.state(other, 1) == lease_state::waits);
    w.waits.find_room(w.leases.holder(app), false);
    CHECK(w.state(app, 1) == lease_state::granted);
    CHECK(w.leases.find({attempt, parts::entry_lease})->blocked);
    w.waits.lend_entries();
    CHECK(w.leases.find({attempt, parts::entry_lease})->blocked); // it is still needed
    w.leases.end(*w.leases.find({app, 1}), true, "exited with 0");
    w.waits.lend_entries();
    CHECK_FALSE(w.leases.find({attempt, parts::entry_lease})->blocked);
}

TEST_CASE("who has waited for long is told who holds what, once", "[cluster][leases]") {
    waiting_world w;
    w.want(other, 1, "cpu=2");
    w.leases.holder(other).job = "job";
    w.leases.holder(other).name = "eval";
    w.leases.pump();
    w.waits.tell();
    CHECK(w.waits.changes() == 0);
    w.look_for(6);
    w.waits.tell();
    w.waits.tell();
    CHECK(w.waits.changes() == 1);
    const auto said = w.head.last<lease_waits>();
    CHECK(said.is_held_up);
    CHECK_THAT(said.why,
               ContainsSubstring("waits for cpu=2 for 6 s; n1: cpu 2 of 2 held by job job "
                                 "(entry)"));
    CHECK(w.waits.by_job().at("job").starts_with("eval waits for cpu=2"));
    w.nodes.failed(*w.nodes.find(n1), "its disk is full");
    CHECK_THAT(w.waits.by_job().at("job"), ContainsSubstring("n1 cannot start anything"));
}

} // namespace driver_waits_test
