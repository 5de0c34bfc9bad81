// SPDX-License-Identifier: Apache-2.0
// Calls of a worker to its own actors: no codec runs, and nobody can tell but by the addresses of
// what was moved.
#include <tests/apps/apps.hpp>
#include <tests/support/sim_cluster.hpp>
#include <tests/support/temporary_folder.hpp>

#include <skein/core/scope.hpp>
#include <skein/core/timeout.hpp>
#include <skein/rt/actor.hpp>
#include <skein/rt/detail/given_call.hpp>
#include <skein/rt/method_group.hpp>
#include <skein/rt/runtime_context.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory_resource>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include <catch2/catch_test_macros.hpp>

namespace given_types {

/// What has a codec that leaves something out.
struct cached_number {
    int value = 0;
    int cached = 0; ///< does not travel
};
/// What can be sent and not copied.
struct uncopied {
    uncopied() = default;
    explicit uncopied(int v) : value(v) {}
    uncopied(uncopied&&) = default;
    uncopied& operator=(uncopied&&) = default;
    int value = 0;
};
} // namespace given_types

template <>
struct skein::wire::codec<given_types::cached_number> {
    static constexpr const char* schema = "cached_number";
    static void encode(writer& to, const given_types::cached_number& n) { to.fixed(n.value); }
    static skein::result<void> decode(reader& from, given_types::cached_number& into) {
        if (!from.fixed(into.value)) return from.status();
        return {};
    }
};
template <>
struct skein::wire::codec<given_types::uncopied> {
    static constexpr const char* schema = "uncopied";
    static void encode(writer& to, const given_types::uncopied& n) { to.fixed(n.value); }
    static skein::result<void> decode(reader& from, given_types::uncopied& into) {
        if (!from.fixed(into.value)) return from.status();
        return {};
    }
};

namespace given_calls_test {

using namespace skein;
using given_types::cached_number;
using given_types::uncopied;
using namespace std::chrono_literals;
using rt_test::counter;
using test::in_sim;
using test::sim_cluster;

struct tree {
    int value = 0;
    std::vector<tree> below;
    std::map<std::string, std::optional<double>> notes;
};
struct team {
    std::vector<actor_handle<counter>> members;
};
struct with_view {
    std::string_view text;
};

TEST_CASE("only values whose copy is what decoding gives travel as they are", "[D9][rt][given]") {
    using namespace rt::detail;
    STATIC_CHECK(makeup_of<tree>() == makeup::values);
    STATIC_CHECK(makeup_of<std::variant<int, std::tuple<std::string, std::array<float, 3>>>>() ==
                 makeup::values);
    STATIC_CHECK(makeup_of<std::vector<bool>>() == makeup::values);
    STATIC_CHECK(makeup_of<result<void>>() == makeup::values);
    STATIC_CHECK(makeup_of<std::unordered_map<int, error>>() == makeup::values);
    STATIC_CHECK(makeup_of<team>() == makeup::handles);
    STATIC_CHECK(makeup_of<std::map<int, actor_handle<counter>>>() == makeup::handles);
    STATIC_CHECK(makeup_of<cached_number>() == makeup::other);
    STATIC_CHECK(makeup_of<std::vector<cached_number>>() == makeup::other);
    STATIC_CHECK(makeup_of<with_view>() == makeup::other);
    // Its memory may end with the caller's buffer.
    STATIC_CHECK(makeup_of<std::pmr::vector<int>>() == makeup::other);
    STATIC_CHECK(can_be_given<std::tuple<std::string_view, std::span<const int>, int>>);
    STATIC_CHECK(!can_be_given<std::tuple<int, std::vector<std::string_view>>>);
    STATIC_CHECK(!can_be_given<std::tuple<int, uncopied>>);
}

std::uint64_t address_of(const std::vector<int>& v) {
    return reinterpret_cast<std::uintptr_t>(v.data());
}

/// What is called.
struct shelf {
    std::vector<int> kept;
    std::vector<std::string> order;
    int runs = 0;

    std::uint64_t put(std::vector<int> what) {
        ++runs;
        kept = std::move(what);
        return address_of(kept);
    }
    task<std::uint64_t> put_later(std::vector<int> what, int ms) {
        co_await sleep_for(std::chrono::milliseconds(ms));
        kept = std::move(what);
        co_return address_of(kept);
    }
    std::vector<int> take() { return std::move(kept); }
    task<std::vector<int>> take_later() {
        co_await yield();
        co_return std::move(kept);
    }
    const std::vector<int>& look() { return kept; }
    std::string describe(std::string_view text, std::span<const int> numbers, int last) {
        std::string out(text);
        for (const int n : numbers) out += " " + std::to_string(n);
        return out + " " + std::to_string(last);
    }
    int cached(cached_number n) { return n.cached; }
    cached_number make(int value) { return {value, 1}; }
    int unique(uncopied n) { return n.value; }
    uncopied make_unique_one(int value) { return uncopied(value); }
    void note(std::string what) { order.push_back(std::move(what)); }
    void note_cached(cached_number n) { order.push_back("cached " + std::to_string(n.value)); }
    task<void> note_coroutine(std::string what) {
        order.push_back(std::move(what));
        co_return;
    }
    std::vector<std::string> all() { return order; }
    int broken(std::string why) { throw std::out_of_range(why); }
    int broken_code() {
        throw error(errc::disk_full, "no room").with_cause("a cause").with_hint("a hint");
    }
    task<int> sleep(int ms) {
        ++runs;
        co_await sleep_for(std::chrono::milliseconds(ms));
        co_return ms;
    }
    std::vector<std::string> who() {
        const auto me = runtime_context();
        const auto left = me.time_left.value_or(duration{});
        return {me.process,
                me.function,
                fmt::format("{}", me.call),
                fmt::format("{}", me.parent),
                fmt::format("{}", me.trace),
                fmt::format("{}", me.actor),
                left > 59min && left <= 1h ? "an hour" : "another time"};
    }
    int counted() { return runs; }
    int runs_on() {
        return static_cast<int>(std::hash<std::thread::id>{}(std::this_thread::get_id()) != own);
    }
    std::size_t own = std::hash<std::thread::id>{}(std::this_thread::get_id());

    task<int> one_at_a_time(int ms) {
        ++runs;
        co_await sleep_for(std::chrono::milliseconds(ms));
        co_return ms;
    }
    int in_turn() { return ++runs; }
    using concurrency_groups =
        method_groups<method_group<"few", 1, &shelf::one_at_a_time, &shelf::in_turn>,
                      blocking_group<"threads", 2, &shelf::runs_on>>;
};

/// Who calls it, in the same process.
struct visitor {
    task<void> moves_and_copies(actor_handle<shelf> to) {
        std::vector<int> mine{1, 2, 3};
        const auto before = address_of(mine);
        auto copied = to.call<&shelf::put>(mine);
        const auto there = co_await copied;
        CHECK(there != before);
        CHECK(mine == std::vector{1, 2, 3});
        mine[0] = 7; // nobody else sees that
        auto looked = to.call<&shelf::look>();
        const auto seen = co_await looked;
        CHECK(seen == std::vector{1, 2, 3});

        auto moved = to.call<&shelf::put>(std::move(mine));
        const auto then = co_await moved;
        CHECK(then == before);
        auto taken = to.call<&shelf::take>();
        const auto back = co_await std::move(taken);
        CHECK(address_of(back) == before);
        CHECK(back == std::vector{7, 2, 3});

        std::vector<int> other(100, 5);
        const auto its = address_of(other);
        auto later = to.call<&shelf::put_later>(std::move(other), 3);
        const auto where = co_await later;
        CHECK(where == its);
        auto fetched = to.call<&shelf::take_later>();
        const auto again = co_await std::move(fetched);
        CHECK(address_of(again) == its);
    }
    /// The object that is returned by reference stays.
    task<void> references(actor_handle<shelf> to) {
        auto put = to.call<&shelf::put>(std::vector{4, 5});
        const auto there = co_await put;
        auto looked = to.call<&shelf::look>();
        const auto seen = co_await std::move(looked);
        CHECK(address_of(seen) != there);
        auto twice = to.call<&shelf::look>();
        const auto second = co_await twice;
        CHECK(second == std::vector{4, 5});
    }
    task<void> refs(actor_handle<shelf> to) {
        auto put = to.call<&shelf::put>(std::vector{4, 5});
        co_await put;
        auto first = to.call<&shelf::look>();
        auto early = to.call<&shelf::put>(first); // waits for it
        co_await early;
        auto ready = to.call<&shelf::put>(first); // it is there
        const auto where = co_await ready;
        const auto value = co_await first;
        CHECK(value == std::vector{4, 5});
        CHECK(address_of(*first.state()->value) != where);
    }
    task<void> views(actor_handle<shelf> to) {
        for (int i = 0; i < 2; ++i) {
            ref<std::string> r;
            {
                const std::string text = "a text that does not fit into the string itself";
                std::vector<int> numbers{1, 2, 3};
                r = to.call<&shelf::describe>(text, numbers, 4);
                std::fill(numbers.begin(), numbers.end(), 9);
            }
            const auto said = co_await r;
            CHECK(said == "a text that does not fit into the string itself 1 2 3 4");
        }
    }
    task<void> codecs(actor_handle<shelf> to) {
        for (int i = 0; i < 2; ++i) {
            cached_number n{3, 4};
            auto copied = to.call<&shelf::cached>(n);
            const int of_copy = co_await copied;
            CHECK(of_copy == 0);
            auto moved = to.call<&shelf::cached>(cached_number{3, 4});
            const int of_moved = co_await moved;
            CHECK(of_moved == 0);
            auto made = to.call<&shelf::make>(5);
            const auto result = co_await made;
            CHECK(result.value == 5);
            CHECK(result.cached == 0);
            auto unique = to.call<&shelf::unique>(uncopied(6));
            const int of_unique = co_await unique;
            CHECK(of_unique == 6);
            auto fresh = to.call<&shelf::make_unique_one>(8);
            const auto got = co_await std::move(fresh);
            CHECK(got.value == 8);
        }
    }
    task<void> order(actor_handle<shelf> to) {
        std::vector<std::string> expected;
        for (int i = 0; i < 40; ++i) {
            if (i % 4 == 0) {
                to.call<&shelf::note_cached>(cached_number{i, 0});
                expected.push_back("cached " + std::to_string(i));
            } else if (i % 4 == 1) {
                to.call<&shelf::note_coroutine>(std::to_string(i));
                expected.push_back(std::to_string(i));
            } else {
                to.call<&shelf::note>(std::to_string(i));
                expected.push_back(std::to_string(i));
            }
        }
        auto all = to.call<&shelf::all>();
        CHECK(!all.ready()); // nothing has run in this one's stack
        const auto seen = co_await all;
        CHECK(seen == expected);
    }
    task<std::vector<std::string>> failures(actor_handle<shelf> to) {
        auto known = to.call<&shelf::counted>(); // so that the way is there
        co_await known;
        std::vector<std::string> said;
        auto first = to.call<&shelf::broken>("on purpose");
        auto second = to.call<&shelf::broken_code>();
        for (auto* r : {&first, &second}) {
            auto asked = as_result(*r);
            const auto outcome = co_await asked;
            REQUIRE(!outcome);
            const auto& e = outcome.error();
            said.push_back(std::string(to_string(e.code())) + "|" + e.text() + "|" + e.cause() +
                           "|" + e.hint() + "|" + (e.where().empty() ? "" : "with a place"));
        }
        CHECK_THROWS_AS(std::ignore = co_await std::move(first), remote_error);
        co_return said;
    }
    task<void> ends(actor_handle<shelf> to) {
        auto warm = to.call<&shelf::counted>();
        co_await warm;
        auto slow = remote<&shelf::sleep>.with({.deadline = 5ms})(to, 60'000);
        auto asked = as_result(slow);
        const auto late = co_await asked;
        REQUIRE(!late);
        CHECK(late.error().code() == errc::timeout);
        CHECK(late.error().text().find("had started") != std::string::npos);
        auto other = to.call<&shelf::sleep>(60'000);
        co_await yield();
        co_await yield();
        other.cancel();
        auto ending = as_result(other);
        const auto cancelled = co_await ending;
        REQUIRE(!cancelled);
        CHECK(cancelled.error().code() == errc::cancelled);
        auto none = as_result(remote<&shelf::counted>.with({.deadline = 0ms})(to));
        const auto refused = co_await none;
        REQUIRE(!refused);
        CHECK(refused.error().text().find("did not run") != std::string::npos);
    }
    /// In a line: the second waits for the first, and is cancelled there.
    task<void> lines(actor_handle<shelf> to) {
        auto warm = to.call<&shelf::counted>();
        const int before = co_await warm;
        auto first = to.call<&shelf::one_at_a_time>(50);
        auto second = to.call<&shelf::one_at_a_time>(60);
        auto third = to.call<&shelf::in_turn>();
        auto fourth = to.call<&shelf::in_turn>();
        auto plain = to.call<&shelf::counted>(); // is not held back
        const int ran = co_await plain;
        CHECK(ran == before + 1);
        second.cancel();
        third.cancel();
        for (auto* r : {&second, &third}) {
            auto asked = as_result(*r);
            const auto outcome = co_await asked;
            REQUIRE(!outcome);
            CHECK(outcome.error().code() == errc::cancelled);
            CHECK(outcome.error().text().find(
                      "did not run: it waited for others of group \"few\", which takes 1") !=
                  std::string::npos);
        }
        const int one = co_await first;
        CHECK(one == 50);
        const int last = co_await fourth;
        CHECK(last == before + 2);
    }
    task<void> bounded(actor_handle<shelf> to) {
        auto a = to.call<&shelf::sleep>(10);
        auto b = to.call<&shelf::sleep>(10);
        auto c = as_result(to.call<&shelf::sleep>(10));
        const auto refused = co_await c;
        REQUIRE(!refused);
        CHECK(refused.error().code() == errc::exhausted);
        co_await a;
        co_await b;
        auto d = to.call<&shelf::sleep>(1);
        const int got = co_await d;
        CHECK(got == 1);
    }
    task<void> trace_context(actor_handle<shelf> to) {
        const auto mine = runtime_context();
        for (int i = 0; i < 2; ++i) {
            auto r = remote<&shelf::who>.with({.deadline = 1h})(to);
            const auto its = co_await r;
            CHECK(its.at(0) == mine.process);
            CHECK(its.at(1).find("who") != std::string::npos);
            CHECK(its.at(2) != fmt::format("{}", mine.call));
            CHECK(its.at(3) == fmt::format("{}", mine.call));
            CHECK(its.at(4) == fmt::format("{}", mine.trace));
            CHECK(its.at(5) == fmt::format("{}", to.id()));
            CHECK(its.at(6) == "an hour");
        }
    }
};

/// Makes both on one worker, and has one call the other.
template <auto How>
void have_visited(std::uint64_t seed, actor_options of_shelf = {}) {
    // NOLINTNEXTLINE(cppcoreguidelines-avoid-capturing-lambda-coroutines): it outlives the run
    in_sim(seed, 1, [&](sim_cluster& c) -> task<void> {
        auto first = actor<shelf>.with(of_shelf)();
        auto to = co_await first;
        auto second = actor<visitor>();
        auto from = co_await second;
        const auto before = c.driver().stats().submitted;
        auto r = from.template call<How>(to);
        co_await r;
        CHECK(c.driver().stats().submitted - before == 1);
    });
}

TEST_CASE("within a process an lvalue is copied, an rvalue and a result are moved",
          "[D9][A2][rt][given]") {
    have_visited<&visitor::moves_and_copies>(1);
    have_visited<&visitor::references>(2);
    have_visited<&visitor::refs>(3);
}
TEST_CASE("views of a call within a process have memory of their own", "[D9][A6][rt][given]") {
    have_visited<&visitor::views>(4);
}
TEST_CASE("what has a codec of its own passes it within a process, too", "[D9][rt][given]") {
    have_visited<&visitor::codecs>(5);
}
TEST_CASE("calls within a process start in order, and from the queue", "[D9][M2][rt][given]") {
    have_visited<&visitor::order>(6);
}
TEST_CASE("deadlines and cancellation reach calls within a process", "[D9][C7][C9][rt][given]") {
    have_visited<&visitor::ends>(7);
}
TEST_CASE("calls within a process wait in the line of their group", "[D9][O13][O14][rt][given]") {
    have_visited<&visitor::lines>(8);
}
TEST_CASE(".max_pending bounds calls within a process", "[D9][O9][rt][given]") {
    actor_options how;
    how.max_pending = 2;
    have_visited<&visitor::bounded>(9, how);
}
TEST_CASE("a call within a process knows the call that made it", "[D9][C11][rt][given]") {
    have_visited<&visitor::trace_context>(10);
}

TEST_CASE("a failure reads the same from the own process and from another", "[D9][F3][rt][given]") {
    std::vector<std::vector<std::string>> said;
    for (const int workers : {1, 2}) {
        // NOLINTNEXTLINE(cppcoreguidelines-avoid-capturing-lambda-coroutines): it outlives the run
        in_sim(11, workers, [&](sim_cluster&) -> task<void> {
            auto first = actor<shelf>();
            auto to = co_await first;
            auto second = actor<visitor>();
            auto from = co_await second;
            auto r = from.call<&visitor::failures>(to);
            said.push_back(co_await r);
        });
    }
    CHECK(said.at(0) == said.at(1));
    CHECK(said.at(0).at(0).find("on purpose") != std::string::npos);
    CHECK(said.at(0).at(1) == "disk_full|no room|a cause|a hint|with a place");
}

// ---- handles ------------------------------------------------------------------------------------

struct space_server {
    team kept;
    int left = 0;
    void keep(team it) { kept = std::move(it); }
    team give() { return kept; }
    void forget() { kept = {}; }
    /// Lets go of it at once, and goes on for a while.
    task<void> let_go(team it, int ms) {
        it = {};
        co_await sleep_for(std::chrono::milliseconds(ms));
    }
};
struct lender {
    /// Hands it on to an actor of this process, and keeps nothing.
    task<void> hand_on(actor_handle<space_server> to, actor_handle<counter> what, bool moves) {
        team one;
        one.members.push_back(std::move(what));
        ref<void> r;
        if (moves)
            r = to.call<&space_server::keep>(std::move(one));
        else
            r = to.call<&space_server::keep>(one);
        co_await r;
    }
    /// The same without waiting for it.
    void hand_on_soon(actor_handle<space_server> to, actor_handle<counter> what) {
        to.call<&space_server::keep>(team{{what}});
    }
    task<int> use(actor_handle<space_server> from) {
        auto r = from.call<&space_server::give>();
        auto got = co_await std::move(r);
        auto forgotten = from.call<&space_server::forget>();
        co_await forgotten;
        auto added = got.members.at(0).call<&counter::add>(2);
        co_return co_await added;
    }
    /// The last handle in the world goes along.
    task<int> give_away(actor_handle<space_server> to) {
        auto making = actor<counter>(1);
        team one;
        one.members.push_back(co_await making);
        auto r = to.call<&space_server::let_go>(std::move(one), 1000);
        co_await r;
        co_return 1;
    }
};

TEST_CASE("a handle that an actor keeps from a call within its process keeps its actor",
          "[D9][A7][M5][rt][given]") {
    for (const int way : {0, 1, 2}) {
        // NOLINTNEXTLINE(cppcoreguidelines-avoid-capturing-lambda-coroutines): it outlives the run
        in_sim(20, 1, [&](sim_cluster& c) -> task<void> {
            auto first = actor<space_server>();
            const auto with = co_await first;
            auto second = actor<lender>();
            const auto by = co_await second;
            auto third = actor<counter>(40);
            auto what = co_await third;
            auto r = way == 2 ? by.call<&lender::hand_on_soon>(with, what)
                              : by.call<&lender::hand_on>(with, what, way == 1);
            co_await r;
            what = {};
            co_await sleep_for(1s);
            CHECK(c.actors() == 3);
            auto used = by.call<&lender::use>(with);
            const int got = co_await used;
            CHECK(got == 42);
            co_await sleep_for(1s);
            CHECK(c.actors() == 2);
        });
    }
}

TEST_CASE("a handle given to a call within a process keeps its actor until that has ended",
          "[D9][A7][rt][given]") {
    in_sim(21, 1, [&](sim_cluster& c) -> task<void> {
        auto first = actor<space_server>();
        const auto with = co_await first;
        auto second = actor<lender>();
        const auto by = co_await second;
        auto r = by.call<&lender::give_away>(with);
        co_await sleep_for(500ms);
        CHECK(!r.ready());
        CHECK(c.actors() == 3);
        co_await r;
        co_await sleep_for(500ms);
        CHECK(c.actors() == 2);
    });
}

// ---- processes ----------------------------------------------------------------------------------

struct busy {
    std::vector<int> seen;
    void spend(int i, int ms) {
        rt_test::spend(ms);
        seen.push_back(i);
    }
    std::vector<int> all() { return seen; }
};
struct impatient {
    /// Long calls in a row: the last ones are cancelled before it is their turn.
    task<std::vector<int>> call(actor_handle<busy> to) {
        auto warm = to.call<&busy::all>();
        co_await warm;
        std::vector<ref<void>> made;
        for (int i = 0; i < 6; ++i) made.push_back(to.call<&busy::spend>(i, 20));
        co_await made[0];
        made[4].cancel();
        auto asked = as_result(made[4]);
        const auto outcome = co_await asked;
        if (outcome || outcome.error().code() != errc::cancelled ||
            outcome.error().text().find("did not run") == std::string::npos)
            throw error(errc::internal, "it was not cancelled in time");
        auto all = to.call<&busy::all>();
        co_return co_await all;
    }
    task<void> threads(actor_handle<shelf> to) {
        for (int i = 0; i < 3; ++i) {
            auto r = to.call<&shelf::runs_on>();
            const int elsewhere = co_await r;
            if (elsewhere != 1) throw error(errc::internal, "it ran on the loop");
        }
    }
};

task<int> long_calls() {
    auto first = actor<busy>();
    const auto to = co_await first;
    auto second = actor<impatient>();
    const auto by = co_await second;
    auto r = by.call<&impatient::call>(to);
    const auto seen = co_await r;
    CHECK(seen == std::vector{0, 1, 2, 3, 5});
    auto third = actor<shelf>();
    const auto with_threads = co_await third;
    auto threads = by.call<&impatient::threads>(with_threads);
    co_await threads;
    co_return 0;
}

TEST_CASE("long calls within a process leave others their turn", "[D9][W8][O15][rt][given]") {
    CHECK(rt_test::drive(1, long_calls) == 0);
}

} // namespace given_calls_test
