// SPDX-License-Identifier: Apache-2.0
#include <tests/apps/apps.hpp>
#include <tests/apps/local_pool.hpp>

#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/rt/placement_group.hpp>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace placement_group_test {

using namespace skein;
using namespace rt_test;
using namespace std::chrono_literals;

static_assert(std::is_trivially_destructible_v<location>); // also in an expression with co_await

std::string gpus_here() {
    const char* gpus = std::getenv("CUDA_VISIBLE_DEVICES");
    return gpus != nullptr ? gpus : "all";
}
struct member {
    std::string gpus() { return gpus_here(); }
    long pid() { return ::getpid(); }
};

template <class T>
task<error> failure_of(task<T> work) {
    auto asked = as_result(std::move(work));
    auto outcome = co_await asked;
    REQUIRE_FALSE(outcome);
    co_return outcome.error();
}

TEST_CASE("tasks and actors of a group have the room of their bundles",
          "[W9][O12][G1][rt][placement_group]") {
    pool p(with_resources(2, "gpu=2,ssd=1"));
    p.run([](pool& self) -> task<void> {
        placement_group group({"gpu=1", "gpu=1,ssd=1"}, group_strategy::strict_pack);
        CHECK(group.size() == 2);
        co_await group.ready();
        CHECK(group.is_placed());
        auto first = remote<&gpus_here>.with({.cpus = 0, .gpus = 1, .on = group.bundle(0)})();
        auto a = co_await actor<member>.with({.gpus = 1, .on = group.bundle(1)})();
        auto second = a.call<&member::gpus>();
        const auto x = co_await first;
        const auto y = co_await second;
        CHECK(x != y);
        CHECK((x == "0" || x == "1"));
        // Both gpus are the group's: another task waits for its end.
        auto outside = remote<&gpus_here>.with({.gpus = 1})();
        auto inside = remote<&gpus_here>.with({.cpus = 0, .gpus = 1, .on = group})();
        const auto again = co_await inside;
        CHECK(again == x);
        CHECK_FALSE(outside.ready());
        co_await group.remove();
        CHECK_FALSE(group.is_placed());
        const auto after = co_await outside;
        CHECK((after == "0" || after == "1"));
        auto called = failure_of(as_task(a.call<&member::gpus>()));
        const auto gone = co_await called;
        INFO(gone.what());
        CHECK(gone.code() == errc::closed);
        CHECK(contains(gone.what(), "was removed"));
        auto late = failure_of(
            as_task(remote<&twice>.with({.cpus = 0, .gpus = 1, .on = group.bundle(0)})(1)));
        const auto refused = co_await late;
        CHECK(contains(refused.what(), "was removed"));
        CHECK(self.workers.pids().size() <= 3);
    });
}

TEST_CASE("a group lasts as long as somebody holds it", "[G3][rt][placement_group]") {
    pool p(with_resources(1, "ssd=1"));
    p.run([](pool&) -> task<void> {
        ref<int> in_first;
        {
            placement_group first({"ssd=1"});
            in_first = remote<&later>.with({.cpus = 0, .on = first})(1, 5);
        }
        placement_group second({"ssd=1"}); // waits for the end of the task
        auto in_second = remote<&twice>.with({.cpus = 0, .on = second})(2);
        const int one = co_await in_first;
        const int four = co_await in_second;
        CHECK(one == 1);
        CHECK(four == 4);
        auto a = co_await actor<member>.with({.resources = "ssd=1", .on = second})();
        second = {};
        auto alive = a.call<&member::pid>();
        const long pid = co_await alive;
        CHECK(pid > 0);
        placement_group third({"ssd=1"});
        kill(a);
        co_await third.ready();
        // Many, one after the other, leave nothing behind.
        third = {};
        for (int i = 0; i < 20; ++i) {
            placement_group one_of_many({"ssd=1"});
            auto r = remote<&twice>.with({.cpus = 0, .on = one_of_many})(i);
            const int got = co_await r;
            CHECK(got == 2 * i);
        }
    });
}

TEST_CASE("the cores of a group are lent by the common workers, and come back",
          "[G1][G2][rt][placement_group]") {
    pool p(options(2));
    p.run([](pool& self) -> task<void> {
        const int all = std::max(2, self.children.resources().cores);
        std::vector<std::string> bundles(static_cast<std::size_t>(all), "cpu=1");
        placement_group group(bundles, group_strategy::spread);
        co_await group.ready();
        auto common = remote<&twice>(1);
        std::vector<ref<int>> inside;
        for (std::size_t b = 0; b < group.size(); ++b)
            inside.push_back(remote<&twice>.with({.on = group.bundle(b)})(static_cast<int>(b)));
        for (std::size_t b = 0; b < inside.size(); ++b) {
            const int got = co_await inside[b];
            CHECK(got == 2 * static_cast<int>(b));
        }
        CHECK_FALSE(common.ready());
        // A task that waits for others gives its core to them.
        auto waits = remote<&nested>.with({.on = group.bundle(0)})(3);
        const int seven = co_await waits;
        CHECK(seven == 7);
        group = {};
        const int two = co_await common;
        CHECK(two == 2);
    });
}

TEST_CASE("what cannot be in a group is refused with what is wrong",
          "[W9][G2][rt][placement_group]") {
    pool p(with_resources(1, "ssd=2"));
    p.run([](pool&) -> task<void> {
        const auto why = [](std::vector<std::string> bundles,
                            group_strategy how = group_strategy::pack) -> task<error> {
            placement_group group(std::move(bundles), how);
            auto failed = failure_of(group.ready());
            co_return co_await failed;
        };
        auto none = why({});
        const auto empty = co_await none;
        CHECK(contains(empty.what(), "0 bundles"));
        auto many = why(std::vector<std::string>(4097, "ssd=1"));
        const auto too_many = co_await many;
        CHECK(contains(too_many.what(), "4097 bundles"));
        auto bad = why({"ssd=1", "ssd"});
        const auto no_demand = co_await bad;
        INFO(no_demand.what());
        CHECK(contains(no_demand.what(), "bundle 1"));
        auto idle = why({""});
        const auto nothing = co_await idle;
        CHECK(contains(nothing.what(), "nothing"));
        auto large = why({"ssd=3"});
        const auto too_large = co_await large;
        INFO(too_large.what());
        CHECK(too_large.code() == errc::exhausted);
        CHECK(contains(too_large.what(), "ssd=3"));
        auto apart = why({"ssd=1", "ssd=1"}, group_strategy::strict_spread);
        const auto one_host = co_await apart;
        CHECK(contains(one_host.what(), "strict_spread"));

        placement_group group({"ssd=1", "ssd=1,memory=1MiB"});
        auto misfit = failure_of(as_task(remote<&twice>.with({.on = group.bundle(0)})(1)));
        const auto no_cpu = co_await misfit;
        INFO(no_cpu.what());
        CHECK(no_cpu.code() == errc::invalid_argument);
        CHECK(contains(no_cpu.what(), "cpu=1"));
        CHECK(contains(no_cpu.what(), "bundle 0"));
        auto nowhere = failure_of(
            as_task(remote<&twice>.with({.cpus = 0, .resources = "ssd=2", .on = group})(1)));
        const auto no_bundle = co_await nowhere;
        CHECK(contains(no_bundle.what(), "no bundle"));
        auto beyond = failure_of(as_task(remote<&twice>.with({.on = group.bundle(2)})(1)));
        const auto no_such = co_await beyond;
        CHECK(contains(no_such.what(), "has no bundle 2"));
        auto nobody = failure_of(as_task(remote<&twice>.with({.on = placement_group()})(1)));
        const auto no_group = co_await nobody;
        CHECK(contains(no_group.what(), "empty placement_group"));
        auto actor_too = failure_of(actor<member>.with({.gpus = 1, .on = group.bundle(1)})());
        const auto no_gpu = co_await actor_too;
        CHECK(contains(no_gpu.what(), "gpu=1"));
    });
}

TEST_CASE("tasks that wait for a group that is removed fail, those that run end",
          "[G4][rt][placement_group]") {
    pool p(with_resources(1, "ssd=1"));
    p.run([](pool&) -> task<void> {
        placement_group group({"ssd=1"});
        auto runs = remote<&later>.with({.cpus = 0, .resources = "ssd=1", .on = group})(1, 50);
        auto waits =
            remote<&twice>.with({.cpus = 0, .resources = "ssd=1", .on = group, .name = "late"})(2);
        auto other = placement_group({"ssd=1"});
        co_await group.ready();
        auto removing = group.remove();
        co_await removing;
        auto failed = failure_of(as_task(waits));
        const auto why = co_await failed;
        INFO(why.what());
        CHECK(why.code() == errc::closed);
        CHECK(contains(why.what(), "late did not run"));
        co_await other.ready();
    });
}

// ---- names, and groups in workers ---------------------------------------------------------------

task<std::string> look_up_and_use(std::string name) {
    auto found = get_placement_group(name);
    auto g = co_await found;
    co_await g.ready();
    auto by_handle = remote<&gpus_here>.with({.cpus = 0, .gpus = 1, .on = g.bundle(0)})();
    const auto one = co_await by_handle;
    auto by_name = remote<&gpus_here>.with({.cpus = 0, .gpus = 1, .on = group_named(name, 1)})();
    const auto two = co_await by_name;
    auto a = co_await actor<member>.with({.gpus = 1, .on = group_named(name, 0)})();
    auto asked = a.call<&member::gpus>();
    const auto three = co_await asked;
    co_return fmt::format("{} bundles: {} {} {}", g.size(), one, two, three);
}
task<void> remove_by_name(std::string name) {
    auto found = get_placement_group(name);
    auto g = co_await found;
    co_await g.remove();
}
/// A group of its own, with a task and an actor in it.
task<std::string> make_and_use(std::string name) {
    placement_group g({"gpu=1", "gpu=1"}, {.strategy = group_strategy::strict_pack, .name = name});
    auto early = remote<&gpus_here>.with({.cpus = 0, .gpus = 1, .on = g.bundle(0)})();
    auto a = co_await actor<member>.with({.gpus = 1, .on = g.bundle(1)})();
    const auto one = co_await early;
    auto asked = a.call<&member::gpus>();
    const auto two = co_await asked;
    co_await g.ready();
    auto by_name = remote<&gpus_here>.with({.cpus = 0, .gpus = 1, .on = group_named(name, 0)})();
    const auto three = co_await by_name;
    co_return fmt::format("{} {} {}", one != two, one == three, g.is_placed());
}
/// What becomes of one that is not as it should be: told by ready(), and by what is put into it.
task<std::vector<std::string>> make_badly() {
    std::vector<std::string> said;
    const std::vector<placement_group> all{
        placement_group({"gpu=1"}, {.name = "taken"}),
        placement_group({"nonsense"}),
        placement_group({"gpu=1"}, {.get_if_exists = true}),
        placement_group({"gpu=1000"}),
    };
    for (const auto& g : all) {
        auto waits = as_result(g.ready());
        const auto ready = co_await waits;
        said.emplace_back(ready ? "ready" : ready.error().what());
        auto inside = as_result(as_task(remote<&twice>.with({.cpus = 0, .on = g})(1)));
        const auto ran = co_await inside;
        if (ran) said.emplace_back("it ran");
    }
    co_return said;
}
/// Holds a group.
struct group_space_server {
    placement_group mine;
    void make(std::string name) { mine = placement_group({"ssd=1"}, {.name = name}); }
    task<int> take_or_make(std::string name) {
        mine = placement_group({"cpu=0.5"}, {.name = name, .get_if_exists = true});
        co_await mine.ready();
        auto inside = remote<&twice>.with({.cpus = 0, .resources = "ssd=1", .on = mine})(2);
        co_return co_await inside;
    }
    task<void> remove() {
        auto removed = mine.remove();
        co_await removed;
    }
    task<int> take(std::string name) {
        auto found = get_placement_group(name);
        mine = co_await found;
        co_return static_cast<int>(mine.size());
    }
    void let_go() { mine = {}; }
};

TEST_CASE("a group has its name alone, and is found by it", "[G7][G8][rt][placement_group]") {
    pool p(with_resources(1, "ssd=2"));
    p.run([](pool&) -> task<void> {
        placement_group group({"ssd=1"}, {.name = "web+1"});
        co_await group.ready();
        auto found = get_placement_group("web+1");
        const auto same = co_await found;
        CHECK(same == group);
        auto inside = remote<&twice>.with({.cpus = 0, .on = group_named("web+1", 0)})(2);
        const int four = co_await inside;
        CHECK(four == 4);
        placement_group taken({"ssd=1"}, {.name = "web+1"});
        auto twice_there = failure_of(taken.ready());
        const auto already = co_await twice_there;
        CHECK(already.code() == errc::already_exists);
        CHECK(contains(already.what(), "\"web+1\""));
        placement_group once({"ssd=5"}, {.name = "web+1", .get_if_exists = true});
        CHECK(once == group);
        auto missing = failure_of(get_placement_group("db"));
        const auto none = co_await missing;
        CHECK(none.code() == errc::not_found);
        CHECK(contains(none.what(), "there are: \"web+1\""));
        auto nowhere = failure_of(as_task(remote<&twice>.with({.on = group_named("db")})(1)));
        const auto no_place = co_await nowhere;
        CHECK(no_place.code() == errc::not_found);
        placement_group nameless({"ssd=1"}, {.get_if_exists = true});
        auto no_name = failure_of(nameless.ready());
        const auto invalid = co_await no_name;
        CHECK(invalid.code() == errc::invalid_argument);
        // A name is free with the end of its group, also when nobody has removed it.
        co_await group.remove();
        placement_group next({"ssd=1"}, {.name = "web+1"});
        co_await next.ready();
        next = {};
        placement_group last({"ssd=1"}, {.name = "web+1"});
        co_await last.ready();
    });
}

TEST_CASE("a worker finds a group by its name and puts tasks and actors into it",
          "[G8][G9][rt][placement_group]") {
    pool p(with_resources(2, "gpu=2"));
    p.run([](pool&) -> task<void> {
        placement_group group({"gpu=1", "gpu=1"}, {.name = "both"});
        auto asked = remote<&look_up_and_use>("both");
        const auto said = co_await asked;
        CHECK((said == "2 bundles: 0 1 0" || said == "2 bundles: 1 0 1"));
        auto unknown = failure_of(as_task(remote<&look_up_and_use>("neither")));
        const auto none = co_await unknown;
        CHECK(none.code() == errc::not_found);
        CHECK(contains(none.what(), "\"both\""));
        auto removing = remote<&remove_by_name>("both");
        co_await removing;
        auto over = failure_of(group.ready());
        const auto removed = co_await over;
        CHECK(removed.code() == errc::closed);
        auto gone = failure_of(get_placement_group("both"));
        const auto no_more = co_await gone;
        CHECK(no_more.code() == errc::not_found);
        placement_group other({"gpu=2"}); // all is free
        co_await other.ready();
    });
}

task<int> wait_for_all_cores(std::string name) {
    auto found = get_placement_group(name);
    auto g = co_await found;
    co_await g.ready();
    co_return static_cast<int>(g.size());
}

TEST_CASE("a task that waits for its group leaves its core to it", "[G9][rt][placement_group]") {
    pool p(options(1));
    p.run([](pool& self) -> task<void> {
        const int all = std::max(1, self.children.resources().cores);
        auto first = remote<&twice>(1);
        (void)co_await first;
        placement_group group({fmt::format("cpu={}", all)}, {.name = "all"});
        auto waits = remote<&wait_for_all_cores>.with({.cpus = all})("all");
        auto bounded = with_timeout(as_task(waits), 20s);
        const int one = co_await bounded;
        CHECK(one == 1);
    });
}

TEST_CASE("workers make groups", "[G7][G9][rt][placement_group]") {
    pool p(with_resources(2, "gpu=2,ssd=1"));
    p.run([](pool&) -> task<void> {
        for (int i = 0; i < 3;
             ++i) { // each has its room, and its name, when the one before has ended
            auto made = remote<&make_and_use>.with({.cpus = 0})("own");
            const auto said = co_await made;
            CHECK(said == "true true true");
        }
        placement_group taken({"ssd=1"}, {.name = "taken"});
        auto bad = remote<&make_badly>.with({.cpus = 0})();
        const auto said = co_await bad;
        REQUIRE(said.size() == 4);
        CHECK(contains(said[0], "there is a placement group named \"taken\" already"));
        CHECK(contains(said[1], "nonsense"));
        CHECK(contains(said[2], ".get_if_exists needs a .name"));
        CHECK(contains(said[3], "gpu"));
        placement_group all({"gpu=2"}); // nothing is left of any
        co_await all.ready();
    });
}

TEST_CASE("a group that a worker has made ends with its last handle, or its worker",
          "[G3][G9][rt][placement_group]") {
    pool p(with_resources(2, "ssd=1"));
    p.run([](pool& self) -> task<void> {
        for (const int how : {0, 1, 2}) {
            auto space_server = co_await actor<group_space_server>();
            auto made = space_server.call<&group_space_server::make>("kept");
            co_await made;
            auto found = get_placement_group("kept"); // the worker's reply has not overtaken it
            auto here = co_await found;
            co_await here.ready();
            CHECK(here.size() == 1);
            auto other = co_await actor<group_space_server>();
            auto same = other.call<&group_space_server::take_or_make>("kept");
            const int four = co_await same;
            CHECK(four == 4); // in the bundle that the first one has asked for
            auto let = other.call<&group_space_server::let_go>();
            co_await let;
            here = {};
            placement_group waits({"ssd=1"});
            auto soon = as_result(with_timeout(waits.ready(), 100ms));
            const auto early = co_await soon;
            CHECK_FALSE(early);
            if (how == 0) {
                auto last = space_server.call<&group_space_server::let_go>();
                co_await last;
            } else if (how == 1) {
                auto removed = space_server.call<&group_space_server::remove>();
                co_await removed;
            } else {
                for (const auto pid : std::vector<pid_t>(self.workers.pids())) ::kill(pid, SIGKILL);
            }
            co_await waits.ready();
        }
    });
}

task<void> wait_and_count(placement_group g, int* refused) {
    auto waits = as_result(g.ready());
    const auto done = co_await waits;
    if (!done && done.error().code() == errc::exhausted) ++*refused;
}
/// Waits so often at once for a group that has no place, until so many are refused.
task<int> wait_often(std::string name, int times, int until) {
    auto found = get_placement_group(name);
    const auto g = co_await found;
    int refused = 0;
    scope all;
    for (int i = 0; i < times; ++i) all.spawn(wait_and_count(g, &refused));
    while (refused < until) co_await sleep_for(1ms);
    all.cancel();
    auto ended = as_result(all.join());
    (void)co_await ended;
    co_return refused;
}

TEST_CASE("so many waits for one group are kept, and no more", "[G9][rt][placement_group]") {
    pool p(options(1));
    p.run([](pool& self) -> task<void> {
        const int all = std::max(1, self.children.resources().cores);
        placement_group first({fmt::format("cpu={}", all)}, {.name = "first"});
        co_await first.ready();
        placement_group second({fmt::format("cpu={}", all)}, {.name = "second"});
        auto greedy = remote<&wait_often>.with({.cpus = 0})("second", 4'096 + 3, 3);
        auto bounded = with_timeout(as_task(greedy), 60s);
        const int refused = co_await bounded;
        CHECK(refused == 3);
        first = {};
        co_await second.ready();
    });
}

TEST_CASE("a group lasts as long as a worker holds it", "[G3][G8][rt][placement_group]") {
    pool p(with_resources(1, "ssd=1"));
    p.run([](pool& self) -> task<void> {
        for (const bool dies : {false, true}) {
            placement_group group({"ssd=1"}, {.name = "held"});
            auto space_server = co_await actor<group_space_server>();
            auto taken = space_server.call<&group_space_server::take>("held");
            const int size = co_await taken;
            CHECK(size == 1);
            auto again = space_server.call<&group_space_server::take>("held");
            (void)co_await again;
            group = {};
            auto inside = remote<&twice>.with({.cpus = 0, .on = group_named("held")})(2);
            const int four = co_await inside;
            CHECK(four == 4);
            placement_group waits({"ssd=1"});
            auto soon = as_result(with_timeout(waits.ready(), 100ms));
            const auto early = co_await soon;
            CHECK_FALSE(early);
            if (dies) {
                for (const auto pid : std::vector<pid_t>(self.workers.pids())) ::kill(pid, SIGKILL);
            } else {
                auto let = space_server.call<&group_space_server::let_go>();
                co_await let;
            }
            co_await waits.ready();
        }
    });
}

// ---- what is made in a group --------------------------------------------------------------------

task<std::string> child_gpus(bool outside) {
    call_options how;
    how.cpus = 0;
    how.gpus = 1;
    if (outside) how.on = anywhere;
    auto inner = remote<&gpus_here>.with(how)();
    co_return co_await inner;
}
task<int> deep(int levels) {
    if (levels == 0) co_return 0;
    auto inner = remote<&deep>(levels - 1);
    const int below = co_await inner;
    co_return below + 1;
}
task<int> nested_cpus(int cpus) {
    auto inner = remote<&twice>.with({.cpus = cpus})(1);
    co_return co_await inner;
}
task<std::string> child_actor() {
    auto made = co_await actor<member>.with({.gpus = 1})();
    auto asked = made.call<&member::gpus>();
    co_return co_await asked;
}

TEST_CASE("what tasks of a group make is in it if they say so", "[G10][rt][placement_group]") {
    pool p(with_resources(2, "gpu=2"));
    p.run([](pool&) -> task<void> {
        placement_group group({"cpu=1,gpu=1"}, {.name = "whole"});
        co_await group.ready();
        auto mine = remote<&gpus_here>.with({.cpus = 0, .gpus = 1, .on = group})();
        const auto own = co_await mine;
        placement_group rest({"gpu=1"}); // the other gpu is taken
        co_await rest.ready();
        auto inside = remote<&child_gpus>.with({.on = group.with_children()})(false);
        const auto inherited = co_await inside;
        CHECK(inherited == own);
        auto by_name =
            remote<&child_gpus>.with({.on = group_named("whole", 0).with_children()})(false);
        const auto named = co_await by_name;
        CHECK(named == own);
        auto actors = remote<&child_actor>.with({.on = group.with_children()})();
        const auto lives = co_await actors;
        CHECK(lives == own);
        // Each level waits for the next one, in the only core of the bundle.
        auto levels = remote<&deep>.with({.on = group.bundle(0).with_children()})(4);
        const int four = co_await levels;
        CHECK(four == 4);
        auto out = remote<&child_gpus>.with({.on = group.with_children()})(true);
        auto not_captured = remote<&child_gpus>.with({.on = group})(false);
        auto soon = as_result(with_timeout(as_task(out), 100ms));
        const auto early = co_await soon;
        CHECK_FALSE(early);
        rest = {};
        const auto other = co_await out;
        CHECK(other != own);
        const auto third = co_await not_captured;
        CHECK(third != own);
        auto too_much =
            failure_of(as_task(remote<&nested_cpus>.with({.on = group.with_children()})(2)));
        const auto misfit = co_await too_much;
        INFO(misfit.what());
        CHECK(contains(misfit.what(), "no bundle"));
    });
}

} // namespace placement_group_test
