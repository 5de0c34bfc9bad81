// SPDX-License-Identifier: Apache-2.0
#include <skein/core/generator.hpp>

#include <catch2/catch_test_macros.hpp>

#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../support/counted.hpp"
#include "../support/manual_loop.hpp"

using namespace std::chrono_literals;

namespace generator_test {

using skein::errc;
using skein::generator;
using skein::task;
using skein_test::counted;
using skein_test::run;
using skein_test::tally;

generator<int> count_to(int n) {
    for (int i = 0; i < n; ++i) co_yield i;
}
generator<int> count_slowly(int n) {
    for (int i = 0; i < n; ++i) {
        co_await skein::sleep_for(1s);
        co_yield i;
    }
}
generator<int> throw_after(int n) {
    for (int i = 0; i < n; ++i) co_yield i;
    throw std::runtime_error("no more");
}
/// What happens to one, in order.
using notes = std::vector<std::string>;

generator<int> clean_up(notes* out, tally* of) {
    const counted local(*of);
    std::exception_ptr failure;
    try {
        for (int i = 0;; ++i) {
            co_await skein::sleep_for(1s);
            co_yield i;
        }
    } catch (const skein::error& e) {
        out->push_back(e.code() == errc::cancelled ? "cancelled" : "failed");
        failure = std::current_exception();
    }
    auto cleaning = skein::shield(skein::with_timeout(
        [](notes* seen) -> task<void> {
            co_await skein::sleep_for(1s);
            seen->push_back("cleaned up");
        }(out),
        1h));
    co_await cleaning;
    std::rethrow_exception(failure);
}
task<void> take(generator<int>* from, std::vector<int>* out, int most) {
    while (most-- > 0) {
        const auto item = co_await from->next();
        if (!item) co_return;
        out->push_back(*item);
    }
}

struct row {
    std::string key;
    std::vector<int> values;
};
generator<row> rows(int n) {
    for (int i = 0; i < n; ++i) {
        row one{std::string(40, 'k'), {i, i + 1}}; // named: see docs/traps.md
        co_yield std::move(one);
    }
}
generator<std::string&> lend(std::vector<std::string>* from) {
    for (auto& one : *from) co_yield one;
}
generator<const std::string&> look(const std::vector<std::string>* at) {
    for (const auto& one : *at) co_yield one;
}
generator<std::unique_ptr<int>> move_only(int n) {
    for (int i = 0; i < n; ++i) co_yield std::make_unique<int>(i);
}

TEST_CASE("a generator gives its items one by one, and then nothing for ever") {
    run([]() -> task<void> {
        auto g = count_to(3);
        std::vector<int> got;
        while (auto n = co_await g.next()) got.push_back(*n);
        CHECK(got == std::vector{0, 1, 2});
        CHECK(!g);
        const auto again = co_await g.next();
        CHECK(!again);
        auto closing = g.close();
        co_await closing;
        generator<int> none;
        const auto of_none = co_await none.next();
        CHECK(!of_none);
        auto empty = count_to(0);
        const auto first = co_await empty.next();
        CHECK(!first);
    }());
}

TEST_CASE("a generator awaits between its items, and nothing of it runs before it is asked") {
    skein_test::manual_loop world;
    world.run([](skein_test::manual_loop* w) -> task<void> {
        auto g = count_slowly(3);
        CHECK(w->elapsed() == 0s);
        int sum = 0;
        while (auto n = co_await g.next()) sum += *n;
        CHECK(sum == 3);
        CHECK(w->elapsed() == 3s);
    }(&world));
}

TEST_CASE("a million items that are there at once do not grow the stack") {
    run([]() -> task<void> {
        auto g = count_to(1'000'000);
        long long sum = 0;
        while (auto n = co_await g.next()) sum += *n;
        CHECK(sum == 499'999'500'000LL);
    }());
}

TEST_CASE("an exception comes out of next() behind the items before it") {
    run([]() -> task<void> {
        for (const int before : {0, 2}) {
            auto g = throw_after(before);
            int items = 0;
            std::string why;
            try {
                while (auto n = co_await g.next()) ++items;
            } catch (const std::runtime_error& e) {
                why = e.what();
            }
            CHECK(items == before);
            CHECK(why == "no more");
            CHECK(!g);
            const auto after = co_await g.next();
            CHECK(!after);
        }
    }());
}

TEST_CASE("items may be aggregates, move-only, or references") {
    run([]() -> task<void> {
        auto g = rows(2);
        int seen = 0;
        while (auto one = co_await g.next()) {
            CHECK(one->key == std::string(40, 'k'));
            CHECK(one->values == std::vector{seen, seen + 1});
            ++seen;
        }
        CHECK(seen == 2);
        auto m = move_only(3);
        int sum = 0;
        while (auto one = co_await m.next()) sum += **one;
        CHECK(sum == 3);
        std::vector<std::string> texts{"a", "b"};
        auto lent = lend(&texts);
        while (auto* one = co_await lent.next()) *one += "!";
        CHECK(texts == std::vector<std::string>{"a!", "b!"});
        auto seen_only = look(&texts);
        const std::string* const first = co_await seen_only.next();
        CHECK(first == &texts[0]);
    }());
}

TEST_CASE("values are moved out, and destroyed once") {
    tally t;
    run([](tally* of) -> task<void> {
        const auto make = [](tally* in) -> generator<counted> {
            for (int i = 0; i < 3; ++i) {
                counted one(*in, i);
                co_yield std::move(one);
            }
            co_yield counted(*in, 3);
        };
        auto g = make(of);
        int sum = 0;
        while (auto one = co_await g.next()) sum += one->value();
        CHECK(sum == 6);
        CHECK(of->copied == 0);
    }(&t));
    CHECK(t.alive == 0);
}

TEST_CASE("who drops a generator destroys its locals: before its start, at an item, at its end") {
    for (const int items : {0, 1, 3}) {
        tally t;
        const auto body = [](int most, tally* of) -> task<void> {
            const auto make = [](counted held, tally* in) -> generator<int> {
                const counted local(*in);
                co_yield held.value();
                co_yield held.value() + 1;
            };
            auto g = make(counted(*of, 5), of);
            std::vector<int> got;
            auto taking = take(&g, &got, most);
            co_await taking;
            g = {};
            CHECK(of->alive == 0);
        };
        run(body(items, &t));
        CHECK(t.alive == 0);
    }
}

TEST_CASE("close() ends when the clean-up has, which awaits") {
    skein_test::manual_loop world;
    world.run([](skein_test::manual_loop* w) -> task<void> {
        notes seen;
        tally t;
        std::vector<int> got;
        auto g = clean_up(&seen, &t);
        auto taking = take(&g, &got, 2);
        co_await taking;
        auto closing = g.close();
        co_await closing;
        CHECK(got == std::vector{0, 1});
        CHECK(seen == notes{"cancelled", "cleaned up"});
        CHECK(w->elapsed() == 3s);
        CHECK(t.alive == 0);
        CHECK(!g);
    }(&world));
}

TEST_CASE("close() of one that has not begun runs nothing of it") {
    run([]() -> task<void> {
        notes seen;
        tally t;
        auto g = clean_up(&seen, &t);
        auto closing = g.close();
        co_await closing;
        CHECK(seen.empty());
        CHECK(t.made == 0);
    }());
}

TEST_CASE("close() tells what the clean-up throws, and of one that does not end") {
    run([]() -> task<void> {
        const auto fails = []() -> generator<int> {
            try {
                co_yield 1;
            } catch (const skein::error&) {
                throw std::runtime_error("the disk is full");
            }
        };
        auto g = fails();
        (void)co_await g.next();
        std::string why;
        try {
            auto closing = g.close();
            co_await closing;
        } catch (const std::runtime_error& e) {
            why = e.what();
        }
        CHECK(why == "the disk is full");
        const auto goes_on = []() -> generator<int> {
            for (;;) {
                try {
                    co_yield 1;
                } catch (const skein::error&) {}
            }
        };
        auto endless = goes_on();
        (void)co_await endless.next();
        auto code = errc::unknown;
        try {
            auto closing = endless.close();
            co_await closing;
        } catch (const skein::error& e) {
            code = e.code();
        }
        CHECK(code == errc::internal);
        CHECK(!endless);
    }());
}

TEST_CASE("cancelled at each of its awaits, a generator has unwound before who asked goes on") {
    for (int ms = 500; ms <= 4500; ms += 500) {
        skein_test::manual_loop world;
        world.run([](skein_test::manual_loop* w, int after) -> task<void> {
            notes seen;
            tally t;
            std::vector<int> got;
            auto g = clean_up(&seen, &t);
            auto code = errc::unknown;
            try {
                auto limited =
                    skein::with_timeout(take(&g, &got, 100), std::chrono::milliseconds(after));
                co_await limited;
            } catch (const skein::error& e) {
                code = e.code();
            }
            CHECK(code == errc::timeout);
            CHECK(seen == notes{"cancelled", "cleaned up"});
            CHECK(t.alive == 0);
            CHECK(!g);
            CHECK(w->elapsed() >= std::chrono::milliseconds(after) + 1s);
        }(&world, ms));
    }
}

TEST_CASE("the body runs under the cancellation of who asks now") {
    run([]() -> task<void> {
        auto g = count_slowly(3);
        std::vector<int> got;
        skein::cancel_source stop;
        auto first = skein::with_cancel(stop.token(), take(&g, &got, 1));
        co_await first;
        stop.request(); // of who has asked before: it is nobody's any more
        auto second = take(&g, &got, 2);
        co_await second;
        CHECK(got == std::vector{0, 1, 2});
    }());
}

TEST_CASE("with_generator closes it however its body ends") {
    run([]() -> task<void> {
        for (const bool throws : {false, true}) {
            notes seen;
            tally t;
            const auto body = [](generator<int>& g, bool fails) -> task<void> {
                (void)co_await g.next();
                if (fails) throw std::runtime_error("enough");
            };
            std::string why;
            try {
                auto work = skein::with_generator(clean_up(&seen, &t), body, throws);
                co_await work;
            } catch (const std::runtime_error& e) {
                why = e.what();
            }
            CHECK(why == (throws ? "enough" : ""));
            CHECK(seen == notes{"cancelled", "cleaned up"});
            CHECK(t.alive == 0);
        }
    }());
}

TEST_CASE("a body cancelled inside with_generator leaves nothing behind") {
    run([]() -> task<void> {
        notes seen;
        tally t;
        const auto body = [](generator<int>& g) -> task<void> {
            (void)co_await g.next();
            co_await skein::sleep_for(1h);
        };
        auto code = errc::unknown;
        try {
            auto limited =
                skein::with_timeout(skein::with_generator(clean_up(&seen, &t), body), 10s);
            co_await limited;
        } catch (const skein::error& e) {
            code = e.code();
        }
        CHECK(code == errc::timeout);
        CHECK(seen == notes{"cancelled", "cleaned up"});
        CHECK(t.alive == 0);
    }());
}

TEST_CASE("a generator's body may own tasks of its own") {
    run([]() -> task<void> {
        const auto make = []() -> generator<int> {
            int done = 0;
            skein::scope s;
            const auto child = [](int* out) -> task<void> {
                co_await skein::sleep_for(1s);
                ++*out;
            };
            s.spawn(child(&done));
            s.spawn(child(&done));
            co_yield done;
            auto joined = s.join();
            co_await joined;
            co_yield done;
        };
        auto g = make();
        std::vector<int> got;
        auto taking = take(&g, &got, 9);
        co_await taking;
        CHECK(got == std::vector{0, 2});
    }());
}

} // namespace generator_test
