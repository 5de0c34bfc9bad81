// SPDX-License-Identifier: Apache-2.0
// Hosts of an elastic job in the simulated world: coordinators that are lost, links that are cut.
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/wait.hpp>
#include <skein/net/connection.hpp>
#include <skein/net/requests.hpp>
#include <skein/spmd/detail/keeper_links.hpp>
#include <skein/spmd/memory_register.hpp>
#include <tests/spmd/simulated_hosts.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace elastic_host_test {

using namespace simulated_hosts;

namespace {

/// The truth of a job that may be lost, and that a host may be cut off from.
struct losable_truth {
    spmd::view newest;
    coordinator_place coordinator;
    std::set<std::string> cut;
    std::optional<error> says_no; ///< to all calls
    wait_queue changed;

    void lose_view() { newest = {}; }
    void lose_all() {
        newest = {};
        coordinator = {};
        changed.wake_all();
    }
    void heal() {
        cut.clear();
        changed.wake_all();
    }
};

/// It, as one host reaches it.
class losable_register final : public view_register {
public:
    losable_register(losable_truth& of, std::string host) : of_(of), host_(std::move(host)) {}

    task<spmd::view> read() override {
        auto reaching = reach();
        co_await reaching;
        co_return of_.newest;
    }
    task<swap_result> compare_and_swap(std::uint64_t generation, spmd::view next) override {
        auto reaching = reach();
        co_await reaching;
        swap_result how;
        how.swapped = of_.newest.generation <= generation && next.generation == generation + 1;
        if (how.swapped) of_.newest = std::move(next);
        how.now = of_.newest;
        of_.changed.wake_all();
        co_return how;
    }
    task<spmd::view> watch(std::uint64_t after) override {
        while (of_.newest.generation <= after || of_.cut.contains(host_)) {
            auto changed = of_.changed.wait();
            co_await changed;
        }
        co_return of_.newest;
    }
    task<coordinator_place> claim(coordinator_place me) override {
        auto reaching = reach();
        co_await reaching;
        if (of_.coordinator.id == 0 || of_.coordinator.id == me.id) of_.coordinator = me;
        of_.changed.wake_all();
        co_return of_.coordinator;
    }
    task<coordinator_place> watch_coordinator(coordinator_place known) override {
        while (of_.coordinator == known || of_.cut.contains(host_)) {
            if (of_.says_no) throw *of_.says_no;
            auto changed = of_.changed.wait();
            co_await changed;
        }
        co_return of_.coordinator;
    }
    task<void> resign() override {
        auto reaching = reach();
        co_await reaching;
        of_.coordinator = {};
        of_.changed.wake_all();
    }

private:
    task<void> reach() {
        if (of_.says_no) throw *of_.says_no;
        while (of_.cut.contains(host_)) {
            auto changed = of_.changed.wait();
            co_await changed;
        }
    }
    losable_truth& of_;
    std::string host_;
};

/// Hosts with a worker each, whose register may be lost.
struct hosts_job : simulated_job {
    memory_register truth;
    losable_truth lost;
    std::map<std::string, losable_register> registers;

    hosts_job() {
        usual.places = 1;
        usual.most = 3;
        // All look at one variable, and so pause behind the same step.
        pauses = [this](int step) {
            return newest().members.size() < children.size() && step == 20;
        };
    }
    /// Where one host finds the truth that may be lost.
    view_register* register_of(const std::string& host) {
        return &registers.try_emplace(host, lost, host).first->second;
    }
};

/// Looks once each 50 ms.
task<bool> within(time_span limit, std::function<bool()> is_so) {
    const auto end = loop::current().now() + limit;
    while (!is_so()) {
        if (loop::current().now() >= end) co_return false;
        auto pause = sleep_for(50ms);
        co_await pause;
    }
    co_return true;
}

std::string host_of_author(const spmd::view& of) {
    return std::string(1, static_cast<char>(of.author));
}

/// Three hosts, with a worker each, whose register may be lost.
task<void> begin_three(hosts_job* job, scope* all) {
    for (const auto* name : {"a", "b", "c"}) begin(job, all, name, job->register_of(name));
    auto first = until(job, [&] { return !job->views.empty(); });
    co_await first;
    auto meeting = until(job, [&] { return job->newest().members.size() == 3; });
    co_await meeting;
}

/// The job has ended well, at all hosts but one.
task<void> end_well(hosts_job* job, scope* all, std::string but) {
    auto finishing = finish(job, all);
    co_await finishing;
    INFO(job->story());
    for (const auto& [name, end] : job->ends) {
        if (name == but) continue;
        INFO(name);
        CHECK((end && end->has_value() && !(*end)->failure));
    }
}

bool has(const spmd::view& of, const std::string& host) {
    return std::any_of(of.members.begin(), of.members.end(),
                       [&](const view_member& m) { return m.host == host; });
}

task<void> lose_the_coordinator(hosts_job* job) {
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

task<void> cut_a_host_off(hosts_job* job) {
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

task<void> lose_the_register(hosts_job* job) {
    scope all;
    auto beginning = begin_three(job, &all);
    co_await beginning;
    const auto before = job->newest();
    job->lost.lose_all();
    auto next = within(5s, [&] { return job->newest().generation > before.generation; });
    const bool next_came = co_await next;
    CHECK(next_came);
    INFO(job->story());
    CHECK(job->newest().generation == before.generation + 1);
    CHECK(job->newest().members == before.members); // with their pids
    CHECK(job->lost.newest.generation == job->newest().generation);
    auto ending = end_well(job, &all, "");
    co_await ending;
}

task<void> lose_the_view_alone(hosts_job* job) {
    scope all;
    auto beginning = begin_three(job, &all);
    co_await beginning;
    const auto before = job->newest();
    const std::string lost = host_of_author(before) == "a" ? "b" : "a";
    job->lost.lose_view();
    job->powers[lost].request();
    job->network.crash(lost);
    auto next = within(5s, [&] { return job->newest().generation > before.generation; });
    const bool next_came = co_await next;
    CHECK(next_came);
    INFO(job->story());
    auto stay = before.members;
    std::erase_if(stay, [&](const view_member& m) { return m.host == lost; });
    CHECK(job->newest().members == stay);
    CHECK(job->newest().generation == before.generation + 1);
    auto ending = end_well(job, &all, lost);
    co_await ending;
}

/// The first that takes the place in the empty register is a host that knows nothing.
task<void> lose_all_to_a_stranger(hosts_job* job) {
    scope all;
    for (const auto* name : {"a", "b"}) begin(job, &all, name, job->register_of(name));
    auto first = until(job, [&] { return !job->views.empty(); });
    co_await first;
    auto meeting = until(job, [&] { return job->newest().members.size() == 2; });
    co_await meeting;
    const auto before = job->newest();
    const auto lost = host_of_author(before);
    auto training = sleep_for(500ms); // in which the other host hears of the view
    co_await training;
    job->powers[lost].request();
    job->network.crash(lost);
    job->lost.lose_all();
    begin(job, &all, "c", job->register_of("c"));
    auto next = within(8s, [&] { return has(job->newest(), "c"); });
    const bool next_came = co_await next;
    CHECK(next_came);
    INFO(job->story());
    for (const auto& m : before.members)
        if (m.host != lost)
            CHECK(std::find(job->newest().members.begin(), job->newest().members.end(), m) !=
                  job->newest().members.end());
    CHECK(job->newest().generation > before.generation);
    auto ending = end_well(job, &all, lost);
    co_await ending;
}

/// Neither the register nor the other hosts hear it, for longer than its lease.
task<void> cut_the_coordinator_off(hosts_job* job) {
    scope all;
    auto beginning = begin_three(job, &all);
    co_await beginning;
    const auto before = job->newest();
    const auto cut = host_of_author(before);
    for (const auto* other : {"a", "b", "c"})
        if (cut != other) job->network.partition(cut, other);
    job->lost.cut.insert(cut);
    auto lease = sleep_for(3s);
    co_await lease;
    job->lost.coordinator = {};
    job->lost.changed.wake_all();
    auto going_on = within(5s, [&] { return job->newest().author != before.author; });
    const bool going_on_came = co_await going_on;
    CHECK(going_on_came);
    auto later = sleep_for(2s);
    co_await later;
    job->network.heal_all();
    job->lost.heal();
    auto back = within(8s, [&] { return job->newest().members.size() == 3; });
    const bool back_came = co_await back;
    CHECK(back_came);
    INFO(job->story());
    CHECK(std::none_of(before.members.begin(), before.members.end(), [&](const view_member& old) {
        return old.host == cut &&
               std::find(job->newest().members.begin(), job->newest().members.end(), old) !=
                   job->newest().members.end();
    }));
    auto ending = end_well(job, &all, "");
    co_await ending;
}

/// Another etcd stands in the place of the first.
task<void> lose_the_register_for_good(hosts_job* job) {
    scope all;
    auto beginning = begin_three(job, &all);
    co_await beginning;
    job->lost.says_no = error(errc::mismatch, "it is of another cluster");
    job->lost.changed.wake_all();
    auto joined = all.join();
    co_await joined;
    for (const auto* name : {"a", "b", "c"}) {
        INFO(name);
        const auto& end = job->ends[name];
        REQUIRE((end && end->has_value() && (*end)->failure));
        CHECK((*end)->failure->code() == errc::peer_lost); // no mistake of the one who started it
        CHECK((*end)->failure->cause().find("another cluster") != std::string::npos);
        CHECK(job->children[name]->running().empty());
    }
}

/// It reaches neither the coordinator nor the register, for longer than a state is kept.
task<void> cut_a_host_off_for_long(hosts_job* job) {
    scope all;
    auto beginning = begin_three(job, &all);
    co_await beginning;
    const std::string cut = host_of_author(job->newest()) == "a" ? "b" : "a";
    for (const auto* other : {"a", "b", "c"})
        if (cut != other) job->network.partition(cut, other);
    job->lost.cut.insert(cut);
    auto waiting = within(4s, [&] { return job->children[cut]->running().empty(); });
    const bool waiting_came = co_await waiting;
    CHECK_FALSE(waiting_came);
    auto ended = within(5s, [&] { return job->children[cut]->running().empty(); });
    const bool ended_came = co_await ended;
    CHECK(ended_came);
    job->network.heal_all();
    job->lost.heal();
    auto back = within(8s, [&] { return has(job->newest(), cut); });
    const bool back_came = co_await back;
    CHECK(back_came);
    auto ending = end_well(job, &all, "");
    co_await ending;
}

/// The register says that the others go on; the coordinator is not reached.
task<void> cut_a_host_off_from_hosts(hosts_job* job) {
    scope all;
    auto beginning = begin_three(job, &all);
    co_await beginning;
    const std::string cut = host_of_author(job->newest()) == "a" ? "b" : "a";
    for (const auto* other : {"a", "b", "c"})
        if (cut != other) job->network.partition(cut, other);
    auto losing = within(5s, [&] { return !has(job->newest(), cut); });
    const bool losing_came = co_await losing;
    CHECK(losing_came);
    auto ended = within(5s, [&] { return job->children[cut]->running().empty(); });
    const bool ended_came = co_await ended;
    CHECK(ended_came);
    job->network.heal_all();
    auto back = within(8s, [&] { return has(job->newest(), cut); });
    const bool back_came = co_await back;
    CHECK(back_came);
    auto ending = end_well(job, &all, "");
    co_await ending;
}

/// Others than supervisors of this release at the coordinator's door.
task<void> knock_wrongly(hosts_job* job) {
    scope all;
    begin(job, &all, "a", nullptr);
    auto meeting = until(job, [&] { return !job->views.empty(); });
    co_await meeting;
    const auto door = net::address::sim("a", 700);
    job->plans["b"] = job->usual;
    auto how = skein::spmd::detail::host_link(job->options("b"));
    auto connecting = net::connection::connect(job->network.host("b"), door, how);
    const auto link = co_await connecting;
    const auto way = net::requests::over(link);
    const auto member = job->newest().members.front();
    const skein::spmd::detail::keeper_started early{member.id, 7};
    way->tell(early); // and has not said hello
    auto ending = link->wait_closed();
    co_await ending;
    CHECK(link->failure());
    auto closing = way->close();
    co_await closing;

    how.self.purpose = "elastic-host";
    auto older = as_result(net::connection::connect(job->network.host("b"), door, how));
    const auto refused = co_await older;
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code() == errc::mismatch);

    begin(job, &all, "b", nullptr);
    auto joining = until(job, [&] { return has(job->newest(), "b"); });
    co_await joining;
    CHECK(has(job->newest(), "a"));
    CHECK(job->newest().members.front() == member); // with its pid
    auto finishing = finish(job, &all);
    co_await finishing;
    for (const auto& [name, end] : job->ends) CHECK((end && end->has_value()));
}

void in_job(task<void> (*what)(hosts_job*), time_span pause_limit = job_times().pause_limit) {
    hosts_job job;
    job.pause_limit = pause_limit;
    job.loop.run(what(&job));
}

} // namespace

TEST_CASE(
    "a register that loses all of it gets the view that follows the newest one, with the same "
    "workers") {
    in_job(&lose_the_register);
}

TEST_CASE("a view that was deleted is no view less: the next one follows it") {
    in_job(&lose_the_view_alone);
}

TEST_CASE("a new host that finds an empty register goes on from what the others know") {
    in_job(&lose_all_to_a_stranger);
}

TEST_CASE("a coordinator that was cut off for longer than its lease comes back as a host") {
    in_job(&cut_the_coordinator_off);
}

TEST_CASE("a register that says no for good ends the job at all hosts, with what it says") {
    in_job(&lose_the_register_for_good);
}

TEST_CASE("who says anything before hello, or is of an older release, has no part in a job") {
    in_job(&knock_wrongly);
}

TEST_CASE("a host that reaches nobody keeps its workers' state for as long as a job pauses") {
    in_job(&cut_a_host_off_for_long, 6s);
}

TEST_CASE("a host that others go on without ends its workers before it reaches them again") {
    in_job(&cut_a_host_off_from_hosts);
}

TEST_CASE("another host takes over when the coordinator is lost, and the workers go on") {
    in_job(&lose_the_coordinator);
}

TEST_CASE("a host that is cut off is lost within a second, and comes back as a new one") {
    in_job(&cut_a_host_off);
}

} // namespace elastic_host_test
