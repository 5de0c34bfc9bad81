// SPDX-License-Identifier: Apache-2.0
#include <tests/apps/apps.hpp>
#include <tests/support/sim_cluster.hpp>

#include <skein/core/timeout.hpp>
#include <skein/rt/remote.hpp>
#include <skein/rt/runtime_context.hpp>

#include <algorithm>
#include <map>

#include <catch2/catch_test_macros.hpp>

using namespace skein;
using namespace rt_test;
using namespace std::chrono_literals;
using test::in_sim;
using test::sim_cluster;

namespace {

/// How often each number was handed to a worker; tests reset it.
std::map<int, int>& runs() {
    static std::map<int, int> counts;
    return counts;
}

} // namespace

namespace rt_test {
int counted(int i) {
    ++runs()[i];
    return i;
}
task<int> counted_slow(int i, int ms) {
    ++runs()[i];
    co_await sleep_for(std::chrono::milliseconds(ms));
    co_return i;
}
skein::actor_handle<counter> gives_handle(int) { return {}; }

std::int64_t here() { return runtime_context().pid; }
task<std::int64_t> here_for(int ms) {
    co_await sleep_for(std::chrono::milliseconds(ms));
    co_return here();
}

/// One call for each number of its tree.
task<int> fibonacci(int n) {
    if (n < 2) co_return n;
    auto one = remote<&fibonacci>(n - 1);
    auto two = remote<&fibonacci>(n - 2);
    const int a = co_await one;
    const int b = co_await two;
    co_return a + b;
}
/// How many are in it at once, in all workers of a world.
int inside = 0, most_inside = 0;
task<int> count_inside(int ms) {
    most_inside = std::max(most_inside, ++inside);
    co_await sleep_for(std::chrono::milliseconds(ms));
    --inside;
    co_return 1;
}
/// The sum of so many others, which each take so long.
task<int> sum_of(int fan, int ms) {
    std::vector<ref<int>> parts;
    for (int i = 0; i < fan; ++i) parts.push_back(remote<&count_inside>(ms));
    int sum = 0;
    for (auto& part : parts) {
        const int one = co_await part;
        sum += one;
    }
    co_return sum;
}
/// How many long tasks run at once, so that one sees whether a core was given back twice, or not at
/// all.
task<int> count_cores_in_use() {
    for (int round = 0; round < 2;
         ++round) { // in the first one workers learn that tasks are long now
        inside = most_inside = 0;
        std::vector<ref<int>> all;
        for (int i = 0; i < 40; ++i) all.push_back(remote<&count_inside>(50));
        for (auto& r : all) co_await r;
    }
    co_return most_inside;
}
/// Returns while what it has called goes on.
task<int> leave_behind(int fan, int ms) {
    for (int i = 0; i < fan; ++i) auto left = remote<&count_inside>(ms);
    co_return fan;
}
struct asker {
    task<int> ask(int n) {
        auto r = remote<&fibonacci>(n);
        co_return co_await r;
    }
};
task<int> ask_an_actor(int n) {
    auto made = skein::actor<asker>();
    auto a = co_await made;
    auto r = a.call<&asker::ask>(n);
    co_return co_await r;
}

/// Ends the worker that runs it, of a cluster with one.
sim_cluster* whose = nullptr;
void kill_own_worker() { whose->kill(0); }

/// Its codec throws, as one that a program brings along may.
struct explosive {
    bool when_sent = false;
};
int defuse(explosive, int x) { return x; }
} // namespace rt_test

template <>
struct skein::wire::codec<rt_test::explosive> {
    static constexpr const char* schema = "explosive";
    static void encode(writer& to, const rt_test::explosive& e) {
        if (e.when_sent) throw error(errc::invalid_argument, "too hot to touch");
        to.fixed(std::uint8_t{0});
    }
    static skein::result<void> decode(reader&, rt_test::explosive&) {
        throw error(errc::malformed, "bang");
    }
};

TEST_CASE("a call gives the function's value", "[rt][remote]") {
    in_sim(1, 2, [](sim_cluster&) -> task<void> {
        auto r = remote<&twice>(21);
        {
            const auto got = co_await r;
            CHECK(got == 42);
        }
        auto later_value = remote<&later>(5, 100);
        {
            const auto got = co_await later_value;
            CHECK(got == 5);
        }
        auto none = remote<&nothing>();
        co_await none;
    });
}

TEST_CASE("arguments are converted to the parameters' types", "[A2][rt][remote]") {
    in_sim(2, 1, [](sim_cluster&) -> task<void> {
        short small = 4;
        auto r = remote<&twice>(small);
        {
            const auto got = co_await r;
            CHECK(got == 8);
        }
        std::vector<std::string> parts{"a", "b", "c"};
        auto s = remote<&join>(parts, "-");
        {
            const auto got = co_await s;
            CHECK(got == "a-b-c");
        }
        row in;
        in.key = "k";
        in.v = {1, 2};
        auto t = remote<&scale>(in, 3);
        const row out = co_await t;
        CHECK(out.key == "k");
        CHECK(out.v == std::vector<float>{3, 6});
        const std::vector<double> values{1, 2, 3.5};
        auto u = remote<&sum>(values);
        {
            const auto got = co_await u;
            CHECK(got == 6.5);
        }
    });
}

TEST_CASE("what a coroutine takes by const& lives until it has ended", "[A4][rt][remote]") {
    in_sim(21, 1, [](sim_cluster&) -> task<void> {
        const std::string first(1000, 'a'), second(1000, 'b');
        auto slow = remote<&give_back_later>(first, 50);
        auto quick = remote<&give_back_later>(second, 1);
        const auto quick_came = co_await quick;
        CHECK(quick_came == second);
        const auto slow_came = co_await slow;
        CHECK(slow_came == first);
    });
}

TEST_CASE("an exception arrives as remote_error, a skein::error keeps its code",
          "[F3][rt][remote]") {
    in_sim(3, 1, [](sim_cluster&) -> task<void> {
        auto a = remote<&fail_with_text>("the text");
        try {
            (void)co_await a;
            FAIL("it did not throw");
        } catch (const remote_error& e) {
            CHECK(e.code() == errc::remote_exception);
            CHECK(e.remote_type() == "std::out_of_range");
            CHECK(e.remote_text() == "the text");
            CHECK(e.worker() == "worker-1");
            CHECK(e.pid() == 101);
            CHECK(contains(e.what(), "rt_test::fail_with_text"));
        }
        auto b = as_result(remote<&fail_with_code>(int(errc::disk_full)));
        auto failed = co_await std::move(b);
        REQUIRE_FALSE(failed);
        CHECK(failed.error().code() == errc::disk_full);
        CHECK(failed.error().hint() == "a hint");
        CHECK(failed.error().cause() == "a cause");
        auto c = as_result(remote<&throw_number>());
        auto number = co_await std::move(c);
        REQUIRE_FALSE(number);
        CHECK(contains(number.error().what(), "int"));
    });
}

TEST_CASE("a ref as argument is resolved before the call is sent", "[A3][rt][remote]") {
    in_sim(4, 2, [](sim_cluster&) -> task<void> {
        auto slow = remote<&later>(10, 50);
        auto r = remote<&twice>(slow);
        auto s = remote<&twice>(r);
        CHECK_FALSE(r.ready());
        {
            const auto got = co_await s;
            CHECK(got == 40);
        }
        {
            const auto got = co_await r;
            CHECK(got == 20);
        } // a value can be awaited again
        {
            const auto got = co_await r;
            CHECK(got == 20);
        }
        auto done = remote<&twice>(r); // a ref that is there already
        {
            const auto got = co_await done;
            CHECK(got == 40);
        }
    });
}

TEST_CASE("a failed argument fails the call without running it", "[A3][rt][remote]") {
    in_sim(5, 1, [](sim_cluster&) -> task<void> {
        runs().clear();
        auto bad = remote<&fail_with_text>("broken");
        auto r = remote<&counted>(bad);
        auto chain = remote<&counted>(r);
        auto asked = as_result(chain);
        auto outcome = co_await std::move(asked);
        REQUIRE_FALSE(outcome);
        CHECK(outcome.error().code() == errc::remote_exception);
        CHECK(contains(outcome.error().what(), "did not run: its argument failed"));
        CHECK(contains(outcome.error().what(), "broken"));
        CHECK(runs().empty());
        auto again = as_result(remote<&counted>(bad)); // also when the failure is known
        auto refused = co_await std::move(again);
        CHECK_FALSE(refused);
    });
}

TEST_CASE("a long chain of pending refs fails without a deep stack or a long message",
          "[A3][rt][remote]") {
    in_sim(6, 1, [](sim_cluster&) -> task<void> {
        auto r = remote<&fail_with_text>("first");
        for (int i = 0; i < 40000; ++i) r = remote<&twice>(r);
        auto asked = as_result(r);
        auto outcome = co_await std::move(asked);
        REQUIRE_FALSE(outcome);
        CHECK(outcome.error().text().size() < 300);
        CHECK(contains(outcome.error().text(), "first"));
    });
}

TEST_CASE("arguments that cannot be encoded fail their call and no other", "[A1][rt][remote]") {
    in_sim(16, 1, [](sim_cluster& c) -> task<void> {
        explosive bad;
        bad.when_sent = true;
        auto slow = remote<&later>(1, 10);
        auto behind_a_ref = remote<&defuse>(bad, slow);
        auto at_once = remote<&defuse>(bad, 1);
        for (auto* r : {&behind_a_ref, &at_once}) {
            auto asked = as_result(*r);
            auto outcome = co_await std::move(asked);
            REQUIRE_FALSE(outcome);
            CHECK(outcome.error().code() == errc::invalid_argument);
            CHECK(contains(outcome.error().text(), "did not run"));
            CHECK(contains(outcome.error().text(), "too hot to touch"));
        }
        auto other = remote<&twice>(slow);
        {
            const auto got = co_await other;
            CHECK(got == 2);
        }
        auto behind_another = remote<&twice>(remote<&later>(2, 10));
        {
            const auto got = co_await behind_another;
            CHECK(got == 4);
        }
        CHECK(c.driver().pending() == 0);
        CHECK(rt::runtime::encoding() == nullptr);
    });
}

TEST_CASE("a decoder that throws costs its link and leaves nothing behind", "[rt][remote]") {
    in_sim(17, 1, [](sim_cluster&) -> task<void> {
        explosive fine;
        auto asked = as_result(remote<&defuse>.with({.retries = 0})(fine, 1));
        auto outcome = co_await std::move(asked);
        CHECK_FALSE(outcome);
        CHECK(rt::runtime::executing() == nullptr);
        auto next = remote<&twice>(2);
        {
            const auto got = co_await next;
            CHECK(got == 4);
        }
    });
}

TEST_CASE("a cancelled task does not run again when its worker dies", "[C7][rt][remote]") {
    in_sim(18, 1, [](sim_cluster& c) -> task<void> {
        runs().clear();
        auto r = remote<&counted_slow>(1, 1000);
        co_await sleep_for(100ms);
        CHECK(runs()[1] == 1);
        c.network().isolate(sim_cluster::host_of(0)); // the cancellation does not arrive
        r.cancel();
        auto asked = as_result(r);
        auto outcome = co_await std::move(asked);
        REQUIRE_FALSE(outcome);
        CHECK(outcome.error().code() == errc::cancelled);
        CHECK(contains(outcome.error().text(), "had started"));
        c.network().heal_all();
        co_await sleep_for(5s);
        CHECK(runs()[1] == 1);
        CHECK(c.driver().stats().retried == 0);
    });
}

TEST_CASE("tasks that need no core go first when they run again", "[rt][remote]") {
    in_sim(19, 2, [](sim_cluster& c) -> task<void> {
        auto a = remote<&later>(1, 60000);
        auto b = remote<&later>(2, 60000); // one on each worker
        auto awaited = remote<&later>.with({.cpus = 0})(3, 500);
        co_await sleep_for(100ms);
        c.kill(0);
        c.kill(1);
        co_await sleep_for(2ms);
        CHECK(c.driver().workers() == 0);
        c.network().isolate(sim_cluster::host_of(1)); // one comes back: its core is taken at once
        const auto begin = c.loop().now();
        const auto got = co_await awaited;
        CHECK(got == 3);
        CHECK(c.loop().now() - begin < 5s);
        c.network().heal_all();
        a.cancel();
        b.cancel();
    });
}

TEST_CASE("a deadline fails the ref and cancels the call on its worker", "[C9][rt][remote]") {
    in_sim(7, 1, [](sim_cluster& c) -> task<void> {
        const auto begin = c.loop().now();
        auto r = remote<&later>.with({.deadline = 200ms, .name = "the slow one"})(1, 100000);
        auto asked = as_result(r);
        auto outcome = co_await std::move(asked);
        REQUIRE_FALSE(outcome);
        CHECK(outcome.error().code() == errc::timeout);
        CHECK(contains(outcome.error().what(), "the slow one gave no answer within 0.2 s"));
        CHECK(c.loop().now() - begin < 300ms);
        co_await sleep_for(100ms);
        CHECK(c.running() == 0);
        auto next = remote<&twice>(1); // the worker is free again
        {
            const auto got = co_await next;
            CHECK(got == 2);
        }
    });
}

TEST_CASE("a deadline that is over already fails the call at once, and it does not run",
          "[C9][rt][remote]") {
    in_sim(7, 1, [](sim_cluster&) -> task<void> {
        runs().clear();
        auto warm = remote<&twice>(1);
        const auto first = co_await warm;
        for (const duration left : {duration(0), duration(-1s)}) {
            auto r = remote<&counted>.with({.deadline = left})(7);
            CHECK(r.ready());
            auto behind = remote<&counted>.with({.deadline = left})(warm);
            auto asked = as_result(r);
            auto outcome = co_await std::move(asked);
            REQUIRE_FALSE(outcome);
            CHECK(outcome.error().code() == errc::timeout);
            CHECK(contains(outcome.error().what(), "did not run: its deadline was over"));
            auto pending = remote<&later>(first, 1000);
            auto late = remote<&counted>.with({.deadline = left})(pending);
            CHECK(late.ready());
        }
        auto free = remote<&counted>.with({.deadline = no_deadline})(9);
        (void)co_await free;
        CHECK(runs().size() == 1);
    });
}

TEST_CASE("cancel ends a call that runs, and one that was never sent", "[C7][rt][remote]") {
    in_sim(8, 1, [](sim_cluster& c) -> task<void> {
        runs().clear();
        auto busy = remote<&later>(1, 100000);
        co_await sleep_for(50ms);
        CHECK(c.running() == 1);
        auto waiting = remote<&counted>(7); // one core: it waits
        waiting.cancel();
        auto asked = as_result(waiting);
        auto never = co_await std::move(asked);
        REQUIRE_FALSE(never);
        CHECK(never.error().code() == errc::cancelled);
        busy.cancel();
        auto asked_busy = as_result(busy);
        auto stopped = co_await std::move(asked_busy);
        REQUIRE_FALSE(stopped);
        CHECK(stopped.error().code() == errc::cancelled);
        CHECK(runs().empty());
        busy.cancel(); // harmless afterwards
    });
}

TEST_CASE("a task runs again when its worker dies, and at most retries times", "[F2][rt][remote]") {
    in_sim(9, 1, [](sim_cluster& c) -> task<void> {
        runs().clear();
        auto r = remote<&counted_slow>(1, 1000);
        co_await sleep_for(100ms);
        CHECK(runs()[1] == 1);
        c.kill(0);
        {
            const auto got = co_await r;
            CHECK(got == 1);
        }
        CHECK(runs()[1] == 2);
        CHECK(c.driver().stats().retried == 1);

        auto once = remote<&counted_slow>.with({.retries = 0})(2, 1000);
        co_await sleep_for(100ms);
        c.kill(0);
        auto asked = as_result(once);
        auto lost = co_await std::move(asked);
        REQUIRE_FALSE(lost);
        CHECK(lost.error().code() == errc::worker_lost);
        CHECK(contains(lost.error().what(), "counted_slow(int, int) had started"));
        CHECK(contains(lost.error().what(), "worker-1 (pid "));
        CHECK(runs()[2] == 1);
    });
}

TEST_CASE("lost calls are told apart: did not run, may have run, had started",
          "[F4][F5][F6][F7][rt][remote]") {
    const auto body = [](sim_cluster& c) -> task<void> {
        auto h = co_await actor<counter>(0);
        auto started = h.call<&counter::add_later>(1, 1000);
        co_await sleep_for(100ms);
        auto pending = remote<&later>(1, 100000);
        auto waits = h.call<&counter::add>(pending);
        c.network().partition("driver", sim_cluster::host_of(0));
        auto in_flight = h.call<&counter::add_later>(2, 1); // behind the one that waits: never sent
        auto other = remote<&later>.with({.cpus = 0, .retries = 0})(3, 1); // sent into the cut
        auto a = as_result(started), b = as_result(waits), d = as_result(in_flight),
             e = as_result(other);
        auto ra = co_await std::move(a);
        auto rb = co_await std::move(b);
        auto rd = co_await std::move(d);
        auto re = co_await std::move(e);
        REQUIRE((!ra && !rb && !rd && !re));
        for (auto* r : {&ra, &rb, &rd, &re}) CHECK(r->error().code() == errc::worker_lost);
        CHECK(contains(ra.error().text(), "had started"));
        CHECK(contains(ra.error().text(),
                       "; lost with it: rt_test::later(int, int) (may have run), "
                       "rt_test::later(int, int) (runs again)"));
        CHECK(contains(rb.error().text(), "did not run"));
        CHECK(contains(rd.error().text(), "did not run"));
        CHECK(contains(re.error().text(), "may have run"));
        c.network().heal_all();
    };
    in_sim(10, 1, body, 1, false);
}

TEST_CASE("what a lost worker had not begun runs elsewhere, also without retries", "[rt][remote]") {
    in_sim(10, 2, [](sim_cluster& c) -> task<void> {
        runs().clear();
        std::vector<ref<int>> refs; // each worker gets some ahead of time
        for (int i = 0; i < 500; ++i) refs.push_back(remote<&counted>.with({.retries = 0})(i));
        c.network().partition("driver", sim_cluster::host_of(0));
        for (int i = 500; i < 1000; ++i) refs.push_back(remote<&counted>.with({.retries = 0})(i));
        int done = 0;
        for (auto& r : refs) {
            auto asked = as_result(r);
            const auto outcome = co_await asked;
            if (outcome)
                ++done;
            else
                CHECK(contains(outcome.error().text(), "may have run"));
        }
        CHECK(done > 490);
        c.network().heal_all();
        co_await sleep_for(5s); // what comes late is left out
        for (const auto& [call, times] : runs()) CHECK(times == 1);
        CHECK(c.driver().pending() == 0);
    });
}

TEST_CASE("a call that has been sent and has not begun is cancelled at once", "[C7][rt][remote]") {
    in_sim(10, 1, [](sim_cluster& c) -> task<void> {
        runs().clear();
        c.network().partition("driver", sim_cluster::host_of(0));
        auto r = remote<&counted>.with({.cpus = 0})(1);
        auto limited = remote<&counted>.with({.cpus = 0, .deadline = 10ms})(2);
        auto h = as_result(r);
        r.cancel();
        CHECK(r.ready());
        const auto outcome = co_await h;
        REQUIRE_FALSE(outcome);
        CHECK(outcome.error().code() == errc::cancelled);
        CHECK(contains(outcome.error().text(), "did not run"));
        auto late = as_result(limited);
        const auto second = co_await late;
        REQUIRE_FALSE(second);
        CHECK(second.error().code() == errc::timeout);
        CHECK(contains(second.error().text(), "did not run"));
        c.network().heal_all();
        co_await sleep_for(5s);
        CHECK(runs().empty());
    });
}

TEST_CASE("who waits behind a call that is cancelled before it began goes on", "[rt][remote]") {
    in_sim(10, 1, [](sim_cluster& c) -> task<void> {
        runs().clear();
        {
            auto learns = remote<&counted_slow>(0, 50); // tasks are long: one per core
            (void)co_await learns;
        }
        for (const bool by_deadline : {false, true}) {
            // Their order on the wire is the order here: the worker hears of none in between.
            call_options how;
            if (by_deadline) how.deadline = 1ns;
            auto first = remote<&counted_slow>.with(how)(1, 1000);
            auto second = remote<&counted_slow>(2, 1);
            if (!by_deadline) first.cancel();
            auto asked = as_result(first);
            const auto outcome = co_await asked;
            CHECK_FALSE(outcome);
            auto limited = with_timeout(second, 10s);
            const int got = co_await limited;
            CHECK(got == 2);
        }
        CHECK(c.driver().pending() == 0);
    });
}

TEST_CASE("a task that ends its worker lets others pass while no worker is free of work",
          "[F2][rt][remote]") {
    in_sim(
        10, 1,
        [](sim_cluster& c) -> task<void> {
            whose = &c;
            auto service =
                remote<&later>.with({.retries = 10})(1, 3'600'000); // always on the worker
            auto crashes = remote<&kill_own_worker>.with({.retries = 1})();
            while (c.driver().stats().workers_lost == 0) co_await sleep_for(1ms);
            int passed = 0;
            for (; !crashes.ready() && passed < 2000; ++passed) {
                auto other = with_timeout(remote<&twice>(passed), 10s);
                const int got = co_await other;
                CHECK(got == 2 * passed);
            }
            CHECK(passed > 100);
            auto asked = as_result(crashes); // it had its turn in the end
            const auto outcome = co_await asked;
            REQUIRE_FALSE(outcome);
            CHECK(contains(outcome.error().what(), "2 attempts were made"));
            CHECK_FALSE(service.ready());
        },
        2);
}

TEST_CASE("more cores than any worker has is refused with a hint", "[W3][rt][remote]") {
    in_sim(
        11, 2,
        [](sim_cluster&) -> task<void> {
            auto r = as_result(remote<&twice>.with({.cpus = 3})(1));
            auto outcome = co_await std::move(r);
            REQUIRE_FALSE(outcome);
            CHECK(outcome.error().code() == errc::exhausted);
            CHECK(contains(outcome.error().what(), "asks for cpu=3"));
            auto fits = remote<&twice>.with({.cpus = 2})(1);
            {
                const auto got = co_await fits;
                CHECK(got == 2);
            }
        },
        2);
}

TEST_CASE("a task does not stand behind one that does not fit", "[W2][rt][remote]") {
    in_sim(
        12, 1,
        [](sim_cluster&) -> task<void> {
            auto long_one = remote<&later>(1, 1000);
            auto wide = remote<&later>.with({.cpus = 2})(2, 10);
            auto narrow = remote<&later>(3, 10);
            co_await narrow;
            CHECK_FALSE(long_one.ready()); // the other core was free all the time
            CHECK_FALSE(wide.ready());
            co_await wide;
            CHECK(long_one.ready());
        },
        2);
}

TEST_CASE("a task that does not fit lets only so many others pass", "[W2][rt][remote]") {
    in_sim(
        12, 1,
        [](sim_cluster&) -> task<void> {
            std::vector<ref<int>> narrow; // never two at the same time
            for (int i = 0; i < 300; ++i) narrow.push_back(remote<&later>(i, 20 + i % 7));
            auto wide = remote<&later>.with({.cpus = 2})(0, 10);
            co_await wide;
            int passed = 0;
            for (const auto& r : narrow) passed += r.ready() ? 1 : 0;
            CHECK(passed > 2); // a core was not kept free for it at once
            CHECK(passed < 60);
            for (auto& r : narrow) co_await r;
        },
        2);
}

TEST_CASE("who waits behind one that does not fit goes on when that is cancelled", "[rt][remote]") {
    for (const bool by_deadline : {false, true}) {
        in_sim(
            12, 1,
            // NOLINTNEXTLINE(cppcoreguidelines-avoid-capturing-lambda-coroutines): lives as long as
            // in_sim()
            [&](sim_cluster&) -> task<void> {
                auto long_one = remote<&later>(1, 3'600'000);
                call_options how;
                how.cpus = 2;
                if (by_deadline) how.deadline = 600s;
                auto wide = remote<&later>.with(how)(2, 10);
                ref<int> waits; // until so many have passed that the other core is kept free
                for (int passed = 0;; ++passed) {
                    REQUIRE(passed < 100);
                    waits = remote<&later>(3, 10);
                    auto limited = with_timeout(waits, 1s);
                    auto asked = as_result(std::move(limited));
                    const auto outcome = co_await asked;
                    if (!outcome) break;
                }
                if (!by_deadline) wide.cancel();
                auto limited = with_timeout(waits, 1000s);
                const int got = co_await limited;
                CHECK(got == 3);
                CHECK_FALSE(long_one.ready());
            },
            2);
    }
}

TEST_CASE("what a line holds and does not use is taken before a task goes behind another",
          "[rt][remote]") {
    in_sim(
        12, 2,
        [](sim_cluster&) -> task<void> {
            std::vector<ref<int>> quick; // the workers take many ahead of time from now on
            for (int i = 0; i < 2000; ++i) quick.push_back(remote<&twice>.with({.cpus = 2})(i));
            for (auto& r : quick) co_await r;
            auto first = remote<&here_for>.with({.cpus = 2})(1000);
            auto narrow = remote<&twice>(1); // keeps a core of the other worker
            (void)co_await narrow;
            auto second = remote<&here>.with({.cpus = 2})();
            const auto there = co_await second;
            CHECK_FALSE(first.ready());
            const auto busy = co_await first;
            CHECK(there != busy);
        },
        2);
}

TEST_CASE("tasks that wait for their own tasks leave their cores to them", "[W7][rt][remote]") {
    for (const int workers : {1, 3}) {
        in_sim(12, workers, [](sim_cluster& c) -> task<void> {
            std::vector<ref<int>> all;
            for (int i = 0; i < 5; ++i) all.push_back(remote<&fibonacci>(8));
            all.push_back(remote<&ask_an_actor>(8));
            for (auto& r : all) {
                auto limited = with_timeout(r, 600s);
                const int got = co_await limited;
                CHECK(got == 21);
            }
            CHECK(c.driver().pending() == 0);
            auto counted = count_cores_in_use();
            const int in_use = co_await counted;
            CHECK(in_use == c.workers());
        });
    }
}

TEST_CASE("tasks made by tasks run one per core, before those of the driver", "[W7][rt][remote]") {
    in_sim(12, 1, [](sim_cluster&) -> task<void> {
        {
            auto learns = remote<&later>(0, 50); // tasks are long: one per core
            (void)co_await learns;
        }
        inside = most_inside = 0;
        auto sum = remote<&sum_of>(10, 20);
        std::vector<ref<int>> others;
        for (int i = 0; i < 50; ++i) others.push_back(remote<&count_inside>(20));
        const int got = co_await sum;
        CHECK(got == 10);
        CHECK(most_inside == 1);
        CHECK_FALSE(others[20].ready());
        auto left = remote<&leave_behind>(10, 20);
        (void)co_await left;
        for (auto& r : others) co_await r;
        auto last = remote<&count_inside>(1);
        (void)co_await last;
        CHECK(most_inside == 1);
    });
}

TEST_CASE("a deep recursion survives the death of its workers", "[rt][remote]") {
    in_sim(12, 2, [](sim_cluster& c) -> task<void> {
        auto r = remote<&fibonacci>.with({.retries = 50})(9);
        for (int i = 0; i < 6 && !r.ready(); ++i) {
            co_await sleep_for(7ms);
            c.kill(i % 2);
        }
        auto limited = with_timeout(r, 600s);
        auto asked = as_result(std::move(limited));
        const auto outcome = co_await asked; // a lost child's failure is its parent's
        CHECK((outcome ? *outcome == 34 : outcome.error().code() != errc::timeout));
        auto counted = count_cores_in_use();
        const int in_use = co_await counted;
        CHECK(in_use == 2);
        CHECK(c.driver().pending() == 0);
    });
}

TEST_CASE("many demands at once are all met", "[rt][remote]") {
    constexpr int most = 40;
    in_sim(
        12, 3,
        [](sim_cluster& c) -> task<void> {
            for (int round = 0; round < 2; ++round) {
                std::vector<ref<int>> all;
                for (int i = 0; i < 400; ++i) {
                    call_options how;
                    how.cpus = 1 + (i * 7) % most;
                    all.push_back(remote<&later>.with(how)(i, i % 5));
                }
                if (round == 1) c.kill(1);
                for (int i = 0; i < 400; ++i) {
                    const int got = co_await all[static_cast<std::size_t>(i)];
                    CHECK(got == i);
                }
            }
            CHECK(c.driver().pending() == 0);
        },
        most);
}

TEST_CASE("tasks with different demands take turns", "[W2][rt][remote]") {
    in_sim(
        12, 1,
        [](sim_cluster&) -> task<void> {
            std::vector<ref<int>> two, three; // never at the same time
            for (int i = 0; i < 4000; ++i) two.push_back(remote<&twice>.with({.cpus = 2})(i));
            for (int i = 0; i < 4000; ++i) three.push_back(remote<&twice>.with({.cpus = 3})(i));
            co_await three[500];
            CHECK(two[100].ready());
            CHECK_FALSE(two.back().ready());
            co_await two.back();
            co_await three.back();
        },
        3);
}

TEST_CASE("a task that was cancelled on its way lets the next one go", "[rt][remote]") {
    in_sim(12, 1, [](sim_cluster& c) -> task<void> {
        runs().clear();
        co_await sleep_for(100ms); // the worker is there
        auto first = remote<&counted>(1);
        auto second = remote<&counted>(2);
        first.cancel();
        auto limited = with_timeout(second, 10s);
        const int got = co_await limited;
        CHECK(got == 2);
        CHECK(runs()[1] == 0);
        CHECK(c.driver().pending() == 0);
    });
}

TEST_CASE("long tasks run one per core, tasks without cores all at once", "[W1][W3][rt][remote]") {
    in_sim(12, 2, [](sim_cluster& c) -> task<void> {
        auto begin = c.loop().now();
        std::vector<ref<int>> refs;
        for (int i = 0; i < 6; ++i) refs.push_back(remote<&later>(i, 100));
        auto done = all(std::move(refs));
        (void)co_await std::move(done);
        CHECK(c.loop().now() - begin >= 300ms);
        CHECK(c.loop().now() - begin < 400ms);
        begin = c.loop().now();
        refs.clear();
        for (int i = 0; i < 6; ++i) refs.push_back(remote<&later>.with({.cpus = 0})(i, 100));
        auto at_once = all(std::move(refs));
        (void)co_await std::move(at_once);
        CHECK(c.loop().now() - begin < 200ms);
    });
}

TEST_CASE("many short tasks are pipelined", "[W1][rt][remote]") {
    in_sim(13, 2, [](sim_cluster& c) -> task<void> {
        std::vector<ref<int>> refs;
        for (int i = 0; i < 2000; ++i) refs.push_back(remote<&twice>(i));
        for (int i = 0; i < 2000; ++i) {
            const auto got = co_await refs[std::size_t(i)];
            CHECK(got == 2 * i);
        }
        CHECK(c.driver().pending() == 0);
        CHECK(c.driver().stats().submitted == 2000);
    });
}

TEST_CASE("calls are combined with all, any, race and with_timeout", "[C10][rt][remote]") {
    in_sim(14, 3, [](sim_cluster&) -> task<void> {
        auto both = all(remote<&twice>(1), remote<&later>(2, 10));
        auto [a, b] = co_await std::move(both);
        CHECK(a == 2);
        CHECK(b == 2);
        auto first = any(remote<&fail_with_text>("no"), remote<&later>(3, 10));
        auto won = co_await std::move(first);
        CHECK(won.value == 3);
        auto limited = with_timeout(remote<&later>(1, 10000), 50ms);
        auto asked = as_result(std::move(limited));
        auto late = co_await std::move(asked);
        REQUIRE_FALSE(late);
        CHECK(late.error().code() == errc::timeout);
    });
}

TEST_CASE("an empty handle is a result like any other", "[rt][remote]") {
    in_sim(15, 1, [](sim_cluster&) -> task<void> {
        const auto handle = co_await remote<&gives_handle>(1);
        CHECK_FALSE(handle);
    });
}

TEST_CASE("options that mean nothing fail their call, which says why", "[rt][remote]") {
    in_sim(16, 1, [](sim_cluster&) -> task<void> {
        const struct {
            call_options how;
            const char* says;
        } bad[] = {
            {{.cpus = -1}, "-1"},
            {{.cpus = 70'000}, "70000"},
            {{.gpus = 1.5}, "1.5"},
            {{.resources = "ssd"}, "ssd"},
            {{.resources = "gpu=1"}, ".gpus"},
            {{.on = node_named("")}, ".on names no node"},
            {{.on = label("")}, ".on names no label"},
        };
        for (const auto& one : bad) {
            auto asked = as_result(as_task(remote<&twice>.with(one.how)(1)));
            const auto got = co_await asked;
            REQUIRE_FALSE(got);
            INFO(got.error().what());
            CHECK(got.error().code() == errc::invalid_argument);
            CHECK(contains(got.error().what(), "did not run"));
            CHECK(contains(got.error().what(), one.says));
        }
    });
}
