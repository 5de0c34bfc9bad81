// SPDX-License-Identifier: Apache-2.0
// Hosts that come to an elastic job by mistake, in the simulated world: the job goes on and still
// replaces what it loses, the wrong host hears why at once.
#include <skein/core/awaitable.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/sim/children.hpp>
#include <skein/sim/loop.hpp>
#include <skein/sim/network.hpp>
#include <skein/spmd/detail/elastic_client.hpp>
#include <skein/spmd/elastic_host.hpp>
#include <skein/spmd/environment.hpp>
#include <skein/spmd/meeting.hpp>
#include <skein/wire/decode.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace elastic_refusals_test {

using namespace skein;
using namespace skein::spmd;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

namespace {

/// What the workers of a host do.
enum class does { train, differ, have_another_model, refuse_usage, return_at_once, crash, hang };

struct host_plan {
    does what = does::train;
    std::string job = "job";
    int most = 8;             ///< workers of the job, as this host was told
    bool has_program = true;  ///< on its disk
    bool has_token = true;    ///< the job's
    time_span starts_in = 0s; ///< what its processes need before they ask for a world
};

struct simulated_job {
    sim::loop loop{11};
    sim::network network{loop, {}};
    net::token secret = net::token::generate(loop.random());
    std::map<std::string, host_plan> plans;
    std::map<std::string, std::unique_ptr<sim::children>> children;
    std::map<std::string, std::unique_ptr<elastic_host>> hosts;
    std::map<std::string, cancel_source> powers;
    std::map<std::string, std::optional<result<supervisor_outcome>>> ends;
    std::vector<view> views;
    std::vector<std::string> failures, lines;
    int counted = 0;
    bool done = false;
    event changed;

    elastic_host_options options(const std::string& name) {
        const auto& plan = plans[name];
        elastic_host_options o;
        o.job = plan.job;
        o.endpoint = net::address::sim("a", 700);
        o.secret = plan.has_token ? secret : net::token::generate(loop.random());
        o.host = name;
        o.say = [this](const std::string& line) { lines.push_back(line); };
        o.keeper.id = static_cast<std::uint64_t>(name[0]);
        o.keeper.host = name;
        o.keeper.places = 2;
        o.keeper.least = o.coordinator.least = 1;
        o.keeper.most = o.coordinator.most = plan.most;
        o.keeper.door = net::address::sim(name, 0);
        o.keeper.secret = o.secret;
        o.coordinator.job = plan.job;
        o.coordinator.random = &loop.random();
        o.coordinator.times.ready_limit = 20s;
        o.coordinator.on_view = [this](const view& now) {
            views.push_back(now);
            changed.set();
        };
        o.coordinator.on_failure = [this](const error& why, int failed, int) {
            failures.push_back(why.what());
            counted = failed;
        };
        return o;
    }
    /// For messages.
    [[nodiscard]] std::string story() const {
        std::string all;
        for (const auto& v : views)
            all += fmt::format("view {} of {}: {}\n", v.generation, v.members.size(), v.why);
        for (const auto& f : failures) all += "told: " + f + "\n";
        for (const auto& l : lines) all += "said: " + l + "\n";
        for (const auto& [name, how] : ends) {
            if (!how) continue;
            all += fmt::format("host {} ended: {}\n", name,
                               !how->has_value() ? how->error().what()
                               : (*how)->failure ? (*how)->failure->what()
                                                 : "well");
        }
        return all;
    }
    [[nodiscard]] int count(const std::string& host) const {
        if (views.empty()) return 0;
        const auto& all = views.back().members;
        return static_cast<int>(std::count_if(
            all.begin(), all.end(), [&](const view_member& m) { return m.host == host; }));
    }
    /// How a host has ended, if not well.
    [[nodiscard]] error end_of(const std::string& name) {
        const auto& how = ends[name];
        if (!how) return {errc::internal, "it has not ended"};
        if (!how->has_value()) return how->error();
        return (*how)->failure.value_or(error(errc::internal, "it has ended well"));
    }
};

task<int> train_on(simulated_job* job, spmd::detail::elastic_client* client, does what) {
    auto connecting = client->connect();
    co_await connecting;
    auto last = world_end::none;
    for (;;) {
        auto asking = client->next(last, {});
        const auto place = co_await asking;
        if (!place) co_return 0;
        try {
            if (what == does::have_another_model)
                throw error(errc::mismatch, "my model has 3 layers, theirs has 4");
            for (int step = 0; !job->done; ++step) {
                auto exchanging = place->client->exchange(std::to_string(step), {});
                const auto rows = co_await exchanging;
                auto computing = sleep_for(10ms);
                co_await computing;
                if (step % 50 == 49) break; // all pause, and take in who is ready
            }
            if (job->done) {
                auto leaving = client->leave();
                co_await leaving;
                co_return 0;
            }
            last = world_end::paused;
        } catch (const error& why) {
            if (why.code() != errc::peer_lost) throw;
            last = world_end::broken;
        }
    }
}

task<int> worker(simulated_job* job, sim::process* self) {
    const auto& plan = job->plans[self->host()];
    auto loading = sleep_for(plan.starts_in);
    co_await loading;
    if (plan.what == does::refuse_usage) {
        self->leave_last_words("no option --learning_rat");
        co_return 2;
    }
    if (plan.what == does::return_at_once) co_return 0;
    if (plan.what == does::crash) co_return 3;
    if (plan.what == does::hang) {
        auto hanging = sleep_for(1h);
        co_await hanging;
    }
    const auto boot =
        wire::decode<std::map<std::string, std::string>>(self->started_with().message).value();
    spmd::detail::elastic_client_options how;
    how.id = std::stoull(boot.at(elastic_id_variable));
    how.pid = self->pid();
    how.host = self->host();
    how.door = net::address::parse(boot.at(elastic_variable)).value();
    how.secret = net::token::from_hex(boot.at(token_variable)).value();
    how.settings = {{"seed", plan.what == does::differ ? "2" : "1"}};
    spmd::detail::elastic_wishes wishes;
    spmd::detail::elastic_client client(self->network(), how, wishes);
    auto training = as_result(train_on(job, &client, plan.what));
    const auto code = co_await training;
    if (!code && code.error().code() == errc::mismatch) {
        auto failing = as_result(client.fail(code.error()));
        (void)co_await failing;
    }
    auto closing = shield(client.close());
    co_await closing;
    co_return code ? *code : 1;
}

task<void> live(simulated_job* job, std::string name) {
    auto living = as_result(with_cancel(job->powers[name].token(), job->hosts[name]->run()));
    auto how = co_await living;
    job->ends[name].emplace(std::move(how));
    job->changed.set();
}

void begin(simulated_job* job, scope* in, const std::string& name) {
    const auto& plan = job->plans[name];
    auto& here = job->children[name];
    here = std::make_unique<sim::children>(job->network, name);
    here->add(rank_role, [job](sim::process* self) { return worker(job, self); });
    if (!plan.has_program) here->faults().not_found = 1;
    here->begin_faults();
    job->hosts[name] =
        std::make_unique<elastic_host>(job->network.host(name), *here, nullptr, job->options(name));
    in->spawn(live(job, name));
}

task<void> until_changed(simulated_job* job) {
    auto waiting = job->changed.wait();
    co_await waiting;
}
task<void> until(simulated_job* job, std::function<bool()> is_so) {
    while (!is_so()) {
        job->changed.reset();
        auto waiting = as_result(with_timeout(until_changed(job), 120s));
        const auto waited = co_await waiting;
        if (!waited) throw error(errc::timeout, "nothing happens any more\n" + job->story());
    }
}

task<void> finish(simulated_job* job, scope* all) {
    job->done = true;
    auto joined = all->join();
    co_await joined;
}

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
    const auto lost = job->views.back().members[1];
    job->children["a"]->kill(lost.pid);
    auto replacing = until(job, [&] {
        return job->count("a") == 2 && std::ranges::find(job->views.back().members, lost) ==
                                           job->views.back().members.end();
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
    CHECK_THAT(job->views.back().why, ContainsSubstring("was a run of its own"));
    CHECK_THAT(job->end_of("b").what(), ContainsSubstring(says));
}

} // namespace

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
