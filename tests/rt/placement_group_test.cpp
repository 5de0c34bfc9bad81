// SPDX-License-Identifier: Apache-2.0
#include <tests/rt/apps.hpp>
#include <tests/rt/local_pool.hpp>

#include <skein/core/timeout.hpp>
#include <skein/rt/placement_group.hpp>

#include <algorithm>
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

} // namespace placement_group_test
