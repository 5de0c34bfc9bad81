// SPDX-License-Identifier: Apache-2.0
// Options that are kept, options of for ever, and options that give no warning.
#include <tests/apps/apps.hpp>
#include <tests/support/sim_cluster.hpp>

#include <skein/core/timeout.hpp>
#include <skein/program/run_options.hpp>
#include <skein/rt/actor.hpp>
#include <skein/rt/option_text.hpp>
#include <skein/rt/placement_group.hpp>
#include <skein/rt/wait_refs.hpp>

#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

namespace option_text_test {

using namespace skein;
using namespace rt_test;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;
using test::in_sim;
using test::sim_cluster;

static_assert(std::is_trivially_destructible_v<call_options>);
static_assert(std::is_trivially_destructible_v<actor_options>);
static_assert(!std::is_constructible_v<option_text, std::nullptr_t>);
static_assert(!std::is_convertible_v<int, option_text>);

template <class T>
task<error> failure_of(ref<T> r) {
    auto asked = as_result(std::move(r));
    auto outcome = co_await asked;
    REQUIRE_FALSE(outcome);
    co_return outcome.error();
}

/// Memory of this length is taken and filled again and again by whoever asks for it.
std::string text_of_length(std::size_t n, char filler) { return std::string(n, filler); }

TEST_CASE("options that are kept have texts of their own", "[rt][option_text]") {
    in_sim(1, 1, [](sim_cluster&) -> task<void> {
        auto named = remote<&fail_with_text>.with(
            {.name = fmt::format("square number {} of all that there are in the batch", 5)});
        auto demanding = remote<&twice>.with(
            {.resources = fmt::format("{}st_disk_that_nobody_has_under_such_a_name=1", 1)});
        auto elsewhere =
            remote<&twice>.with({.env = fmt::format("a line of more than {} bytes without", 32)});
        const auto copy = named;
        for (char c = 'a'; c < 'z'; ++c) (void)text_of_length(40, c);

        auto first = failure_of(named("x"));
        const auto of_named = co_await first;
        CHECK_THAT(of_named.what(), ContainsSubstring("x"));
        auto again = failure_of(copy.on(rt::runtime::current())("y"));
        const auto of_copy = co_await again;
        CHECK_THAT(of_copy.what(), ContainsSubstring("y"));
        auto second = failure_of(demanding(1));
        const auto of_resources = co_await second;
        CHECK_THAT(of_resources.what(), ContainsSubstring("1st_disk_that_nobody_has_under_such"));
        auto third = failure_of(elsewhere(1));
        const auto of_env = co_await third;
        CHECK_THAT(of_env.what(), ContainsSubstring("a line of more than 32 bytes without"));
        auto late = remote<&twice>.with(
            {.deadline = 0s, .name = fmt::format("the call of that very name, number {}", 7)});
        auto fourth = failure_of(late(1));
        const auto of_deadline = co_await fourth;
        CHECK_THAT(of_deadline.what(), ContainsSubstring("the call of that very name, number 7"));
    });
}

TEST_CASE("options of actors that are kept have texts of their own", "[rt][option_text]") {
    in_sim(2, 1, [](sim_cluster&) -> task<void> {
        auto make = actor<counter>.with(
            {.name = fmt::format("the counter of all that is counted, number {}", 1),
             .get_if_exists = true});
        for (char c = 'a'; c < 'z'; ++c) (void)text_of_length(40, c);
        auto first = co_await make();
        auto second = co_await make();
        CHECK(first.id() == second.id());
        auto found = co_await get_actor<counter>("the counter of all that is counted, number 1");
        CHECK(found.id() == first.id());
    });
}

TEST_CASE("a place has its text in itself", "[rt][option_text]") {
    const auto zone = [](int n) { return label(fmt::format("a zone of a long name={}", n)); };
    const auto here = zone(1);
    const auto there = node_named(fmt::format("a node of a rather long name {}", 2));
    auto group = group_named(fmt::format("a group of a rather long name {}", 3), 4);
    for (char c = 'a'; c < 'z'; ++c) (void)text_of_length(24, c);
    CHECK(here.text() == "a zone of a long name=1");
    CHECK(there.text() == "a node of a rather long name 2");
    const auto copy = group.with_children();
    group = here;
    CHECK(copy.text() == "a group of a rather long name 3");
    CHECK(copy.bundle() == 4);
    CHECK(group.text() == here.text());
    STATIC_CHECK(label("zone=a").text() == "zone=a");
    STATIC_CHECK(spread.is_spread());
    static constexpr auto fixed = node_named("n1");
    CHECK(fixed.text() == "n1");

    in_sim(3, 1, [](sim_cluster&) -> task<void> {
        const auto too_long = label(std::string(300, 'z'));
        auto asked = failure_of(remote<&twice>.with({.on = too_long})(1));
        const auto why = co_await asked;
        CHECK_THAT(why.what(), ContainsSubstring("at most 256 bytes"));
    });
}

TEST_CASE("a limit of hours, years or infinity is for ever", "[rt][option_text]") {
    in_sim(4, 2, [](sim_cluster&) -> task<void> {
        const double endless = std::numeric_limits<double>::infinity();
        const auto limits = {
            time_span(std::chrono::hours::max()), time_span(std::chrono::seconds::max()),
            time_span(std::chrono::years(300)), time_span(std::chrono::duration<double>(endless))};
        for (const auto limit : limits) {
            auto called = remote<&later>.with({.deadline = limit})(1, 50);
            const int value = co_await called;
            CHECK(value == 1);
            auto timed = with_timeout(remote<&later>(2, 50), limit);
            const int in_time = co_await timed;
            CHECK(in_time == 2);
            auto many = wait(std::vector<ref<int>>{remote<&later>(3, 50)}, 1, limit);
            const auto seen = co_await many;
            CHECK(seen.done.size() == 1);
            auto nap = [](time_span length) -> task<void> { co_await sleep_for(length); };
            auto asleep = as_result(with_timeout(nap(limit), 10s));
            const auto woken = co_await asleep;
            CHECK_FALSE(woken);
        }
        // What is passed on to a call that a call makes is what is left of for ever.
        auto inner = remote<&nested>.with({.deadline = std::chrono::hours::max()})(4);
        const int nested_value = co_await inner;
        CHECK(nested_value == 9);
        auto negative = failure_of(remote<&twice>.with({.deadline = std::chrono::hours::min()})(1));
        const auto over = co_await negative;
        CHECK(over.code() == errc::timeout);
    });
}

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wextra"
#pragma GCC diagnostic error "-Wmissing-field-initializers"
TEST_CASE("a struct of options with one of them named gives no warning", "[rt][option_text]") {
    const call_options call{.retries = 1};
    const actor_options made{.restarts = 1};
    const actor_search where{.space = "s"};
    const placement_options group{.name = "g"};
    const run_options run{.workers = 1};
    const program::local_workers_options local{.count = 1};
    const rt::runtime_options who{.name = "driver"};
    const proc::child_options child{.role = "worker"};
    const proc::process_options process{.executable = "/bin/true"};
    const proc::restart_rules rules{.most = 1};
    const net::limits bounds{.max_frame = 1};
    const net::keep_alive alive{.mode = net::keep_alive_mode::off};
    const net::connection_options connection{.checksum_bodies = true};
    const net::link_options link{.most_bytes = 1};
    CHECK(call.retries + made.restarts + run.workers + local.count == 4);
    CHECK(where.space.view().size() + group.name.size() == 2);
    CHECK(who.name.size() + child.role.size() + process.executable.size() == 21);
    (void)rules, (void)bounds, (void)alive, (void)connection, (void)link;
}
#pragma GCC diagnostic pop

} // namespace option_text_test
