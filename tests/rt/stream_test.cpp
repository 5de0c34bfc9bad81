// SPDX-License-Identifier: Apache-2.0
#include <skein/rt/stream.hpp>

#include <tests/apps/apps.hpp>
#include <tests/support/sim_cluster.hpp>

#include <skein/core/event.hpp>
#include <skein/core/timeout.hpp>
#include <skein/rt/detail/peer.hpp>
#include <skein/rt/runtime_context.hpp>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include <catch2/catch_test_macros.hpp>

using namespace skein;
using namespace std::chrono_literals;
using skein::test::in_sim;
using skein::test::sim_cluster;

namespace stream_test {

/// What the producers of a simulated world did; tests reset it.
struct seen {
    int made = 0;    ///< items that were yielded
    int begun = 0;   ///< generators
    int cleaned = 0; ///< that have cleaned up, which takes a while
    int inside = 0;  ///< locals that live
};
thread_local seen now;

struct local {
    local() { ++now.inside; }
    local(const local&) = delete;
    local& operator=(const local&) = delete;
    ~local() { --now.inside; }
};

generator<int> count_to(int n) {
    ++now.begun;
    const local here;
    for (int i = 0; i < n; ++i) {
        ++now.made;
        co_yield i;
    }
}
/// A function that gives a generator.
generator<int> counts_of(std::vector<int> bounds) { return count_to(bounds.at(0)); }
generator<int> count_slowly(int n, int ms) {
    ++now.begun;
    const local here;
    for (int i = 0; i < n; ++i) {
        co_await sleep_for(std::chrono::milliseconds(ms));
        ++now.made;
        co_yield i;
    }
}
generator<int> fail_after(int n) {
    ++now.begun;
    for (int i = 0; i < n; ++i) co_yield i;
    throw std::runtime_error("the file ends here");
}
generator<int> no_generator(int) { throw std::runtime_error("not even one"); }
generator<std::string> texts(int n, std::size_t bytes) {
    for (int i = 0; i < n; ++i) {
        ++now.made;
        co_yield std::string(bytes, static_cast<char>('a' + i % 26));
    }
}
/// Endless; its clean-up awaits.
generator<int> clean_up(int ms) {
    ++now.begun;
    const local here;
    bool ended = false;
    try {
        for (int i = 0;; ++i) {
            if (ms > 0) co_await sleep_for(std::chrono::milliseconds(ms));
            ++now.made;
            co_yield i;
        }
    } catch (const error&) {
        ended = true;
    }
    if (ended) {
        auto cleaning = shield([]() -> task<void> {
            co_await sleep_for(50ms);
            ++now.cleaned;
        }());
        co_await cleaning;
        throw cancelled_error();
    }
}
int twice(int x) { return 2 * x; }
/// Makes calls between its items.
generator<int> doubled(int n) {
    for (int i = 0; i < n; ++i) {
        auto r = remote<&twice>(i);
        co_yield co_await r;
    }
}
/// Dies behind so many items, as often as it is told to.
int deaths = 0;
sim_cluster* whose = nullptr;
generator<int> die_after(int n, int all) {
    ++now.begun;
    for (int i = 0; i < all; ++i) {
        if (i == n && deaths > 0) {
            co_await sleep_for(20ms); // what was sent has arrived
            --deaths;
            whose->kill_process(runtime_context().pid);
            co_await sleep_for(1h);
        }
        co_yield i;
    }
}
generator<int> fail_until(int good) {
    ++now.begun;
    if (now.begun < good) throw error(errc::io, "try again");
    for (int i = 0; i < 3; ++i) co_yield i;
}
generator<int> fail_behind_one() {
    ++now.begun;
    co_yield 7;
    co_await sleep_for(10ms);
    throw error(errc::io, "try again");
}

/// The sum of a stream that a worker takes.
task<int> sum_of(int n) {
    auto s = stream<&count_to>(n);
    int sum = 0;
    while (auto i = co_await s.next()) sum += *i;
    co_return sum;
}
/// As far as it comes, and how it ends.
task<std::string> taken_of(int before, int all) {
    auto s = stream<&die_after>(before, all);
    int items = 0;
    std::string how = "end";
    try {
        while (auto i = co_await s.next()) ++items;
    } catch (const error& e) {
        how = std::string(to_string(e.code()));
    }
    co_return std::to_string(items) + " " + how;
}

struct shelf {
    int from = 0;
    generator<int> books(int n) {
        const local here;
        for (int i = 0; i < n; ++i) {
            ++now.made;
            co_yield from + i;
        }
        from += n;
    }
    generator<int> slow_books(int n, int ms) const {
        for (int i = 0; i < n; ++i) {
            co_await sleep_for(std::chrono::milliseconds(ms));
            co_yield from + i;
        }
    }
    int get() const { return from; }
    task<int> ask(actor_handle<shelf> other, int n) {
        auto s = other.stream<&shelf::books>(n);
        int sum = 0;
        while (auto i = co_await s.next()) sum += *i;
        co_return sum;
    }
};
/// Of an actor, from a worker.
task<int> sum_of_books(actor_handle<shelf> of, int n) {
    auto s = of.stream<&shelf::books>(n);
    int sum = 0;
    while (auto i = co_await s.next()) sum += *i;
    co_return sum;
}

/// Its codec refuses a number: where it is read, or where it is written.
struct odd_item {
    int number = 0, bad = 0;
};
generator<odd_item> odd_items(int n, int bad) {
    for (int i = 0; i < n; ++i) {
        odd_item one{i, bad};
        co_yield one;
    }
}

struct outcome {
    int items = 0;
    long long sum = 0;
    errc code = errc::unknown; ///< unknown: it ended well
    std::string why;
    bool operator==(const std::pair<int, errc>& other) const {
        return items == other.first && code == other.second;
    }
};
task<outcome> take_all(item_stream<int> s) {
    outcome out;
    try {
        while (auto i = co_await s.next()) {
            if (*i != out.items) out.why = "out of order";
            ++out.items;
            out.sum += *i;
        }
    } catch (const error& e) {
        out.code = e.code();
        out.why = e.what();
    }
    co_return out;
}
/// Nothing of a world's streams is left.
task<void> check_nothing_is_left(sim_cluster* c) {
    for (int i = 0; i < 100 && (c->running() != 0 || c->driver().pending() != 0); ++i)
        co_await sleep_for(10ms);
    CHECK(c->running() == 0);
    CHECK(c->driver().pending() == 0);
    CHECK(now.inside == 0);
}

} // namespace stream_test

template <>
struct skein::wire::codec<stream_test::odd_item> {
    static constexpr const char* schema = "odd_item";
    static void encode(writer& to, const stream_test::odd_item& one) {
        if (one.bad < 0) throw error(errc::invalid_argument, "too hot to touch");
        to.fixed(one.number);
        to.fixed(one.bad);
    }
    static skein::result<void> decode(reader& from, stream_test::odd_item& into) {
        if (!from.fixed(into.number) || !from.fixed(into.bad)) return from.status();
        if (into.number == into.bad) from.fail(errc::malformed, "no number 3");
        return from.status();
    }
};

namespace stream_test {

TEST_CASE("a stream gives the items of a generator in order, and an end", "[rt][stream][S1][S2]") {
    now = {};
    in_sim(1, 2, [](sim_cluster& c) -> task<void> {
        for (const int n : {0, 1, 63, 64, 65, 1000}) {
            auto taking = take_all(stream<&count_to>(n));
            const auto got = co_await taking;
            CHECK(got == std::pair(n, errc::unknown));
            CHECK(got.why.empty());
        }
        auto of_function = take_all(stream<&counts_of>(std::vector{5, 7}));
        const auto got = co_await of_function;
        CHECK(got.items == 5);
        auto s = stream<&count_to>(1);
        (void)co_await s.next();
        const auto end = co_await s.next();
        const auto again = co_await s.next();
        CHECK(!end);
        CHECK(!again);
        auto checked = check_nothing_is_left(&c);
        co_await checked;
    });
}

TEST_CASE("a million items come through a small window", "[rt][stream][S2][S4]") {
    now = {};
    in_sim(2, 1, [](sim_cluster&) -> task<void> {
        auto taking = take_all(stream<&count_to>.with({.items = 3})(20'000));
        const auto few = co_await taking;
        CHECK(few == std::pair(20'000, errc::unknown));
        auto much = take_all(stream<&count_to>.with({.items = 4096})(1'000'000));
        const auto got = co_await much;
        CHECK(got == std::pair(1'000'000, errc::unknown));
        CHECK(got.sum == 499'999'500'000LL);
    });
}

TEST_CASE("who reads slowly holds up the producer", "[rt][stream][S4]") {
    now = {};
    in_sim(3, 1, [](sim_cluster& c) -> task<void> {
        auto s = stream<&count_to>.with({.items = 8})(1000);
        co_await sleep_for(1s);
        CHECK(now.made == 9); // one is made ahead
        for (int i = 0; i < 20; ++i) {
            const auto item = co_await s.next();
            CHECK(item == i);
            co_await sleep_for(100ms);
            CHECK(now.made <= i + 1 + 9);
        }
        // Bytes bound it as well: one item beyond the window.
        now.made = 0;
        auto large = stream<&texts>.with({.items = 1000, .bytes = 10'000})(50, 4000);
        co_await sleep_for(1s);
        CHECK(now.made == 4); // 3 * 4000 > 10,000, and one ahead
        int items = 0;
        while (auto one = co_await large.next()) {
            CHECK(one->size() == 4000);
            CHECK(now.made <= ++items + 4);
        }
        CHECK(items == 50);
        s = {};
        auto checked = check_nothing_is_left(&c);
        co_await checked;
    });
}

TEST_CASE("one item may be larger than the window", "[rt][stream][S4]") {
    now = {};
    in_sim(4, 1, [](sim_cluster&) -> task<void> {
        auto s = stream<&texts>.with({.items = 4, .bytes = 1})(5, std::size_t{200'000});
        int items = 0;
        while (auto one = co_await s.next()) {
            CHECK(one->size() == 200'000);
            ++items;
        }
        CHECK(items == 5);
    });
}

TEST_CASE("a window of nothing is refused", "[rt][stream][S4]") {
    in_sim(5, 1, [](sim_cluster&) -> task<void> {
        for (const stream_window none : {stream_window{0, 100}, stream_window{100, 0}}) {
            auto taking = take_all(stream<&count_to>.with(none)(3));
            const auto got = co_await taking;
            CHECK(got == std::pair(0, errc::invalid_argument));
            CHECK(rt_test::contains(got.why, "did not run: its window is of"));
            CHECK(rt_test::contains(got.why, "at least one of each"));
        }
    });
}

TEST_CASE("an exception comes behind the items before it", "[rt][stream][S3]") {
    now = {};
    in_sim(6, 2, [](sim_cluster& c) -> task<void> {
        for (const int n : {0, 1, 200}) {
            auto taking = take_all(stream<&fail_after>(n));
            const auto got = co_await taking;
            CHECK(got == std::pair(n, errc::remote_exception));
            CHECK(rt_test::contains(got.why, "the file ends here"));
        }
        auto at_once = take_all(stream<&no_generator>(3));
        const auto got = co_await at_once;
        CHECK(got == std::pair(0, errc::remote_exception));
        CHECK(rt_test::contains(got.why, "not even one"));
        auto checked = check_nothing_is_left(&c);
        co_await checked;
    });
}

TEST_CASE("dropping a stream ends its producer, whose clean-up runs", "[rt][stream][S5]") {
    for (const int ms : {0, 1}) {
        now = {};
        in_sim(7, 1, [ms](sim_cluster& c) -> task<void> {
            {
                auto s = stream<&clean_up>(ms);
                for (int i = 0; i < 10; ++i) (void)co_await s.next();
            }
            auto checked = check_nothing_is_left(&c);
            co_await checked;
            CHECK(now.cleaned == 1);
            {
                auto unread = stream<&clean_up>(ms); // nobody has looked at it
                co_await sleep_for(100ms);
            }
            auto checked_again = check_nothing_is_left(&c);
            co_await checked_again;
            CHECK(now.cleaned == 2);
            { auto never = stream<&clean_up>(ms); } // it was not even sent, or has just been
            auto checked_last = check_nothing_is_left(&c);
            co_await checked_last;
        });
    }
}

TEST_CASE("close() waits for the clean-up", "[rt][stream][S5]") {
    now = {};
    in_sim(8, 1, [](sim_cluster& c) -> task<void> {
        auto s = stream<&clean_up>(1);
        (void)co_await s.next();
        auto closing = s.close();
        co_await closing;
        CHECK(now.cleaned == 1);
        CHECK(!s);
        auto of_none = s.close();
        co_await of_none;
        auto ended = stream<&count_to>(0);
        (void)co_await ended.next();
        auto of_ended = ended.close();
        co_await of_ended;
        auto checked = check_nothing_is_left(&c);
        co_await checked;
    });
}

TEST_CASE("cancel() leaves the items that have come, then throws", "[rt][stream][S5]") {
    now = {};
    in_sim(9, 1, [](sim_cluster&) -> task<void> {
        auto s = stream<&count_slowly>(1000, 10);
        co_await sleep_for(105ms);
        s.cancel();
        co_await sleep_for(100ms);
        auto taking = take_all(std::move(s));
        const auto got = co_await taking;
        CHECK(got.code == errc::cancelled);
        CHECK(got.items >= 9);
        CHECK(got.items <= 11);
    });
}

TEST_CASE("a cancelled next() takes no item", "[rt][stream][S7]") {
    now = {};
    in_sim(10, 1, [](sim_cluster&) -> task<void> {
        auto s = stream<&count_slowly>(10, 100);
        int expected = 0, late = 0;
        while (expected < 10) {
            const auto one = [](item_stream<int>* of) -> task<std::optional<int>> {
                co_return co_await of->next();
            };
            auto limited = with_timeout(one(&s), 30ms);
            auto asked = as_result(std::move(limited));
            const auto got = co_await asked;
            if (!got) {
                CHECK(got.error().code() == errc::timeout);
                ++late;
                continue;
            }
            CHECK(*got == std::optional(expected++));
        }
        CHECK(late >= 20);
    });
}

TEST_CASE("a stream's deadline ends it behind what has come", "[rt][stream][S10]") {
    now = {};
    in_sim(11, 1, [](sim_cluster& c) -> task<void> {
        auto taking = take_all(stream<&count_slowly>.with({.deadline = 105ms})(1000, 10));
        const auto got = co_await taking;
        CHECK(got.code == errc::timeout);
        CHECK(got.items >= 8);
        CHECK(got.items <= 11);
        auto checked = check_nothing_is_left(&c);
        co_await checked;
    });
}

TEST_CASE("the context goes along: calls of a generator are its call's", "[rt][stream][S1]") {
    now = {};
    in_sim(12, 2, [](sim_cluster& c) -> task<void> {
        auto s = stream<&doubled>(50);
        int sum = 0;
        while (auto i = co_await s.next()) sum += *i;
        CHECK(sum == 50 * 49);
        auto checked = check_nothing_is_left(&c);
        co_await checked;
    });
}

TEST_CASE("a producer that waits for its reader leaves its core to others", "[rt][stream][S8]") {
    now = {};
    in_sim(13, 1, [](sim_cluster& c) -> task<void> {
        auto s = stream<&count_to>.with({.items = 2})(20);
        int sum = 0;
        while (auto i = co_await s.next()) { // the only core is the producer's
            auto r = remote<&twice>(*i);
            auto limited = with_timeout(r, 10s);
            sum += co_await limited;
        }
        CHECK(sum == 20 * 19);
        auto checked = check_nothing_is_left(&c);
        co_await checked;
    });
}

TEST_CASE("a task whose worker dies runs again while nobody has taken an item",
          "[rt][stream][S6]") {
    for (const bool share : {true, false}) {
        now = {};
        deaths = 2;
        in_sim(
            14, 2,
            [](sim_cluster& c) -> task<void> {
                whose = &c;
                auto s = stream<&die_after>(5, 30);
                co_await sleep_for(1s); // five items have come, twice, for nothing
                auto taking = take_all(std::move(s));
                const auto got = co_await taking;
                CHECK(got == std::pair(30, errc::unknown));
                CHECK(got.why.empty());
                CHECK(now.begun == 3);
                CHECK(c.driver().stats().retried == 2);
            },
            1, share);
    }
}

TEST_CASE("it does not once an item was taken; the death comes behind what has come",
          "[rt][stream][S3][S6]") {
    now = {};
    deaths = 1;
    in_sim(15, 1, [](sim_cluster& c) -> task<void> {
        whose = &c;
        auto taking = take_all(stream<&die_after>(5, 30));
        const auto got = co_await taking;
        CHECK(got == std::pair(5, errc::worker_lost));
        CHECK(rt_test::contains(got.why, "it does not run again, for items of it have been taken"));
        CHECK(now.begun == 1);
        auto checked = check_nothing_is_left(&c);
        co_await checked;
    });
}

TEST_CASE("without retries a death ends a stream nobody has looked at", "[rt][stream][S3]") {
    now = {};
    deaths = 1;
    in_sim(16, 1, [](sim_cluster& c) -> task<void> {
        whose = &c;
        auto s = stream<&die_after>.with({.retries = 0})(5, 30);
        co_await sleep_for(1s);
        auto taking = take_all(std::move(s));
        const auto got = co_await taking;
        CHECK(got == std::pair(5, errc::worker_lost));
    });
}

TEST_CASE("failures after which it runs again count while nothing was taken", "[rt][stream][S6]") {
    now = {};
    in_sim(17, 1, [](sim_cluster&) -> task<void> {
        auto taking = take_all(stream<&fail_until>.with({.retry_on = {errc::io}})(3));
        const auto got = co_await taking;
        CHECK(got == std::pair(3, errc::unknown));
        CHECK(now.begun == 3);
        now = {};
        auto s = stream<&fail_behind_one>.with({.retry_on = {errc::io}})();
        const auto first = co_await s.next();
        CHECK(first == 7);
        auto code = errc::unknown;
        try {
            (void)co_await s.next();
        } catch (const error& e) {
            code = e.code();
        }
        CHECK(code == errc::io);
        CHECK(now.begun == 1);
    });
}

TEST_CASE("workers have streams of their own", "[rt][stream][S11]") {
    now = {};
    in_sim(18, 2, [](sim_cluster& c) -> task<void> {
        auto r = remote<&sum_of>(1000);
        const int sum = co_await r;
        CHECK(sum == 1000 * 999 / 2);
        whose = &c;
        deaths = 1;
        auto dies = remote<&taken_of>.with({.retries = 0})(5, 30);
        // Which of the two dies: only the producer's worker may, or both were one.
        auto asked = as_result(dies);
        const auto got = co_await asked;
        if (got) CHECK((*got == "5 worker_lost" || *got == "30 end"));
        deaths = 0;
        auto checked = check_nothing_is_left(&c);
        co_await checked;
    });
}

TEST_CASE("methods give streams: from the driver, from workers, to themselves",
          "[rt][stream][S9][S11]") {
    for (const bool directly : {true, false}) {
        now = {};
        sim::loop loop(19);
        sim::network network(loop, sim::faults{});
        sim_cluster cluster(loop, network, 3);
        if (!directly) cluster.call_through_driver();
        loop.run(cluster.run([](sim_cluster& c) -> task<void> {
            auto made = skein::actor<shelf>(100);
            auto a = co_await made;
            auto made_too = skein::actor<shelf>(0);
            auto b = co_await made_too;
            auto s = a.stream<&shelf::books>(3);
            std::vector<int> got;
            while (auto i = co_await s.next()) got.push_back(*i);
            CHECK(got == std::vector{100, 101, 102});
            // Calls behind it start when it has suspended; it ends before what waits for its end.
            auto from = a.call<&shelf::get>();
            const int after = co_await from;
            CHECK(after == 103);
            auto of_worker = remote<&sum_of_books>(a, 1000);
            const int sum = co_await of_worker;
            CHECK(sum == 1000 * 103 + 999 * 1000 / 2);
            auto of_actor = b.call<&shelf::ask>(a, 100);
            const int of_other = co_await of_actor;
            CHECK(of_other == 100 * 1103 + 99 * 100 / 2);
            auto of_itself = b.call<&shelf::ask>(b, 100);
            const int own = co_await of_itself;
            CHECK(own == 99 * 100 / 2);
            auto with_options =
                stream<&shelf::slow_books>.with({.deadline = 1h}).with({.items = 2})(a, 3, 5);
            int items = 0;
            while (auto i = co_await with_options.next()) ++items;
            CHECK(items == 3);
            auto checked = check_nothing_is_left(&c);
            co_await checked;
        }));
    }
}

TEST_CASE("an actor that is killed ends its streams", "[rt][stream][S9]") {
    now = {};
    in_sim(20, 1, [](sim_cluster& c) -> task<void> {
        auto made = skein::actor<shelf>(0);
        auto a = co_await made;
        auto s = a.stream<&shelf::slow_books>(1000, 10);
        co_await sleep_for(55ms);
        kill(a);
        auto taking = take_all(std::move(s));
        const auto got = co_await taking;
        CHECK(got.code != errc::unknown);
        CHECK(got.items >= 4);
        CHECK(got.items <= 6);
        auto checked = check_nothing_is_left(&c);
        co_await checked;
    });
}

TEST_CASE("a stream whose argument is a ref waits for it", "[rt][stream]") {
    now = {};
    in_sim(21, 1, [](sim_cluster&) -> task<void> {
        auto n = remote<&twice>(21);
        auto taking = take_all(stream<&count_to>(n));
        const auto got = co_await taking;
        CHECK(got == std::pair(42, errc::unknown));
    });
}

TEST_CASE("ten thousand streams leave nothing", "[rt][stream]") {
    now = {};
    in_sim(22, 2, [](sim_cluster& c) -> task<void> {
        for (int round = 0; round < 100; ++round) {
            std::vector<item_stream<int>> all;
            for (int i = 0; i < 100; ++i) all.push_back(stream<&count_to>(i % 7));
            for (int i = 0; i < 100; i += 2) {
                auto taking = take_all(std::move(all[static_cast<std::size_t>(i)]));
                const auto got = co_await taking;
                CHECK(got.items == i % 7);
            }
        }
        auto checked = check_nothing_is_left(&c);
        co_await checked;
    });
}

/// A worker that does nothing with the call that comes to it; the test answers in its stead.
struct false_worker {
    std::shared_ptr<net::connection> wire;
    std::uint64_t call = 0;
    event came;

    static task<void> join(false_worker* self, sim_cluster* c) {
        auto connecting = c->impostor();
        self->wire = co_await connecting;
        self->wire->set_handler([self](const net::frame_view& f) {
            if (f.kind != rt::detail::message_call) return;
            self->call = f.id;
            self->came.set();
        });
    }
};

TEST_CASE("who says of a stream what cannot be loses its link, and nobody else", "[rt][stream]") {
    now = {};
    using rt::detail::message_item, rt::detail::message_reply, rt::detail::message_taken;
    struct lie {
        const char* what;
        std::uint16_t kind, flags;
        std::vector<std::byte> body;
        int times;
        const char* why;
    };
    const auto bytes = [](std::size_t n) { return std::vector<std::byte>(n); };
    for (const lie& told : {lie{"more items than fit", message_item, 0, bytes(4), 200,
                                "beyond its window of 64 items and 4194304 bytes"},
                            lie{"an end that is too short", message_reply, 0, bytes(7), 1,
                                "an end of stream_test::count_to(int) that cannot be read"},
                            lie{"an end behind items that were not sent", message_reply, 0,
                                std::vector<std::byte>{std::byte{9}, {}, {}, {}, {}, {}, {}, {}}, 1,
                                "ends behind 9 items, and 0 have come"},
                            lie{"a failure that cannot be counted", message_reply, 65, bytes(3), 1,
                                "an end of stream_test::count_to(int) that cannot be read"}}) {
        INFO(told.what);
        in_sim(23, 0, [&told](sim_cluster& c) -> task<void> {
            false_worker fake;
            auto joining = false_worker::join(&fake, &c);
            co_await joining;
            auto s = stream<&count_to>.with({.retries = 0})(3);
            co_await fake.came.wait();
            for (int i = 0; i < told.times; ++i)
                fake.wire->send(told.kind, told.flags, fake.call, told.body, {});
            auto limited = with_timeout(take_all(std::move(s)), 10s);
            const auto got = co_await limited;
            CHECK(got.code == errc::worker_lost);
            CHECK(rt_test::contains(got.why, told.why));
        });
    }
}

TEST_CASE("an item of a call that gives none ends the link that brings it", "[rt][stream]") {
    in_sim(25, 0, [](sim_cluster& c) -> task<void> {
        false_worker fake;
        auto joining = false_worker::join(&fake, &c);
        co_await joining;
        auto r = remote<&twice>.with({.retries = 0})(3);
        co_await fake.came.wait();
        const std::vector<std::byte> body(4);
        const auto of_none = fake.call + 1; // it has ended
        fake.wire->send(rt::detail::message_item, 0, of_none, body, {});
        fake.wire->send(rt::detail::message_item, 0, fake.call, body, {});
        auto limited = with_timeout(r, 10s);
        auto asked = as_result(std::move(limited));
        const auto got = co_await asked;
        REQUIRE(!got);
        CHECK(got.error().code() == errc::worker_lost);
        CHECK(rt_test::contains(got.error().what(), "which gives none, from impostor"));
    });
}

TEST_CASE("room for what was never sent is refused where items are made", "[rt][stream]") {
    using namespace rt::detail;
    rt::peer reader;
    reader.who = "worker-9";
    const rt::slot_id id(7);
    item_credit credit(stream_window{4, 100});
    auto running = std::make_unique<running_call>();
    running->items = &credit;
    reader.inbound.running.enter(id, std::move(running));
    credit.sent(60);
    credit.sent(60);
    CHECK(!credit.has_room()); // bytes
    const auto refusal = [&](rt::slot_id of, byte_span body) -> std::string {
        try {
            executor::items_were_taken(reader, of, body);
        } catch (const error& e) {
            CHECK(e.code() == errc::malformed);
            return e.what();
        }
        return "";
    };
    const auto taken = [](std::uint32_t items, std::uint64_t bytes) {
        wire::writer out;
        items_taken{items, bytes}.encode(out);
        return std::move(out).take();
    };
    CHECK(rt_test::contains(refusal(id, taken(3, 60)), "more than were sent to it"));
    CHECK(rt_test::contains(refusal(id, taken(1, 121)), "worker-9 has taken 1 items of 121 bytes"));
    CHECK(rt_test::contains(refusal(id, taken(0, 0)), "cannot be read"));
    CHECK(rt_test::contains(refusal(id, byte_buffer(11)), "cannot be read"));
    CHECK(refusal(rt::slot_id(8), taken(9, 9)).empty()); // of one that has ended
    CHECK(!credit.has_room());
    CHECK(refusal(id, taken(1, 60)).empty());
    CHECK(credit.has_room());
    reader.inbound.running.erase(id);
}

TEST_CASE("who takes items never keeps back so much that the producer stands still",
          "[rt][stream][S4]") {
    using namespace rt::detail;
    for (const std::uint32_t items : {1U, 2U, 3U, 64U})
        for (const std::uint64_t bytes : {1U, 2U, 100U, 4096U})
            for (const std::size_t each : {0U, 1U, 30U, 5000U}) {
                item_credit credit(stream_window{items, bytes});
                item_debt debt(stream_window{items, bytes});
                for (int i = 0; i < 500; ++i) {
                    REQUIRE(credit.has_room());
                    credit.sent(each);
                    REQUIRE(debt.came(each));
                    items_taken due;
                    if (debt.taken(each, due)) REQUIRE(credit.give(due));
                }
            }
}

TEST_CASE("what cannot be an item fails in its turn", "[rt][stream][S12]") {
    in_sim(24, 1, [](sim_cluster& c) -> task<void> {
        auto s = stream<&odd_items>(5, 3);
        int items = 0;
        std::string why;
        try {
            while (auto one = co_await s.next()) CHECK(one->number == items++);
        } catch (const error& e) {
            CHECK(e.code() == errc::malformed);
            why = e.what();
        }
        CHECK(items == 3);
        CHECK(rt_test::contains(why, "cannot be read"));
        CHECK(rt_test::contains(why, "no number 3"));
        auto hot = stream<&odd_items>(1, -1);
        why.clear();
        try {
            (void)co_await hot.next();
        } catch (const error& e) {
            why = e.what();
        }
        CHECK(rt_test::contains(why, "too hot to touch"));
        auto checked = check_nothing_is_left(&c);
        co_await checked;
    });
}

TEST_CASE("streams between real processes", "[rt][stream][process]") {
    const int code = rt_test::drive(2, []() -> task<int> {
        auto taking = take_all(stream<&count_to>(10'000));
        const auto got = co_await taking;
        auto of_worker = remote<&sum_of>(1000);
        const int sum = co_await of_worker;
        auto made = skein::actor<shelf>(5);
        auto a = co_await made;
        auto of_method = take_all(a.stream<&shelf::books>(0));
        const auto none = co_await of_method;
        auto from_worker = remote<&sum_of_books>(a, 100);
        const int books = co_await from_worker;
        auto failing = take_all(stream<&fail_after>(100));
        const auto failed = co_await failing;
        auto large = stream<&texts>(20, std::size_t{300'000});
        std::size_t total = 0;
        while (auto one = co_await large.next()) total += one->size();
        {
            auto dropped = stream<&clean_up>(1);
            (void)co_await dropped.next();
        }
        auto closed = stream<&clean_up>(0);
        (void)co_await closed.next();
        auto closing = closed.close();
        co_await closing;
        const bool good = got == std::pair(10'000, errc::unknown) && sum == 1000 * 999 / 2 &&
                          none.items == 0 && books == 100 * 5 + 99 * 100 / 2 &&
                          failed == std::pair(100, errc::remote_exception) && total == 6'000'000;
        co_return good ? 0 : 3;
    });
    CHECK(code == 0);
}

} // namespace stream_test
