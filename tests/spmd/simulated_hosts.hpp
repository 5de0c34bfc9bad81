// SPDX-License-Identifier: Apache-2.0
#pragma once
// An elastic job over simulated hosts whose workers do what the test says, by host.

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
#include <skein/spmd/view_register.hpp>
#include <skein/wire/decode.hpp>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace simulated_hosts {

using namespace skein;
using namespace skein::spmd;
using namespace std::chrono_literals;

/// What the workers of a host do.
enum class does { train, differ, have_another_model, refuse_usage, return_at_once, crash, hang };

struct host_plan {
    does what = does::train;
    std::string job = "job";
    int most = 8;             ///< workers of the job, as this host was told
    int places = 2;           ///< for workers
    bool has_program = true;  ///< on its disk
    bool has_token = true;    ///< the job's
    time_span most_silence{}; ///< zero: the keeper's own
    time_span starts_in = 0s; ///< what its processes need before they ask for a world
};

struct seen_view {
    spmd::view now;
    time_point at;
};

struct simulated_job {
    sim::loop loop{11};
    sim::network network{loop, {}};
    net::token secret = net::token::generate(loop.random());
    host_plan usual; ///< of hosts that have no plan of their own
    std::map<std::string, host_plan> plans;
    std::map<std::string, std::unique_ptr<sim::children>> children;
    std::map<std::string, std::unique_ptr<elastic_host>> hosts;
    std::map<std::string, cancel_source> powers;
    std::map<std::string, std::optional<result<supervisor_outcome>>> ends;
    std::vector<seen_view> views;
    std::vector<std::string> failures, lines;
    int counted = 0;
    time_span pause_limit = job_times().pause_limit;
    /// Whether all pause behind that step of a world, and take in who is ready; alike for all ranks.
    std::function<bool(int step)> pauses = [](int step) { return step % 50 == 49; };
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
        o.keeper.places = plan.places;
        o.keeper.least = o.coordinator.least = 1;
        o.keeper.most = o.coordinator.most = plan.most;
        o.keeper.door = net::address::sim(name, 0);
        o.keeper.secret = o.secret;
        if (plan.most_silence > 0s) o.keeper.most_silence = plan.most_silence;
        o.coordinator.job = plan.job;
        o.coordinator.random = &loop.random();
        o.coordinator.times.ready_limit = 20s;
        o.coordinator.times.pause_limit = pause_limit;
        o.coordinator.on_view = [this](const spmd::view& now) {
            views.push_back({now, loop.now()});
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
            all += fmt::format("{:.3f} s: view {} by {}, {} members: {}\n",
                               to_seconds(v.at.time_since_epoch()), v.now.generation, v.now.author,
                               v.now.members.size(), v.now.why);
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
    [[nodiscard]] const spmd::view& newest() const { return views.back().now; }
    [[nodiscard]] int count(const std::string& host) const {
        if (views.empty()) return 0;
        const auto& all = newest().members;
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

inline task<int> train_on(simulated_job* job, spmd::detail::elastic_client* client, does what) {
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
                if (job->pauses(step)) break;
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

inline task<int> worker(simulated_job* job, sim::process* self) {
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

inline task<void> live(simulated_job* job, std::string name) {
    auto living = as_result(with_cancel(job->powers[name].token(), job->hosts[name]->run()));
    auto how = co_await living;
    job->ends[name].emplace(std::move(how));
    job->changed.set();
}

///   truth  the job's register; null: the coordinator's memory
inline void begin(simulated_job* job, scope* in, const std::string& name,
                  view_register* truth = nullptr) {
    const auto& plan = job->plans.try_emplace(name, job->usual).first->second;
    auto& here = job->children[name];
    here = std::make_unique<sim::children>(job->network, name);
    here->add(rank_role, [job](sim::process* self) { return worker(job, self); });
    if (!plan.has_program) here->faults().not_found = 1;
    here->begin_faults();
    job->hosts[name] =
        std::make_unique<elastic_host>(job->network.host(name), *here, truth, job->options(name));
    in->spawn(live(job, name));
}

inline task<void> until_changed(simulated_job* job) {
    auto waiting = job->changed.wait();
    co_await waiting;
}
inline task<void> until(simulated_job* job, std::function<bool()> is_so) {
    while (!is_so()) {
        job->changed.reset();
        auto waiting = as_result(with_timeout(until_changed(job), 120s));
        const auto waited = co_await waiting;
        if (!waited) throw error(errc::timeout, "nothing happens any more\n" + job->story());
    }
}

inline task<void> finish(simulated_job* job, scope* all) {
    job->done = true;
    auto joined = all->join();
    co_await joined;
}

} // namespace simulated_hosts
