// SPDX-License-Identifier: Apache-2.0
// Hosts of an elastic job in the simulated world: coordinators that are lost, links that are cut.
#include <skein/core/awaitable.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/sim/children.hpp>
#include <skein/sim/loop.hpp>
#include <skein/sim/network.hpp>
#include <skein/spmd/detail/elastic_client.hpp>
#include <skein/spmd/elastic_host.hpp>
#include <skein/spmd/environment.hpp>
#include <skein/spmd/meeting.hpp>
#include <skein/spmd/memory_register.hpp>
#include <skein/wire/decode.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace elastic_host_test {

using namespace skein;
using namespace skein::spmd;
using namespace std::chrono_literals;

namespace {

struct seen_view {
    view now;
    time_point at;
};

struct simulated_job {
    sim::loop loop{11};
    sim::network network{loop, {}};
    memory_register truth;
    net::token secret = net::token::generate(loop.random());
    std::map<std::string, std::unique_ptr<sim::children>> children;
    std::map<std::string, std::unique_ptr<elastic_host>> hosts;
    std::map<std::string, cancel_source> powers;
    std::map<std::string, std::optional<result<supervisor_outcome>>> ends;
    std::vector<seen_view> views;
    bool done = false;
    event changed;

    elastic_host_options options(const std::string& name) {
        elastic_host_options o;
        o.job = "job";
        o.endpoint = net::address::sim("a", 700);
        o.secret = secret;
        o.host = name;
        o.keeper.id = static_cast<std::uint64_t>(name[0]);
        o.keeper.host = name;
        o.keeper.least = o.coordinator.least = 1;
        o.keeper.most = o.coordinator.most = 3;
        o.keeper.door = net::address::sim(name, 0);
        o.keeper.secret = secret;
        o.coordinator.job = "job";
        o.coordinator.random = &loop.random();
        o.coordinator.on_view = [this](const view& now) {
            views.push_back({now, loop.now()});
            changed.set();
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
        return all;
    }
    const view& newest() const { return views.back().now; }
};

task<int> work(simulated_job* job, spmd::detail::elastic_client* client) {
    auto connecting = client->connect();
    co_await connecting;
    auto last = world_end::none;
    for (;;) {
        auto asking = client->next(last, {});
        const auto place = co_await asking;
        if (!place) co_return 0;
        try {
            for (int step = 0; !job->done; ++step) {
                auto exchanging = place->client->exchange(std::to_string(step), {});
                (void)co_await exchanging;
                auto computing = sleep_for(10ms);
                co_await computing;
                // All look at one variable, and so pause behind the same step.
                if (job->newest().members.size() < job->children.size() && step == 20) break;
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
    const auto boot =
        wire::decode<std::map<std::string, std::string>>(self->started_with().message).value();
    spmd::detail::elastic_client_options how;
    how.id = std::stoull(boot.at(elastic_id_variable));
    how.pid = self->pid();
    how.host = self->host();
    how.door = net::address::parse(boot.at(elastic_variable)).value();
    how.secret = net::token::from_hex(boot.at(token_variable)).value();
    spmd::detail::elastic_wishes wishes;
    spmd::detail::elastic_client client(self->network(), how, wishes);
    auto working = as_result(work(job, &client));
    const auto code = co_await working;
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

void begin(simulated_job* job, scope* in, const std::string& name, view_register* truth) {
    auto& here = job->children[name];
    here = std::make_unique<sim::children>(job->network, name);
    here->add(rank_role, [job](sim::process* self) { return worker(job, self); });
    job->hosts[name] =
        std::make_unique<elastic_host>(job->network.host(name), *here, truth, job->options(name));
    in->spawn(live(job, name));
}

task<void> until(simulated_job* job, std::function<bool()> is_so) {
    while (!is_so()) {
        job->changed.reset();
        auto waiting = job->changed.wait();
        co_await waiting;
    }
}

task<void> finish(simulated_job* job, scope* all) {
    job->done = true;
    auto joined = all->join();
    co_await joined;
}

bool has(const view& of, const std::string& host) {
    return std::any_of(of.members.begin(), of.members.end(),
                       [&](const view_member& m) { return m.host == host; });
}

task<void> lose_the_coordinator(simulated_job* job) {
    scope all;
    for (const auto* name : {"a", "b", "c"}) begin(job, &all, name, &job->truth);
    auto meeting = until(job, [&] { return job->newest().members.size() == 3; });
    auto first = until(job, [&] { return !job->views.empty(); });
    co_await first;
    co_await meeting;
    const auto before = job->newest();
    const auto author = before.author;
    const std::string lost(1, static_cast<char>(author));
    const auto at = job->loop.now();
    job->powers[lost].request();
    job->network.crash(lost);
    auto lease = sleep_for(3s); // after which a register forgets it
    co_await lease;
    auto forgetting = job->truth.resign();
    co_await forgetting;
    auto going_on = until(job, [&] { return job->newest().author != author; });
    co_await going_on;
    CHECK(between(at, job->views.back().at) < 5s);
    auto stay = before.members;
    std::erase_if(stay, [&](const view_member& m) { return m.host == lost; });
    CHECK(job->newest().members == stay); // with their pids
    CHECK(job->newest().generation == before.generation + 1);

    auto finishing = finish(job, &all);
    co_await finishing;
    for (const auto& [name, end] : job->ends)
        if (name != lost) CHECK((end && end->has_value() && !(*end)->failure));
}

task<void> cut_a_host_off(simulated_job* job) {
    scope all;
    begin(job, &all, "a", nullptr);
    begin(job, &all, "b", nullptr);
    auto first = until(job, [&] { return !job->views.empty(); });
    co_await first;
    auto meeting = until(job, [&] { return has(job->newest(), "b"); });
    co_await meeting;
    const auto before = job->newest();
    const auto at = job->loop.now();
    job->network.partition("a", "b");
    auto losing = until(job, [&] { return !has(job->newest(), "b"); });
    co_await losing;
    CHECK(between(at, job->views.back().at) < 1500ms);
    job->network.heal_all();
    auto back = until(job, [&] { return has(job->newest(), "b"); });
    co_await back;
    INFO(job->story());
    for (const auto& m : job->newest().members)
        if (m.host == "b")
            CHECK(std::none_of(before.members.begin(), before.members.end(),
                               [&](const view_member& old) { return old.id == m.id; }));
    CHECK(job->children["b"]->running().size() == 1); // its old worker was killed
    auto finishing = finish(job, &all);
    co_await finishing;
    for (const auto& [name, end] : job->ends) CHECK((end && end->has_value()));
}

} // namespace

TEST_CASE("another host takes over when the coordinator is lost, and the workers go on") {
    simulated_job job;
    job.loop.run(lose_the_coordinator(&job));
}

TEST_CASE("a host that is cut off is lost within a second, and comes back as a new one") {
    simulated_job job;
    job.loop.run(cut_a_host_off(&job));
}

} // namespace elastic_host_test
