// SPDX-License-Identifier: Apache-2.0
// Hosts whose ranks start again, in the simulated world; their ranks do what the test says.
#include <skein/core/awaitable.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/event.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/sim/loop.hpp>
#include <skein/sim/network.hpp>
#include <skein/spmd/detail/host_member.hpp>
#include <skein/spmd/elastic_host.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch_test_macros.hpp>

#include <fmt/format.h>

namespace host_member_test {

using namespace skein;
using namespace skein::spmd;
using namespace std::chrono_literals;
using skein::spmd::detail::host_end;
using skein::spmd::detail::host_member_options;
using skein::spmd::detail::host_members;
using skein::spmd::detail::host_ranks;

namespace {

/// Ranks that run until somebody ends them.
class told_ranks final : public host_ranks {
public:
    told_ranks(std::string host, int ranks, event& changed)
        : host_(std::move(host)), many_(ranks), changed_(changed) {}

    host_offer offer() override {
        host_offer mine;
        mine.host = host_;
        mine.machine = host_;
        mine.ranks = many_;
        mine.master_port = 1000 + static_cast<int>(worlds.size());
        return mine;
    }
    net::address serve(const host_share&) override {
        ++served;
        return net::address::sim(host_, 9);
    }
    task<host_end> run(host_share of, std::function<void(const host_end&)> failing) override {
        worlds.push_back(std::move(of));
        failing_ = std::move(failing);
        end_.reset();
        ended_.reset();
        runs = true;
        changed_.set();
        auto waiting = ended_.wait();
        co_await waiting;
        auto dying = sleep_for(takes);
        co_await dying;
        runs = false;
        changed_.set();
        co_return *end_;
    }
    void stop(int signal) override {
        stops.push_back(signal);
        end({});
    }
    void break_off(const error& why) override {
        ++broken;
        host_end how;
        how.failure = why;
        end(how);
    }
    void kill() override {
        ++killed;
        end({});
    }

    void end(host_end how) {
        if (end_) return;
        end_ = std::move(how);
        ended_.set();
    }
    void fail(error why, int code = 1, bool is_lasting = false, bool is_echo = false) {
        host_end how;
        how.failure = std::move(why);
        how.code = code;
        how.is_lasting = is_lasting;
        how.is_echo = is_echo;
        failing_(how);
        end(how);
    }

    time_span takes = 10ms; ///< to end
    std::vector<host_share> worlds;
    std::vector<int> stops;
    int broken = 0, killed = 0, served = 0;
    bool runs = false;

private:
    std::string host_;
    int many_;
    event& changed_;
    std::function<void(const host_end&)> failing_;
    std::optional<host_end> end_;
    event ended_;
};

struct host_of_ranks {
    std::unique_ptr<told_ranks> ranks;
    std::unique_ptr<host_members> members;
    std::unique_ptr<elastic_host> host;
    cancel_source power;
    std::optional<result<supervisor_outcome>> end;
};

struct job_of_hosts {
    sim::loop loop{5};
    sim::network network{loop, {}};
    net::token secret = net::token::generate(loop.random());
    std::map<std::string, host_of_ranks> hosts;
    std::vector<std::string> lines;
    int least = 2, most = 3, max_failures = 3;
    event changed;

    [[nodiscard]] told_ranks& ranks(const std::string& name) { return *hosts[name].ranks; }
    [[nodiscard]] bool has_said(const std::string& text) const {
        return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) {
            return line.find(text) != std::string::npos;
        });
    }
    [[nodiscard]] std::string failure(const std::string& name) {
        const auto& end = hosts[name].end;
        if (!end) return "it has not ended";
        if (!end->has_value()) return "thrown: " + std::string(end->error().what());
        return (*end)->failure ? (*end)->failure->what() : "";
    }
};

elastic_host_options options_of(job_of_hosts* job, const std::string& name) {
    elastic_host_options o;
    o.job = "J";
    o.endpoint = net::address::sim("a", 700);
    o.secret = job->secret;
    o.host = name;
    o.back_limit = 2s;
    o.keeper.id = static_cast<unsigned char>(name[0]);
    o.keeper.host = name;
    o.keeper.least = o.coordinator.least = job->least;
    o.keeper.most = o.coordinator.most = job->most;
    o.keeper.door = net::address::sim(name, 0);
    o.keeper.secret = job->secret;
    o.coordinator.job = "J";
    o.coordinator.are_hosts = true;
    o.coordinator.max_failures = job->max_failures;
    o.coordinator.times.pause_limit = 20s;
    o.coordinator.random = &job->loop.random();
    return o;
}

task<void> live(job_of_hosts* job, std::string name) {
    auto& self = job->hosts[name];
    auto living = as_result(with_cancel(self.power.token(), self.host->run()));
    auto how = co_await living;
    auto ending = self.members->end();
    co_await ending;
    self.end.emplace(std::move(how));
    job->changed.set();
}

void begin(job_of_hosts* job, scope* in, const std::string& name, int ranks = 2) {
    auto& self = job->hosts[name];
    self.ranks = std::make_unique<told_ranks>(name, ranks, job->changed);
    host_member_options how;
    how.link.host = name;
    how.max_failures = job->max_failures;
    how.say = [job, name](const std::string& line) { job->lines.push_back(name + ": " + line); };
    auto& via = job->network.host(name);
    self.members = std::make_unique<host_members>(via, *self.ranks, std::move(how));
    self.host = std::make_unique<elastic_host>(via, *self.members, nullptr, options_of(job, name));
    in->spawn(live(job, name));
}

task<void> until_changed(job_of_hosts* job) {
    auto waiting = job->changed.wait();
    co_await waiting;
}
task<void> until(job_of_hosts* job, std::function<bool()> is_so) {
    while (!is_so()) {
        job->changed.reset();
        auto waiting = as_result(with_timeout(until_changed(job), 120s));
        const auto waited = co_await waiting;
        if (waited) continue;
        std::string story;
        for (const auto& line : job->lines) story += "\n" + line;
        for (const auto& [name, host] : job->hosts) story += "\n" + name + " " + job->failure(name);
        throw error(errc::timeout, "nothing happens any more" + story);
    }
}
/// All these hosts run their ranks, in their world of this number.
task<void> until_running(job_of_hosts* job, std::string names, std::size_t world) {
    auto waiting = until(job, [job, names, world] {
        return std::all_of(names.begin(), names.end(), [&](char name) {
            auto& ranks = job->ranks(std::string(1, name));
            return ranks.runs && ranks.worlds.size() == world;
        });
    });
    co_await waiting;
}
void end_well(job_of_hosts* job, const std::string& names) {
    for (const char name : names) job->ranks(std::string(1, name)).end({});
}
/// a and b are there, with two ranks each.
task<void> run_on_two_hosts(job_of_hosts* job, scope* all) {
    begin(job, all, "a");
    begin(job, all, "b");
    auto running = until_running(job, "ab", 1);
    co_await running;
}
task<void> end_all_well(job_of_hosts* job, scope* all, std::string names) {
    end_well(job, names);
    auto joined = all->join();
    co_await joined;
}
error killed_at(const std::string& host) {
    return {errc::worker_lost, fmt::format("rank 3 (pid 7 at {}) killed by signal 9", host)};
}

// ---- what happens ------------------------------------------------------------------------------

task<void> train(job_of_hosts* job, scope* all) {
    begin(job, all, "a");
    begin(job, all, "b", 3);
    auto running = until_running(job, "ab", 1);
    co_await running;
    const auto first = job->ranks("a").worlds[0], second = job->ranks("b").worlds[0];
    CHECK(first.first_rank == 0);
    CHECK(second.first_rank == 2);
    CHECK(second.ranks == 3);
    CHECK(first.world_size == 5);
    CHECK(second.world_size == 5);
    CHECK(second.master_host == "a");
    CHECK(second.master_port == 1000);
    CHECK(second.attempt == 0);
    CHECK(second.restarts == 0);
    CHECK(net::to_string(second.group) == net::to_string(net::address::sim("a", 9)));
    CHECK(first.secret.to_hex() == second.secret.to_hex());
    CHECK(first.job == second.job);
    CHECK(first.job != "J");
    CHECK(job->ranks("b").served == 0);
    CHECK(job->lines.front().ends_with(
        "world of 2 hosts, 5 ranks: a has ranks 0 to 1, b has ranks 2 to 4"));
    auto ended = end_all_well(job, all, "ab");
    co_await ended;
    CHECK(job->failure("a").empty());
    CHECK(job->failure("b").empty());
}

task<void> start_again(job_of_hosts* job, scope* all) {
    auto running = run_on_two_hosts(job, all);
    co_await running;
    job->ranks("b").takes = 5s; // the others hear of it before
    job->ranks("b").fail(killed_at("b"), 137);
    auto again = until_running(job, "ab", 2);
    co_await again;
    CHECK(job->ranks("a").broken == 1);
    const auto before = job->ranks("a").worlds[0], now = job->ranks("a").worlds[1];
    CHECK(now.attempt == 1);
    CHECK(now.restarts == 1);
    CHECK(now.job == before.job);
    CHECK(now.secret.to_hex() != before.secret.to_hex());
    CHECK(job->lines.back().ends_with("rank 3 (pid 7 at b) killed by signal 9; all ranks start "
                                      "again (restart 1 of 3)"));
    auto ended = end_all_well(job, all, "ab");
    co_await ended;
    CHECK(job->failure("a").empty());
}

task<void> wait_for_those_that_run(job_of_hosts* job, scope* all) {
    auto running = run_on_two_hosts(job, all);
    co_await running;
    end_well(job, "b");
    auto pause = sleep_for(10s);
    co_await pause;
    CHECK_FALSE(job->hosts["b"].end.has_value());
    job->ranks("a").fail(killed_at("a"), 137);
    auto again = until_running(job, "ab", 2);
    co_await again;
    auto ended = end_all_well(job, all, "ab");
    co_await ended;
    CHECK(job->failure("b").empty());
}

task<void> fail_for_good(job_of_hosts* job, scope* all) {
    auto running = run_on_two_hosts(job, all);
    co_await running;
    job->ranks("b").fail(error(errc::worker_lost, "rank 2 (pid 7 at b) exited with 2"), 2, true);
    auto joined = all->join();
    co_await joined;
    for (const auto* name : {"a", "b"}) {
        CHECK(job->failure(name) == "rank 2 (pid 7 at b) exited with 2");
        CHECK(job->ranks(name).worlds.size() == 1);
    }
    CHECK(job->hosts["a"].members->code() == 0);
    CHECK(job->hosts["b"].members->code() == 2);
}

task<void> fail_too_often(job_of_hosts* job, scope* all) {
    begin(job, all, "a");
    begin(job, all, "b");
    for (std::size_t world = 1; world <= 2; ++world) {
        auto running = until_running(job, "ab", world);
        co_await running;
        job->ranks("b").fail(killed_at("b"), 137);
    }
    auto joined = all->join();
    co_await joined;
    CHECK(job->failure("a").starts_with(killed_at("b").what()));
    CHECK(job->failure("a").find("all ranks were started again 1 time already") !=
          std::string::npos);
}

task<void> fail_at_one_step(job_of_hosts* job, scope* all) {
    begin(job, all, "a");
    begin(job, all, "b");
    for (std::size_t world = 1; world <= 2; ++world) {
        auto running = until_running(job, "ab", world);
        co_await running;
        job->ranks("b").fail(error(errc::worker_lost, "the shelf is empty at step 7"), 1);
    }
    auto joined = all->join();
    co_await joined;
    CHECK(job->failure("a").find("it came again at the same step") != std::string::npos);
}

/// What another host says is the reason, not what follows from it.
task<void> hear_the_reason(job_of_hosts* job, scope* all) {
    auto running = run_on_two_hosts(job, all);
    co_await running;
    job->ranks("a").fail(error(errc::peer_lost, "an echo"), 1, false, true);
    job->ranks("b").fail(killed_at("b"), 137);
    auto again = until_running(job, "ab", 2);
    co_await again;
    CHECK(job->has_said(killed_at("b").what()));
    job->ranks("a").fail(error(errc::peer_lost, "an echo of nobody"), 1, false, true);
    auto third = until_running(job, "ab", 3);
    co_await third;
    CHECK(job->has_said("an echo of nobody"));
    auto ended = end_all_well(job, all, "ab");
    co_await ended;
}

task<void> join_and_lose(job_of_hosts* job, scope* all) {
    job->least = 1;
    begin(job, all, "a");
    auto alone = until_running(job, "a", 1);
    co_await alone;
    begin(job, all, "b");
    auto running = until(job, [job] { return job->ranks("b").runs; });
    co_await running;
    CHECK(job->ranks("a").stops == std::vector<int>{SIGTERM});
    CHECK(job->ranks("a").broken == 0);
    CHECK(job->ranks("a").worlds.back().restarts == 0);
    CHECK(job->ranks("a").worlds.back().world_size == 4);
    CHECK(job->has_said("host b joins; all ranks start again on 2 hosts, 4 ranks"));
    job->network.crash("b");
    job->hosts["b"].power.request();
    auto fewer = until_running(job, "a", 3);
    co_await fewer;
    CHECK(job->ranks("a").worlds.back().restarts == 1);
    CHECK(job->ranks("a").worlds.back().world_size == 2);
    auto ended = end_all_well(job, all, "a");
    co_await ended;
    CHECK(job->failure("a").empty());
}

task<void> stop_one(job_of_hosts* job, scope* all) {
    auto running = run_on_two_hosts(job, all);
    co_await running;
    job->hosts["b"].host->stop(SIGTERM);
    auto joined = all->join();
    co_await joined;
    for (const auto* name : {"a", "b"}) {
        CHECK(job->ranks(name).stops == std::vector<int>{SIGTERM});
        CHECK(job->failure(name).empty());
        CHECK(job->hosts[name].end->value().stop_signal == SIGTERM);
    }
}

task<void> be_elastic(job_of_hosts* job, scope* all, bool both) {
    auto running = run_on_two_hosts(job, all);
    co_await running;
    host_end elastic;
    elastic.is_elastic = true;
    job->ranks("a").end(elastic);
    job->ranks("b").end(both ? elastic : host_end());
    auto joined = all->join();
    co_await joined;
    for (const auto* name : {"a", "b"}) {
        CHECK(job->hosts[name].members->are_elastic() == both);
        CHECK(job->failure(name).empty() == both);
        if (!both)
            CHECK(job->failure(name).starts_with("the program of host a trains with Elastic<...>, "
                                                 "that of host b does not"));
    }
}

void play(task<void> (*what)(job_of_hosts*, scope*)) {
    job_of_hosts job;
    scope all;
    job.loop.run(what(&job, &all));
}
task<void> be_all_elastic(job_of_hosts* job, scope* all) { return be_elastic(job, all, true); }
task<void> be_elastic_in_part(job_of_hosts* job, scope* all) { return be_elastic(job, all, false); }
task<void> fail_twice(job_of_hosts* job, scope* all) {
    job->max_failures = 1;
    return fail_too_often(job, all);
}

} // namespace

TEST_CASE("hosts meet, share the ranks, and end together") { play(train); }
TEST_CASE("ranks of all hosts start again when one fails") { play(start_again); }
TEST_CASE("a host that is done waits for those that run") { play(wait_for_those_that_run); }
TEST_CASE("what would only fail again ends the job of all hosts") { play(fail_for_good); }
TEST_CASE("failures of all hosts count together") { play(fail_twice); }
TEST_CASE("what comes again at the same step is not tried once more") { play(fail_at_one_step); }
TEST_CASE("the reason is that of the host that knows it") { play(hear_the_reason); }
TEST_CASE("a host that joins or is lost is a new world") { play(join_and_lose); }
TEST_CASE("a host that is told to stop stops the job where the others are too few") {
    play(stop_one);
}
TEST_CASE("hosts of an elastic program end their job with all ranks alive") {
    play(be_all_elastic);
}
TEST_CASE("programs of two kinds are refused") { play(be_elastic_in_part); }

} // namespace host_member_test
