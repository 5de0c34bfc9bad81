// SPDX-License-Identifier: Apache-2.0
// Hosts that come to an elastic job by mistake, in the simulated world: the job goes on and still
// replaces what it loses, the wrong host hears why at once.
#include <tests/spmd/simulated_hosts.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>

namespace elastic_refusals_test {

using namespace simulated_hosts;
using Catch::Matchers::ContainsSubstring;

namespace {

/// A host that comes by mistake, and what it hears.
struct mistake {
    const char* name;
    host_plan plan;
    errc code;
    const char* says;
};
const mistake mistakes[] = {
    {"other settings", {.what = does::differ}, errc::mismatch, "seed"},
    {"another model", {.what = does::have_another_model}, errc::mismatch, "3 layers"},
    {"a mistyped option", {.what = does::refuse_usage}, errc::usage, "--learning_rat"},
    {"a program that does not train",
     {.what = does::return_at_once},
     errc::mismatch,
     "asked for no world"},
    {"a program that crashes", {.what = does::crash}, errc::worker_lost, "exited with 3"},
    {"a program that hangs", {.what = does::hang}, errc::timeout, "not ready within 20 s"},
    {"no program", {.has_program = false}, errc::usage, "could not be started"},
    {"another job", {.job = "another"}, errc::mismatch, "of job 'another'"},
    {"another size", {.most = 6}, errc::mismatch, "1 to 6 workers"},
    {"another token", {.has_token = false}, errc::permission_denied, "token"},
};

/// The wrong host comes to a job that trains; then the job loses a worker, and a right host comes.
task<void> come_later(simulated_job* job, const mistake* wrong) {
    scope all;
    job->plans["b"] = wrong->plan;
    begin(job, &all, "a");
    auto first = until(job, [&] { return job->count("a") == 2; });
    co_await first;
    begin(job, &all, "b");
    auto hearing = until(job, [&] { return job->ends["b"].has_value(); });
    co_await hearing;
    const auto told = job->end_of("b");
    INFO(job->story());
    CHECK(told.code() == wrong->code);
    CHECK_THAT(told.what(), ContainsSubstring(wrong->says));
    CHECK(job->counted == 0); // it was not the job's loss
    CHECK(job->children["b"]->running().empty());

    auto settling = until(job, [&] { return job->count("a") == 2 && job->count("b") == 0; });
    co_await settling;
    const auto lost = job->newest().members[1];
    job->children["a"]->kill(lost.pid);
    auto replacing = until(job, [&] {
        return job->count("a") == 2 &&
               std::ranges::find(job->newest().members, lost) == job->newest().members.end();
    });
    co_await replacing;
    begin(job, &all, "c");
    auto coming = until(job, [&] { return job->count("c") == 2; });
    co_await coming;
    auto finishing = finish(job, &all);
    co_await finishing;
    INFO(job->story());
    for (const auto* name : {"a", "c"})
        CHECK((job->ends[name] && job->ends[name]->has_value() && !(**job->ends[name]).failure));
}

/// The wrong host is there before the first view, and its workers ask first.
task<void> come_first(simulated_job* job, does what, const char* says) {
    scope all;
    job->plans["a"].starts_in = 500ms;
    job->plans["b"].what = what;
    begin(job, &all, "a");
    begin(job, &all, "b");
    auto hearing = until(job, [&] { return job->ends["b"].has_value(); });
    co_await hearing;
    INFO(job->story());
    CHECK(job->end_of("b").code() == errc::mismatch);
    CHECK_THAT(job->end_of("b").what(), ContainsSubstring(says));
    auto going_on = until(job, [&] { return job->count("a") == 2; });
    co_await going_on;
    auto finishing = finish(job, &all);
    co_await finishing;
    CHECK((job->ends["a"]->has_value() && !(**job->ends["a"]).failure));
}

task<void> run_no_trainer(simulated_job* job, does other, const char* says) {
    scope all;
    job->plans["a"] = {.what = does::return_at_once, .starts_in = 100ms};
    job->plans["b"].what = other;
    begin(job, &all, "a");
    begin(job, &all, "b");
    auto joined = all.join();
    co_await joined;
    INFO(job->story());
    CHECK(job->failures.size() == (other == does::return_at_once ? 0U : 1U));
    CHECK((job->ends["a"]->has_value() && !(**job->ends["a"]).failure));
    CHECK_THAT(job->newest().why, ContainsSubstring("was a run of its own"));
    CHECK_THAT(job->end_of("b").what(), ContainsSubstring(says));
}

/// A host for which there is no place waits; a lost host's place is its own then, if one is lost.
task<void> wait_for_a_place(simulated_job* job, bool is_needed) {
    scope all;
    for (const auto* name : {"a", "b", "c"}) job->plans[name].most = 4;
    begin(job, &all, "a");
    begin(job, &all, "b");
    auto full = until(job, [&] { return job->count("a") == 2 && job->count("b") == 2; });
    co_await full;
    begin(job, &all, "c");
    auto waiting = sleep_for(30s);
    co_await waiting;
    CHECK_FALSE(job->ends["c"].has_value());
    if (is_needed) {
        job->hosts["b"]->leave("it is told to go");
        auto moving = until(job, [&] { return job->count("c") == 2; });
        co_await moving;
        CHECK(job->count("b") == 0);
    }
    auto finishing = finish(job, &all);
    co_await finishing;
    INFO(job->story());
    CHECK(job->failures.empty());
    for (const auto* name : {"a", "b", "c"})
        CHECK((job->ends[name]->has_value() && !(**job->ends[name]).failure));
}

/// A host leaves in order, a new one comes in its place, four times.
task<void> leave_and_come(simulated_job* job) {
    scope all;
    begin(job, &all, "a");
    for (const auto* name : {"b", "c", "d", "e"}) {
        begin(job, &all, name);
        auto coming = until(job, [&] { return job->count(name) == 2; });
        co_await coming;
        job->hosts[name]->leave("it is told to go");
        auto going = until(job, [&] { return job->ends[name].has_value(); });
        co_await going;
        CHECK((**job->ends[name]).stop_signal != 0);
    }
    auto finishing = finish(job, &all);
    co_await finishing;
    INFO(job->story());
    CHECK(job->failures.empty());
}

} // namespace

TEST_CASE("a host for which there is no place waits for one, and ends well with the job") {
    simulated_job job;
    SECTION("none comes") { job.loop.run(wait_for_a_place(&job, false)); }
    SECTION("another host leaves") { job.loop.run(wait_for_a_place(&job, true)); }
}

TEST_CASE("hosts that leave in order keep nobody from coming") {
    simulated_job job;
    job.loop.run(leave_and_come(&job));
}

TEST_CASE("a host that comes by mistake hears why at once, and the job goes on as before") {
    for (const auto& wrong : mistakes) {
        DYNAMIC_SECTION(wrong.name) {
            simulated_job job;
            job.loop.run(come_later(&job, &wrong));
        }
    }
}

TEST_CASE("before the first world the coordinator's host says what the job is") {
    simulated_job job;
    SECTION("other settings") { job.loop.run(come_first(&job, does::differ, "seed")); }
    SECTION("a program that does not train") {
        job.loop.run(come_first(&job, does::return_at_once, "asked for no world"));
    }
}

TEST_CASE("workers that end with 0 and have asked for no world are done, and no losses") {
    simulated_job job;
    SECTION("on all hosts") {
        job.loop.run(run_no_trainer(&job, does::return_at_once, "it has ended well"));
    }
    SECTION("and a host whose program trains hears that") {
        job.loop.run(run_no_trainer(&job, does::train, "has ended without"));
    }
}

} // namespace elastic_refusals_test
