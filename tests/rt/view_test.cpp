// SPDX-License-Identifier: Apache-2.0
// Refs and views in the arguments and results of calls: who holds what, in place of what, and after
// the death of whom.
#include <tests/support/sim_cluster.hpp>

#include <skein/core/awaitable.hpp>
#include <skein/core/sleep.hpp>
#include <skein/rt/actor.hpp>
#include <skein/rt/put.hpp>
#include <skein/rt/remote.hpp>
#include <skein/rt/view.hpp>

#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <catch2/catch_test_macros.hpp>

namespace view_test {

using namespace skein;
using namespace std::chrono_literals;
using test::in_sim;
using test::in_sim_with_store;
using test::sim_cluster;

constexpr std::uint64_t mebi = std::uint64_t{1} << 20;
using numbers = std::vector<int>;

numbers counted(std::size_t n, int from) {
    numbers all(n);
    std::iota(all.begin(), all.end(), from);
    return all;
}
numbers make(int n, int from) { return counted(std::size_t(n), from); }
std::int64_t total(std::span<const int> all) {
    return std::accumulate(all.begin(), all.end(), std::int64_t{0});
}
std::int64_t add(view<numbers> of) { return total(*of); }
task<std::int64_t> add_later(view<numbers> of) {
    co_await sleep_for(1s);
    co_return total(*of);
}
task<std::int64_t> add_ref(ref<numbers> of) {
    auto looking = view(of);
    const auto seen = co_await looking;
    co_return total(*seen);
}
std::int64_t add_all(std::vector<view<numbers>> all) {
    std::int64_t sum = 0;
    for (const auto& one : all) sum += total(*one);
    return sum;
}
task<std::int64_t> count_refs(std::map<std::string, ref<numbers>> all) {
    std::int64_t sum = 0;
    for (const auto& [name, one] : all) {
        if (!one) {
            ++sum;
            continue;
        }
        const auto value = co_await one;
        sum += total(value);
    }
    co_return sum;
}
task<std::vector<ref<numbers>>> make_two(int n) {
    auto first = put(counted(std::size_t(n), 1));
    auto second = put(counted(3, 1));
    std::vector<ref<numbers>> both;
    both.push_back(co_await first);
    both.push_back(co_await second);
    co_return both;
}
numbers fail_to_make(int) { throw std::runtime_error("no numbers today"); }
std::int64_t count(const numbers& all) { return static_cast<std::int64_t>(all.size()); }
std::string why_of(ref<numbers> of) { return of.state()->failed() ? "failed" : "has a value"; }
/// Makes on a worker what another worker reads.
task<std::int64_t> through_me(int n) {
    const auto made = remote<&make>(n, 0);
    const auto sum = remote<&add>(made);
    co_return co_await sum;
}

struct keeper {
    std::optional<view<numbers>> kept;
    ref<numbers> held;
    std::int64_t calls = 0;
    std::int64_t keep(view<numbers> one) {
        ++calls;
        kept = std::move(one);
        return total(**kept);
    }
    void hold(ref<numbers> one) { held = std::move(one); }
    ref<numbers> give() { return held; }
    std::int64_t read() { return kept ? total(**kept) : -1; }
    void forget() {
        kept.reset();
        held = {};
    }
    std::int64_t add_large(numbers all, int order) { return total(all) + order + 0 * ++calls; }
    std::string note(std::string_view text, int order) {
        orders.push_back(order);
        return std::string(text.substr(0, 1));
    }
    std::vector<int> orders;
    std::vector<int> seen() { return orders; }
};

struct leaf {
    int number() { return 7; }
};
struct gift {
    ref<numbers> what;
    actor_handle<leaf> who;
};
struct giver {
    task<gift> give() {
        auto making = actor<leaf>();
        gift out;
        out.who = co_await making;
        auto putting = put(counted(100'000, 1));
        out.what = co_await putting;
        co_return out;
    }
    int nothing() { return 0; }
};
struct taker {
    task<int> take(actor_handle<giver> from) {
        const auto giving = from.call<&giver::give>();
        while (!giving.ready()) { // frames of this process to itself
            const auto other = from.call<&giver::nothing>();
            (void)co_await other;
            co_await sleep_for(10us);
        }
        const auto got = co_await giving;
        co_await sleep_for(100ms); // the driver has heard of what was let go of
        const auto asked = got.who.call<&leaf::number>();
        co_return co_await asked;
    }
};

TEST_CASE("a large result stays where it was made, and who takes it reads it there",
          "[A9][rt][objects][view]") {
    in_sim_with_store(1, 2, 8 * mebi, [](sim_cluster& c) -> task<void> {
        const auto made = remote<&make>(200'000, 5);
        const auto sum = remote<&add>(made); // waits for it
        const auto got_1 = co_await sum;
        CHECK(got_1 == total(counted(200'000, 5)));
        CHECK(c.stored().objects == 1);
        CHECK(made.state()->object());
        const auto later = remote<&add_later>(made);
        const auto got_2 = co_await later;
        CHECK(got_2 == got_1);
        const auto by_ref = remote<&add_ref>(made);
        const auto got_3 = co_await by_ref;
        CHECK(got_3 == got_1);
        const auto value = co_await made;
        CHECK(value == counted(200'000, 5));
    });
}

TEST_CASE("refs travel at any depth, with their value or as the name of an object",
          "[A8][rt][objects][view]") {
    const auto body = [](sim_cluster&) -> task<void> {
        std::vector<ref<numbers>> refs{remote<&make>(100'000, 1), remote<&make>(10, 1)};
        const auto sum = remote<&add_all>(refs); // none of them is there yet
        const auto want = total(counted(100'000, 1)) + total(counted(10, 1));
        const auto got_4 = co_await sum;
        CHECK(got_4 == want);
        std::map<std::string, ref<numbers>> named{
            {"a", refs[0]}, {"b", refs[1]}, {"none", ref<numbers>()}};
        const auto counting = remote<&count_refs>(named);
        const auto got_5 = co_await counting;
        CHECK(got_5 == want + 1);
        auto making = remote<&make_two>(100'000);
        const auto both = co_await making;
        REQUIRE(both.size() == 2);
        const auto got_14 = co_await both[0];
        CHECK(total(got_14) == total(counted(100'000, 1)));
        const auto got_15 = co_await both[1];
        CHECK(total(got_15) == 6);
        const auto again = remote<&add_all>(both);
        const auto got_6 = co_await again;
        CHECK(got_6 == total(counted(100'000, 1)) + 6);
    };
    in_sim_with_store(2, 2, 16 * mebi, body);
    in_sim(3, 2, body);
}

TEST_CASE("a ref that has failed fails who takes its value, and travels to who takes the ref",
          "[A8][rt][objects][view]") {
    in_sim_with_store(4, 1, 8 * mebi, [](sim_cluster&) -> task<void> {
        const auto failed = remote<&fail_to_make>(1);
        const auto by_view = remote<&add>(failed);
        auto outcome = as_result(by_view);
        const auto got = co_await outcome;
        REQUIRE(!got);
        CHECK(got.error().code() == errc::remote_exception);
        const auto by_ref = remote<&why_of>(failed);
        const auto got_7 = co_await by_ref;
        CHECK(got_7 == "failed");
    });
}

TEST_CASE("what an actor keeps stays, whoever else lets go, and goes with the actor",
          "[rt][objects][view]") {
    in_sim_with_store(5, 2, 8 * mebi, [](sim_cluster& c) -> task<void> {
        auto making = actor<keeper>();
        auto k = co_await making;
        std::int64_t sum = 0;
        {
            auto putting = put(counted(100'000, 3));
            const auto mine = co_await putting;
            const auto keeping = k.call<&keeper::keep>(mine);
            sum = co_await keeping;
            const auto holding = k.call<&keeper::hold>(mine);
            co_await holding;
        }
        co_await sleep_for(1s);
        CHECK(c.stored().objects == 1);
        const auto reading = k.call<&keeper::read>();
        const auto got_8 = co_await reading;
        CHECK(got_8 == sum);
        {
            const auto giving = k.call<&keeper::give>(); // and comes back from there
            const auto got = co_await giving;
            const auto got_16 = co_await got;
            CHECK(total(got_16) == sum);
        }
        const auto forgetting = k.call<&keeper::forget>();
        co_await forgetting;
        co_await sleep_for(1s);
        CHECK(c.stored().objects == 0);
    });
}

TEST_CASE("objects outlive the worker that made them, and a reader's death frees what it kept",
          "[V5][rt][objects][view]") {
    in_sim_with_store(6, 2, 8 * mebi, [](sim_cluster& c) -> task<void> {
        const auto made = remote<&make>(100'000, 1);
        co_await as_task(ref<numbers>(made));
        for (int i = 0; i < 2; ++i) c.kill(i);
        co_await sleep_for(1s);
        CHECK(c.stored().objects == 1);
        const auto sum = remote<&add>(made); // by the workers that came in their place
        const auto got_9 = co_await sum;
        CHECK(got_9 == total(counted(100'000, 1)));
        const auto under_way = remote<&add_later>(made);
        co_await sleep_for(100ms);
        for (int i = 0; i < 2; ++i) c.kill(i); // it runs again, on the same object
        const auto got_10 = co_await under_way;
        CHECK(got_10 == total(counted(100'000, 1)));
        auto making = actor<keeper>();
        {
            auto k = co_await making;
            auto putting = put(counted(100'000, 2));
            auto other = co_await putting;
            const auto keeping = k.call<&keeper::keep>(other);
            (void)co_await keeping;
            other = {};
            co_await sleep_for(1s);
            CHECK(c.stored().objects == 2);
            for (int i = 0; i < 2; ++i) c.kill(i);
            co_await sleep_for(1s);
            CHECK(c.stored().objects == 1);
        }
    });
}

TEST_CASE("large arguments become objects by themselves, and calls of an actor keep their order",
          "[rt][objects][view]") {
    const auto body = [](sim_cluster& c, bool has_store) -> task<void> {
        auto making = actor<keeper>();
        auto k = co_await making;
        const auto large = counted(100'000, 0);
        std::vector<ref<std::int64_t>> sums;
        for (int i = 0; i < 3; ++i) sums.push_back(k.call<&keeper::add_large>(large, i));
        for (int i = 0; i < 3; ++i) {
            const auto got = co_await sums[std::size_t(i)];
            CHECK(got == total(large) + i);
        }
        std::vector<ref<std::string>> notes;
        for (int i = 0; i < 20; ++i)
            notes.push_back(
                k.call<&keeper::note>(std::string(i % 3 == 0 ? 200'000 : 2, char('a' + i)), i));
        for (int i = 0; i < 20; ++i) {
            const auto got_11 = co_await notes[std::size_t(i)];
            CHECK(got_11 == std::string(1, char('a' + i)));
        }
        const auto seeing = k.call<&keeper::seen>();
        const auto order = co_await seeing;
        CHECK(order == counted(20, 0));
        const auto counting = remote<&count>(large);
        const auto got_12 = co_await counting;
        CHECK(got_12 == 100'000);
        co_await sleep_for(1s);
        if (has_store) CHECK(c.stored().objects == 0);
    };
    in_sim_with_store(7, 2, 32 * mebi, [&](sim_cluster& c) -> task<void> { return body(c, true); });
    in_sim(8, 2, [&](sim_cluster& c) -> task<void> { return body(c, false); });
}

TEST_CASE("what one worker makes another reads, and the driver between them copies nothing",
          "[rt][objects][view]") {
    in_sim_with_store(9, 3, 8 * mebi, [](sim_cluster& c) -> task<void> {
        const auto before = objects::copied();
        const auto sum = remote<&through_me>(100'000);
        const auto got_13 = co_await sum;
        CHECK(got_13 == total(counted(100'000, 0)));
        CHECK(objects::copied().out == before.out);
        co_await sleep_for(1s);
        CHECK(c.stored().objects == 0);
    });
}

TEST_CASE("three thousand results that are dropped leave nothing", "[rt][objects][view]") {
    in_sim_with_store(10, 2, 16 * mebi, [](sim_cluster& c) -> task<void> {
        for (int i = 0; i < 300; ++i) {
            std::vector<ref<numbers>> ten;
            for (int k = 0; k < 10; ++k) ten.push_back(remote<&make>(30'000, k));
            for (const auto& one : ten) {
                auto looking = view(one);
                (void)co_await looking;
            }
        }
        co_await sleep_for(1s);
        CHECK(c.stored().objects == 0);
    });
}

TEST_CASE("a handle beside a ref in a result within a process is there when it is read",
          "[rt][objects][view]") {
    in_sim_with_store(12, 1, 8 * mebi, [](sim_cluster& c) -> task<void> {
        auto first = actor<giver>();
        auto from = co_await first;
        auto second = actor<taker>();
        const auto to = co_await second;
        const auto taking = to.call<&taker::take>(from);
        const auto got = co_await taking;
        CHECK(got == 7);
        from = {};
        co_await sleep_for(1s);
        CHECK(c.actors() == 1);
        CHECK(c.stored().objects == 0);
    });
}

TEST_CASE("a worker that loses the store ends, and what it has not begun runs elsewhere",
          "[V5][F2][rt][objects][view]") {
    in_sim_with_store(13, 1, 8 * mebi, [](sim_cluster& c) -> task<void> {
        auto putting = put(counted(100'000, 1));
        const auto mine = co_await putting;
        const auto want = total(counted(100'000, 1));
        const auto before = remote<&add>(mine);
        const auto got_17 = co_await before;
        CHECK(got_17 == want);
        const int lives = c.incarnation(0);
        c.break_store_link(0);
        const auto never_begun = remote<&add>.with({.retries = 0})(mine);
        const auto got_18 = co_await never_begun;
        CHECK(got_18 == want);
        CHECK(c.incarnation(0) == lives + 1);
        // At any moment between its leaving and its outcome.
        for (int i = 0; i < 60; ++i) {
            const auto sum = remote<&add>(mine);
            co_await sleep_for(i * 50us);
            c.break_store_link(0);
            const auto got_19 = co_await sum;
            CHECK(got_19 == want);
            const auto made = remote<&make>(100'000, 1);
            const auto got_20 = co_await made;
            CHECK(total(got_20) == want);
        }
        co_await sleep_for(1s);
        CHECK(c.stored().objects == 1);
    });
}

TEST_CASE("a view is for any thread", "[V3][rt][objects][view]") {
    in_sim_with_store(11, 1, 8 * mebi, [](sim_cluster& c) -> task<void> {
        auto putting = put(counted(100'000, 1));
        auto mine = co_await putting;
        auto looking = view(mine);
        auto seen = co_await looking;
        mine = {};
        looking = {}; // it has the ref
        std::int64_t sum = 0;
        std::thread([&sum, one = std::move(seen)] { sum = total(*one); }).join();
        CHECK(sum == total(counted(100'000, 1)));
        seen = {};
        co_await sleep_for(1s);
        CHECK(c.stored().objects == 0);
    });
}

} // namespace view_test
