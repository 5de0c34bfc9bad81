// SPDX-License-Identifier: Apache-2.0
// Handles to placement groups in the arguments of calls.
#include <tests/apps/apps.hpp>
#include <tests/apps/local_pool.hpp>

#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/rt/placement_group.hpp>

#include <csignal>
#include <string>
#include <utility>
#include <vector>

namespace group_handles_test {

using namespace skein;
using namespace rt_test;
using namespace std::chrono_literals;

/// Waits for a group that it was given, and has something done in it.
task<int> use(placement_group g, int bundle) {
    co_await g.ready();
    auto inside = remote<&twice>.with({.cpus = 0, .resources = "ssd=1", .on = g.bundle(bundle)})(
        static_cast<int>(g.size()));
    co_return co_await inside;
}
/// Passes it on, at last to a task that uses it.
task<int> pass_on(placement_group g, int times) {
    if (times == 0) {
        auto used = use(g, 0);
        co_return co_await used;
    }
    auto next = remote<&pass_on>.with({.cpus = 0})(g, times - 1);
    co_return co_await next;
}
/// How it went.
task<std::string> ready_or_why(placement_group g) {
    auto waits = as_result(g.ready());
    const auto done = co_await waits;
    co_return done ? std::string("ready") : done.error().what();
}
placement_group given_back(placement_group g) { return g; }
bool is_none(placement_group g) { return !g && g.size() == 0; }

struct space_server {
    placement_group mine;
    space_server() = default;
    explicit space_server(placement_group g) : mine(std::move(g)) {}
    void take(placement_group g) { mine = std::move(g); }
    void let_go() { mine = {}; }
    task<void> find(std::string name) {
        auto found = get_placement_group(name);
        mine = co_await found;
    }
    task<int> use_mine() {
        auto used = use(mine, 0);
        co_return co_await used;
    }
    /// Makes one and passes it to another worker, by a direct call.
    task<int> make_for(actor_handle<space_server> other) {
        mine = placement_group({"ssd=1"});
        co_await mine.ready();
        auto given = other.call<&space_server::take>(mine);
        co_await given;
        mine = {};
        auto used = other.call<&space_server::use_mine>();
        co_return co_await used;
    }
    /// As often as that, with handles that come and go.
    task<int> pass_often(actor_handle<space_server> other, int times) {
        for (int i = 0; i < times; ++i) {
            auto given = other.call<&space_server::take>(mine);
            co_await given;
            auto let = other.call<&space_server::let_go>();
            co_await let;
        }
        auto used = use(mine, 0);
        co_return co_await used;
    }
};

task<std::string> too_early() {
    const placement_group g({"ssd=1"});
    auto given = as_result(as_task(remote<&ready_or_why>(g)));
    const auto got = co_await given;
    if (got) co_return "it ran";
    co_return std::string(to_string(got.error().code())) + ": " + got.error().what();
}

task<bool> is_free(std::string what) {
    const placement_group probe({what});
    auto soon = as_result(with_timeout(probe.ready(), 100ms));
    const auto done = co_await soon;
    co_return done.has_value();
}

TEST_CASE("a handle to a group is an argument", "[G11][rt][placement_group]") {
    pool p(with_resources(2, "ssd=2"));
    p.run([](pool&) -> task<void> {
        const placement_group group({"ssd=1", "ssd=1"});
        auto early = remote<&use>.with({.cpus = 0})(group, 1); // it need not have places
        const int four = co_await early;
        CHECK(four == 4);
        auto deep = remote<&pass_on>.with({.cpus = 0})(group, 3);
        const int same = co_await deep;
        CHECK(same == 4);
        auto none = remote<&is_none>(placement_group());
        const bool empty = co_await none;
        CHECK(empty);
        auto removed = group.remove();
        co_await removed;
        auto late = remote<&ready_or_why>(group);
        const auto why = co_await late;
        CHECK(contains(why, "was removed"));
        const placement_group bad({"nonsense"});
        auto never = remote<&ready_or_why>(bad);
        const auto what = co_await never;
        CHECK(contains(what, "nonsense"));
    });
}

TEST_CASE("who was given a group holds it", "[G3][G11][rt][placement_group]") {
    pool p(with_resources(2, "ssd=1"));
    p.run([](pool& self) -> task<void> {
        for (const bool dies : {false, true}) {
            placement_group group({"ssd=1"});
            auto a = co_await actor<space_server>();
            auto first = a.call<&space_server::take>(group);
            co_await first;
            auto let = a.call<&space_server::let_go>();
            auto again = a.call<&space_server::take>(group);
            group = {}; // the calls hold it
            co_await let;
            co_await again;
            auto used = a.call<&space_server::use_mine>();
            const int two = co_await used;
            CHECK(two == 2);
            auto probe = is_free("ssd=1");
            const bool is_over = co_await probe;
            CHECK_FALSE(is_over);
            if (dies) {
                for (const auto pid : std::vector<pid_t>(self.workers.pids())) ::kill(pid, SIGKILL);
            } else {
                auto last = a.call<&space_server::let_go>();
                co_await last;
            }
            const placement_group next({"ssd=1"});
            co_await next.ready();
        }
    });
}

TEST_CASE("workers give each other groups", "[G11][D3][rt][placement_group]") {
    pool p(with_resources(2, "ssd=1"));
    p.run([](pool&) -> task<void> {
        auto a = co_await actor<space_server>();
        auto b = co_await actor<space_server>();
        for (int i = 0; i < 20; ++i) {
            auto made = a.call<&space_server::make_for>(b);
            const int two = co_await made;
            CHECK(two == 2);
            if (i == 0) { // b holds what a has made
                auto probe = is_free("ssd=1");
                const bool is_over = co_await probe;
                CHECK_FALSE(is_over);
            }
            auto let = b.call<&space_server::let_go>();
            co_await let;
        }
        {
            const placement_group group({"ssd=1"});
            auto given = a.call<&space_server::take>(group);
            co_await given;
        }
        auto often = a.call<&space_server::pass_often>(b, 100);
        const int two = co_await often;
        CHECK(two == 2);
    });
}

TEST_CASE("an actor that is made again has the group of its arguments",
          "[G11][R4][rt][placement_group]") {
    pool p(with_resources(1, "ssd=1"));
    p.run([](pool& self) -> task<void> {
        for (const bool is_known : {false, true}) { // its worker holds it by its name already
            placement_group group({"ssd=1"}, {.name = "known"});
            auto other = co_await actor<space_server>();
            auto found = is_known ? other.call<&space_server::find>("known") : ref<void>();
            if (is_known) co_await found;
            auto a = co_await actor<space_server>.with({.restarts = 1, .call_retries = 3})(group);
            group = {};
            for (const auto pid : std::vector<pid_t>(self.workers.pids())) ::kill(pid, SIGKILL);
            auto used = a.call<&space_server::use_mine>();
            const int two = co_await used;
            CHECK(two == 2);
            auto probe = is_free("ssd=1");
            const bool is_over = co_await probe;
            CHECK_FALSE(is_over);
            a = {};
            const placement_group next({"ssd=1"});
            co_await next.ready();
        }
    });
}

TEST_CASE("handles to groups that cannot travel are refused with what to do",
          "[G11][rt][placement_group]") {
    pool p(with_resources(1, "ssd=1"));
    p.run([](pool&) -> task<void> {
        auto made = remote<&too_early>();
        const auto said = co_await made;
        CHECK(contains(said, "not_supported"));
        CHECK(contains(said, "before its ready() has ended"));
        const placement_group group({"ssd=1"});
        auto back = as_result(as_task(remote<&given_back>(group)));
        const auto got = co_await back;
        REQUIRE_FALSE(got);
        CHECK(got.error().code() == errc::not_supported);
        CHECK(contains(got.error().what(), "outside of the arguments of a call"));
        auto still = remote<&use>.with({.cpus = 0})(group, 0);
        const int two = co_await still;
        CHECK(two == 2);
    });
}

} // namespace group_handles_test
