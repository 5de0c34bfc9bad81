// SPDX-License-Identifier: Apache-2.0
// Where tasks and actors go on a cluster: over the nodes in turn, and where an actor is.
#include <catch2/catch_test_macros.hpp>

#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/rt/actor.hpp>
#include <skein/rt/placement_group.hpp>
#include <skein/rt/remote.hpp>
#include <skein/rt/runtime_context.hpp>
#include <tests/support/sim_nodes.hpp>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

using namespace skein;
using namespace std::chrono_literals;

namespace {

std::string placed_host() { return runtime_context().host; }

task<std::string> placed_for(int ms) {
    co_await sleep_for(std::chrono::milliseconds(ms));
    co_return runtime_context().host;
}

struct placed_resident {
    std::string host() { return runtime_context().host; }
};

/// A worker's own task, where an actor is that it was given.
task<std::string> placed_by_worker(actor_handle<placed_resident> a) {
    auto there = remote<&placed_host>.with({.on = a})();
    auto host = co_await there;
    auto made = co_await actor<placed_resident>.with({.on = a})();
    auto asked = made.call<&placed_resident::host>();
    auto other = co_await asked;
    co_return host == other ? host : host + " and " + other;
}
task<std::string> spread_by_worker(int n) {
    std::vector<ref<std::string>> all;
    for (int i = 0; i < n; ++i) all.push_back(remote<&placed_for>.with({.on = spread})(500));
    std::string hosts;
    for (const auto& one : all) hosts += co_await one;
    co_return hosts;
}

/// From a worker: in a group that it finds by name.
task<std::string> placed_by_name(std::string name, int bundle) {
    auto found = get_placement_group(name);
    auto group = co_await found;
    co_await group.ready();
    auto by_handle =
        remote<&placed_host>.with({.on = group.bundle(static_cast<std::size_t>(bundle))})();
    auto one = co_await by_handle;
    auto by_name = remote<&placed_host>.with({.on = group_named(name, bundle)})();
    auto two = co_await by_name;
    co_return one == two ? one : one + " and " + two;
}
task<void> removes_by_name(std::string name) {
    auto found = get_placement_group(name);
    auto group = co_await found;
    co_await group.remove();
}
/// Looks so often whether the group has its places, and works then.
task<std::string> gives_up_waiting(std::string name, int times, int ms) {
    auto found = get_placement_group(name);
    auto group = co_await found;
    for (int i = 0; i < times; ++i) {
        auto soon = as_result(with_timeout(group.ready(), 100ms));
        const auto early = co_await soon;
        if (early) co_return "placed";
    }
    co_await sleep_for(std::chrono::milliseconds(ms));
    co_return "in vain";
}
task<void> waits_by_name(std::string name) {
    auto found = get_placement_group(name);
    auto group = co_await found;
    co_await group.ready();
}
/// A worker's own actors that ask for nothing.
task<std::vector<actor_handle<placed_resident>>> residents_of_worker(
    actor_handle<placed_resident> a) {
    std::vector<actor_handle<placed_resident>> all;
    auto one = co_await actor<placed_resident>.with({.on = anywhere})();
    all.push_back(std::move(one));
    auto two = co_await actor<placed_resident>.with({.on = a})();
    all.push_back(std::move(two));
    co_return all;
}
/// Its children's children, and where they are.
task<std::string> placed_below(int levels) {
    const auto here = runtime_context().host;
    if (levels == 0) co_return here;
    auto left = remote<&placed_below>(levels - 1);
    auto right = remote<&placed_below>(levels - 1);
    const auto a = co_await left;
    const auto b = co_await right;
    co_return a == here&& b == here ? here : fmt::format("{} ({} {})", here, a, b);
}

task<std::vector<std::string>> values_of(std::vector<ref<std::string>> all) {
    std::vector<std::string> out;
    for (const auto& one : all) {
        auto value = co_await one;
        out.push_back(std::move(value));
    }
    co_return out;
}
std::map<std::string, int> counted(const std::vector<std::string>& all) {
    std::map<std::string, int> times;
    for (const auto& one : all) ++times[one];
    return times;
}
std::size_t placed_at(const test::sim_nodes& c, const std::string& host) {
    for (std::size_t n = 0; n < c.nodes(); ++n)
        if (const_cast<test::sim_nodes&>(c).at(n).host == host) return n;
    return c.nodes();
}
task<void> all_workers(test::sim_nodes::driver* d, std::size_t n) {
    auto first = remote<&placed_host>();
    (void)co_await first;
    while (d->self.workers() < n) co_await sleep_for(10ms);
}
template <class T>
task<error> placed_failure(task<T> work) {
    auto asked = as_result(std::move(work));
    auto outcome = co_await asked;
    REQUIRE_FALSE(outcome);
    co_return outcome.error();
}

/// Workers that know tasks to be long get none ahead of time: one task for each worker.
task<void> know_tasks_to_be_long(int workers) {
    std::vector<ref<std::string>> all;
    for (int i = 0; i < workers; ++i) all.push_back(remote<&placed_for>(100));
    auto done = values_of(std::move(all));
    (void)co_await done;
}

/// From a worker: the second time there is nothing left to remove.
task<int> removed_twice(std::string name) {
    auto found = get_placement_group(name);
    auto group = co_await found;
    for (int i = 0; i < 2; ++i) {
        auto removed = group.remove();
        co_await removed;
    }
    co_return 2;
}

/// Asks for a group, or an actor, and keeps neither; the call may have too little time for the
/// answer.
struct placed_asker {
    task<void> find(std::string name, bool group) {
        if (group) {
            auto found = get_placement_group(name);
            (void)co_await found;
        } else {
            auto found = get_actor<placed_resident>(name);
            (void)co_await found;
        }
    }
};

} // namespace

TEST_CASE("an answer that comes after its deadline holds nothing", "[G3][G8][cluster][placement]") {
    test::in_cluster(49, 2, [](test::sim_nodes& c, test::sim_nodes::driver& d) -> task<void> {
        auto all = all_workers(&d, 4);
        co_await all;
        for (const bool of_group : {true, false}) {
            auto asker = co_await actor<placed_asker>.with({.on = node_named(c.at(1).host)})();
            placement_group group({"cpu=1"}, {.name = "brief"});
            co_await group.ready();
            auto one = actor<placed_resident>.with({.cpus = 1, .on = group, .name = "brief"})();
            auto made = co_await one;
            int in_time = 0, too_late = 0;
            for (auto limit = 100us; in_time < 5; limit += 100us) {
                auto asked = as_result(as_task(remote<&placed_asker::find>.with(
                    {.deadline = limit})(asker, std::string("brief"), of_group)));
                const auto found = co_await asked;
                ++(found ? in_time : too_late);
                if (!found) CHECK(found.error().code() == errc::timeout);
            }
            CHECK(too_late > 5);
            made = {};
            group = {};
            placement_group whole({"cpu=2", "cpu=2"}, group_strategy::strict_spread);
            auto free = with_timeout(whole.ready(), 20s); // all cpus but those that somebody holds
            co_await free;
        }
    });
}

TEST_CASE("spread tasks take the nodes in turn", "[W11][cluster][placement]") {
    test::in_cluster(41, 3, [](test::sim_nodes&, test::sim_nodes::driver& d) -> task<void> {
        auto there = all_workers(&d, 6);
        co_await there;
        std::vector<ref<std::string>> all;
        for (int i = 0; i < 6; ++i) all.push_back(remote<&placed_for>.with({.on = spread})(500));
        auto asked = values_of(std::move(all));
        const auto hosts = co_await asked;
        CHECK(std::set<std::string>(hosts.begin(), hosts.begin() + 3).size() == 3);
        for (const auto& [host, times] : counted(hosts)) CHECK(times == 2);
        // One after the other, too; and beside others that hold cores.
        std::vector<std::string> later;
        auto beside = remote<&placed_for>(60'000);
        for (int i = 0; i < 9; ++i) {
            auto one = remote<&placed_host>.with({.on = spread})();
            auto host = co_await one;
            later.push_back(std::move(host));
        }
        for (const auto& [host, times] : counted(later)) CHECK(times == 3);
        CHECK(counted(later).size() == 3);
        beside.cancel();
        // Many short ones use all there is.
        std::vector<ref<std::string>> many;
        for (int i = 0; i < 600; ++i) many.push_back(remote<&placed_host>.with({.on = spread})());
        auto done = values_of(std::move(many));
        const auto where = co_await done;
        CHECK(counted(where).size() == 3);
        for (const auto& [host, times] : counted(where)) CHECK(times > 100);
    });
}

TEST_CASE("tasks that workers spread, and those with workers of their own",
          "[W11][cluster][placement]") {
    test::in_cluster(42, 3, [](test::sim_nodes& c, test::sim_nodes::driver& d) -> task<void> {
        auto there = all_workers(&d, 6);
        co_await there;
        auto asked = remote<&spread_by_worker>.with({.cpus = 0})(6);
        const auto hosts = co_await asked;
        for (std::size_t n = 0; n < c.nodes(); ++n) {
            const auto& host = c.at(n).host;
            const auto first = hosts.find(host);
            REQUIRE(first != hosts.npos);
            CHECK(hosts.find(host, first + 1) != hosts.npos);
        }
        std::vector<ref<std::string>> all;
        for (int i = 0; i < 3; ++i)
            all.push_back(remote<&placed_for>.with({.memory = 1, .on = spread})(5000));
        auto own = values_of(std::move(all));
        const auto places = co_await own;
        CHECK(counted(places).size() == 3);
    });
}

TEST_CASE("spread actors are on as many nodes as there are", "[W11][O12][cluster][placement]") {
    test::in_cluster(43, 3, [](test::sim_nodes&, test::sim_nodes::driver& d) -> task<void> {
        auto there = all_workers(&d, 6);
        co_await there;
        for (const int cpus :
             {0, 1}) { // the program holds all cores, which one has to be given back for
            std::vector<actor_handle<placed_resident>> all;
            std::vector<ref<std::string>> hosts;
            for (int i = 0; i < 3; ++i) {
                auto made = co_await actor<placed_resident>.with({.cpus = cpus, .on = spread})();
                hosts.push_back(made.call<&placed_resident::host>());
                all.push_back(std::move(made));
            }
            auto asked = values_of(std::move(hosts));
            const auto where = co_await asked;
            INFO("cpus " << cpus << ": " << where[0] << " " << where[1] << " " << where[2]);
            CHECK(counted(where).size() == 3);
        }
    });
}

TEST_CASE("what is to run where an actor is goes there, also from a worker",
          "[W12][O12][cluster][placement]") {
    test::in_cluster(44, 3, [](test::sim_nodes& c, test::sim_nodes::driver& d) -> task<void> {
        auto there = all_workers(&d, 6);
        co_await there;
        for (int i = 0; i < 3; ++i) {
            auto a = co_await actor<placed_resident>.with({.on = node_named(c.at(2 - i).host)})();
            auto said = a.call<&placed_resident::host>();
            const auto home = co_await said;
            CHECK(home == c.at(2 - i).host);
            std::vector<ref<std::string>> all;
            for (int k = 0; k < 5; ++k) all.push_back(remote<&placed_host>.with({.on = a})());
            all.push_back(remote<&placed_host>.with({.cpus = 0, .on = a})());
            all.push_back(remote<&placed_host>.with({.memory = 1, .on = a})());
            all.push_back(remote<&placed_by_worker>.with({.cpus = 0})(a));
            auto asked = values_of(std::move(all));
            const auto hosts = co_await asked;
            for (const auto& host : hosts) CHECK(host == home);
            auto b = co_await actor<placed_resident>.with({.on = a})();
            auto second = b.call<&placed_resident::host>();
            const auto other = co_await second;
            CHECK(other == home);
        }
    });
}

TEST_CASE("what is to run where an actor is follows it to another node",
          "[W12][cluster][placement]") {
    test::in_cluster(45, 3, [](test::sim_nodes& c, test::sim_nodes::driver& d) -> task<void> {
        auto there = all_workers(&d, 6);
        co_await there;
        // Made where it is spread to, so that it can be made again elsewhere.
        auto a = co_await actor<placed_resident>.with({.on = spread, .restarts = -1})();
        auto b = co_await actor<placed_resident>.with({.on = a, .restarts = -1})();
        auto said = a.call<&placed_resident::host>();
        const auto before = co_await said;
        std::vector<ref<std::string>> all;
        for (int i = 0; i < 12; ++i) all.push_back(remote<&placed_for>.with({.on = a})(20'000));
        co_await sleep_for(1s); // some run, others wait in line
        auto killed = c.kill_agent(c.at(placed_at(c, before)), true);
        co_await killed;
        co_await sleep_for(2s);
        for (int i = 0; i < 4; ++i) all.push_back(remote<&placed_host>.with({.on = a})());
        auto asked = values_of(std::move(all));
        const auto hosts = co_await asked;
        auto now = a.call<&placed_resident::host>();
        const auto after = co_await now;
        CHECK(after != before);
        for (const auto& host : hosts) CHECK(host == after);
        auto follows = b.call<&placed_resident::host>();
        const auto other = co_await follows;
        CHECK(other == after);
    });
}

TEST_CASE("a group can be removed twice in a worker", "[G9][cluster][placement]") {
    test::in_cluster(51, 1, [](test::sim_nodes&, test::sim_nodes::driver&) -> task<void> {
        placement_group group({"cpu=1"}, {.name = "g"});
        auto ready = group.ready();
        co_await ready;
        auto removed = remote<&removed_twice>("g");
        auto outcome = as_result(with_timeout(as_task(removed), 30s));
        const auto times = co_await outcome;
        REQUIRE(times);
        CHECK(*times == 2);
    });
}

TEST_CASE("a task whose worker has died runs again when those that stood before it have left",
          "[W12][cluster][placement]") {
    const auto body = [](test::sim_nodes& c, test::sim_nodes::driver& d) -> task<void> {
        auto there = all_workers(&d, 2);
        co_await there;
        auto known = know_tasks_to_be_long(2);
        co_await known;
        std::vector<ref<std::string>> all;
        auto a = co_await actor<placed_resident>();
        auto said = a.call<&placed_resident::host>();
        const auto home = co_await said;
        auto holds = remote<&placed_for>.with({.on = a})(60'000);
        co_await sleep_for(100ms);
        auto alone = remote<&placed_for>(2'000); // on the other node
        for (int i = 0; i < 3; ++i) all.push_back(remote<&placed_for>.with({.on = a})(10));
        co_await sleep_for(100ms);
        auto& other = *c.at(1 - placed_at(c, home)).children;
        other.kill(other.running().front().pid); // it may be its fault
        co_await sleep_for(10ms);
        kill(a);
        auto outcome = as_result(with_timeout(as_task(alone), 50s));
        const auto ran = co_await outcome;
        REQUIRE(ran);
        CHECK(*ran != home);
        const auto kept = co_await holds;
        CHECK(kept == home);
    };
    test::in_cluster(50, 2, body, 1);
}

TEST_CASE("what waits to hear where an actor is fails when that is lost before",
          "[W12][cluster][placement]") {
    const auto body = [](test::sim_nodes& c, test::sim_nodes::driver& d) -> task<void> {
        auto there = all_workers(&d, 1);
        co_await there;
        auto& on = *c.at(0).children;
        const auto shared = on.running().front().pid;
        c.network().block("head", "driver"); // the news of what is granted stays away
        auto a = co_await actor<placed_resident>.with({.memory = 1 << 20})();
        auto follows = remote<&placed_host>.with({.on = a})();
        co_await sleep_for(100ms);
        CHECK_FALSE(follows.ready());
        for (const auto& p : on.running())
            if (p.pid != shared) on.kill(p.pid);
        auto failed = placed_failure(as_task(follows));
        const auto why = co_await failed;
        INFO(why.what());
        CHECK(why.code() == errc::worker_lost);
        CHECK(std::string(why.what()).find("did not run") != std::string::npos);
        c.network().heal_all();
    };
    test::in_cluster(49, 1, body, 2, 1);
}

TEST_CASE("what is to run where an actor is that has ended fails, and says why",
          "[W12][cluster][placement]") {
    test::in_cluster(46, 2, [](test::sim_nodes& c, test::sim_nodes::driver& d) -> task<void> {
        auto there = all_workers(&d, 4);
        co_await there;
        auto known = know_tasks_to_be_long(4);
        co_await known;
        std::vector<ref<std::string>> all;
        auto a = co_await actor<placed_resident>();
        auto said = a.call<&placed_resident::host>();
        const auto home = co_await said;
        for (int i = 0; i < 4; ++i) all.push_back(remote<&placed_for>.with({.on = a})(10'000));
        co_await sleep_for(1s);
        kill(a);
        for (std::size_t i = 0; i < all.size(); ++i) {
            if (i < 2) { // these run
                auto ended = co_await all[i];
                CHECK(ended == home);
                continue;
            }
            auto failed = placed_failure(as_task(all[i]));
            const auto why = co_await failed;
            INFO(why.what());
            CHECK(why.code() == errc::not_found);
            CHECK(std::string(why.what()).find("did not run") != std::string::npos);
            CHECK(std::string(why.what()).find("was killed") != std::string::npos);
        }
        auto late = placed_failure(as_task(remote<&placed_host>.with({.on = a})()));
        const auto gone = co_await late;
        CHECK(gone.code() == errc::not_found);
        auto beside = placed_failure(actor<placed_resident>.with({.on = a})());
        const auto no_actor = co_await beside;
        CHECK(no_actor.code() == errc::not_found);
        auto empty = placed_failure(
            as_task(remote<&placed_host>.with({.on = actor_handle<placed_resident>()})()));
        const auto none = co_await empty;
        CHECK(none.code() == errc::invalid_argument);
        // One that is lost with its node takes along what waits for it.
        auto lost = co_await actor<placed_resident>.with({.on = node_named(home)})();
        std::vector<ref<std::string>> waiting;
        for (int i = 0; i < 6; ++i)
            waiting.push_back(remote<&placed_for>.with({.on = lost, .retries = 0})(60'000));
        co_await sleep_for(1s);
        auto killed = c.kill_agent(c.at(placed_at(c, home)), true);
        co_await killed;
        for (const auto& one : waiting) {
            auto failed = placed_failure(as_task(one));
            const auto why = co_await failed;
            INFO(why.what());
            CHECK(why.code() == errc::worker_lost);
        }
    });
}

TEST_CASE("workers put tasks into groups that they find by name, and end them",
          "[G8][G9][cluster][placement]") {
    test::in_cluster(47, 3, [](test::sim_nodes& c, test::sim_nodes::driver& d) -> task<void> {
        auto there = all_workers(&d, 6);
        co_await there;
        placement_group group({"cpu=1", "cpu=1"},
                              {.strategy = group_strategy::strict_spread, .name = "pair"});
        auto first = remote<&placed_by_name>("pair", 0); // not placed yet
        const auto one = co_await first;
        auto second = remote<&placed_by_name>("pair", 1);
        const auto two = co_await second;
        CHECK(one != two);
        CHECK(placed_at(c, one) < 3);
        CHECK(placed_at(c, two) < 3);
        // A node of it is lost: who waits in a worker hears when it has its places again.
        auto killed = c.kill_agent(c.at(placed_at(c, one)), true);
        co_await killed;
        co_await sleep_for(10s);
        auto again = remote<&placed_by_name>("pair", 0);
        const auto moved = co_await again;
        CHECK(moved != one);
        CHECK(moved != two);
        auto ended = remote<&removes_by_name>("pair");
        co_await ended;
        auto late = placed_failure(as_task(remote<&placed_host>.with({.on = group})()));
        const auto why = co_await late;
        CHECK(why.code() == errc::closed);
        auto unknown = placed_failure(as_task(remote<&placed_by_name>("pair", 0)));
        const auto none = co_await unknown;
        CHECK(none.code() == errc::not_found);
    });
}

TEST_CASE("what tasks of a group make stays on its nodes, in its room",
          "[G10][cluster][placement]") {
    test::in_cluster(48, 3, [](test::sim_nodes&, test::sim_nodes::driver& d) -> task<void> {
        auto there = all_workers(&d, 6);
        co_await there;
        placement_group group({"cpu=1"});
        co_await group.ready();
        auto home = remote<&placed_host>.with({.on = group})();
        const auto host = co_await home;
        // One core for fifteen tasks, each of which waits for two.
        auto tree = remote<&placed_below>.with({.on = group.with_children()})(3);
        const auto where = co_await tree;
        CHECK(where == host);
    });
}

TEST_CASE("who gives up waiting for a group has its core again", "[G9][cluster][placement]") {
    const auto body = [](test::sim_nodes&, test::sim_nodes::driver& d) -> task<void> {
        auto there = all_workers(&d, 1);
        co_await there;
        auto known =
            remote<&placed_for>(100); // a worker that knows tasks to be long gets none ahead
        (void)co_await known;
        placement_group taken({"memory=6GiB"});
        co_await taken.ready();
        placement_group late({"memory=6GiB"}, {.name = "late"});
        auto vain = remote<&gives_up_waiting>("late", 3, 10'000);
        co_await sleep_for(2s); // it works now
        CHECK_FALSE(vain.ready());
        auto next = remote<&placed_host>();
        (void)co_await next;
        CHECK(vain.ready());
        const auto said = co_await vain;
        CHECK(said == "in vain");
        auto waits = remote<&waits_by_name>("late");
        co_await sleep_for(1s);
        waits.cancel();
        auto failed = placed_failure(as_task(waits));
        const auto why = co_await failed;
        CHECK(why.code() == errc::cancelled);
        co_await taken.remove();
        co_await late.ready();
        auto now = remote<&gives_up_waiting>("late", 1, 0);
        const auto placed = co_await now;
        CHECK(placed == "placed");
    };
    test::in_cluster(50, 1, body, 2, 1);
}

TEST_CASE("an actor that asks for nothing shares a worker, wherever a worker wants it",
          "[M1][W12][cluster][placement]") {
    const auto body = [](test::sim_nodes& c, test::sim_nodes::driver& d) -> task<void> {
        auto there = all_workers(&d, 1);
        co_await there;
        auto a = co_await actor<placed_resident>();
        const auto before = c.processes();
        auto asked = remote<&residents_of_worker>.with({.cpus = 0})(a);
        const auto made = co_await asked;
        for (const auto& one : made) {
            auto said = one.call<&placed_resident::host>();
            const auto host = co_await said;
            CHECK(host == c.at(0).host);
        }
        CHECK(c.processes() == before);
    };
    test::in_cluster(51, 1, body, 2, 1);
}

TEST_CASE("calls that do not wait any more for an actor to be somewhere are forgotten",
          "[W12][cluster][placement]") {
    const auto body = [](test::sim_nodes& c, test::sim_nodes::driver& d) -> task<void> {
        auto there = all_workers(&d, 1);
        co_await there;
        c.network().block("head", "driver"); // the news of what is granted stays away
        auto a = co_await actor<placed_resident>.with({.memory = 1 << 20})();
        std::vector<ref<std::string>> all;
        for (int i = 0; i < 1000; ++i) {
            all.push_back(remote<&placed_host>.with({.on = a})());
            all.back().cancel();
        }
        std::size_t known = 0; // to others than this test
        for (const auto& one : all) known += one.state()->uses() > 1 ? 1 : 0;
        CHECK(known < 100);
        auto follows = remote<&placed_host>.with({.on = a})();
        CHECK_FALSE(follows.ready());
        c.network().heal_all();
        auto bounded = with_timeout(as_task(follows), 60s);
        const auto host = co_await bounded;
        CHECK(host == c.at(0).host);
    };
    test::in_cluster(52, 1, body, 2, 1);
}
