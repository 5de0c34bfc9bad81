// SPDX-License-Identifier: Apache-2.0
#include <skein/core/loop.hpp>

#include <catch2/catch_test_macros.hpp>

#include <skein/core/event.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>

#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../support/counted.hpp"
#include "../support/death.hpp"
#include "../support/manual_loop.hpp"

using namespace std::chrono_literals;
using skein::task;
using skein_test::manual_loop;

TEST_CASE("run gives the value or rethrows, and the loop can run again") {
    manual_loop world;
    const auto value = []() -> task<std::string> { co_return "value"; };
    const auto failing = []() -> task<void> {
        throw std::runtime_error("failed");
        co_return;
    };
    CHECK(world.run(value()) == "value");
    CHECK_THROWS_AS(world.run(failing()), std::runtime_error);
    CHECK(world.run(value()) == "value");
}

TEST_CASE("the current loop is the one that runs on this thread") {
    manual_loop world;
    CHECK(skein::loop::try_current() == nullptr);
    const auto body = [](manual_loop* expected) -> task<bool> {
        co_return &skein::loop::current() == expected;
    };
    CHECK(world.run(body(&world)));
    CHECK(skein::loop::try_current() == nullptr);
}

TEST_CASE("posted calls run in order, after the one that posts") {
    manual_loop world;
    std::string order;
    const auto body = [](manual_loop* l, std::string* out) -> task<void> {
        l->post([out] { *out += 'b'; });
        l->post([l, out] {
            *out += 'c';
            l->post([out] { *out += 'd'; });
        });
        *out += 'a';
        co_await skein::yield();
        co_await skein::yield();
        *out += 'e';
    };
    world.run(body(&world, &order));
    CHECK(order == "abcde");
}

TEST_CASE("calls that never ran are destroyed with the loop") {
    skein_test::tally t;
    {
        manual_loop world;
        world.post([held = skein_test::counted(t)] { (void)held.value(); });
        CHECK(t.alive == 1);
    }
    CHECK(t.alive == 0);
}

TEST_CASE("time is virtual, jumps to the next timer and stands still while work is ready") {
    manual_loop world;
    const auto body = [](manual_loop* l) -> task<void> {
        const auto begin = l->now();
        co_await skein::sleep_for(1h);
        CHECK(l->now() - begin == 1h);
        for (int i = 0; i < 100; ++i) co_await skein::yield();
        CHECK(l->now() - begin == 1h);
    };
    world.run(body(&world));
    CHECK(world.elapsed() == 1h);
}

TEST_CASE("a loop whose clock is late fires every timer that is due, in order of time") {
    manual_loop world;
    std::vector<int> order;
    const auto sleeper = [](int length, std::vector<int>* out) -> task<void> {
        co_await skein::sleep_for(std::chrono::milliseconds(length));
        out->push_back(length);
    };
    const auto body = [](manual_loop* l, std::vector<int>* out, decltype(sleeper) f) -> task<void> {
        skein::scope s;
        for (const int length : {30, 10, 20, 10}) s.spawn(f(length, out));
        co_await skein::yield();
        l->spend(1s); // busy for a second
        auto joined = s.join();
        co_await joined;
    };
    world.run(body(&world, &order, sleeper));
    CHECK(order == std::vector<int>{10, 10, 20, 30});
    CHECK(world.elapsed() == 1s);
}

TEST_CASE("what a turn hook asks for at the end of a turn does not wait for the world") {
    struct second : skein::turn_hook {
        explicit second(skein::event* e)
            : turn_hook([](turn_hook& h) { static_cast<second&>(h).done->set(); }), done(e) {}
        skein::event* done;
    };
    struct first : skein::turn_hook {
        explicit first(second* n)
            : turn_hook([](turn_hook& h) {
                  skein::loop::current().at_turn_end(*static_cast<first&>(h).next);
              }),
              next(n) {}
        second* next;
    };
    manual_loop world; // ends the test where it would wait
    const auto body = [](manual_loop* l) -> task<void> {
        skein::event done;
        second then(&done);
        first now(&then);
        l->at_turn_end(now);
        co_await done.wait();
    };
    world.run(body(&world));
    CHECK(world.waits() == 0);
}

TEST_CASE("a turn hook runs once, when the work of the turn is done, and may be asked for again") {
    struct flush : skein::turn_hook {
        explicit flush(std::string* o)
            : turn_hook([](turn_hook& h) { *static_cast<flush&>(h).out += '|'; }), out(o) {}
        std::string* out;
    };
    manual_loop world;
    std::string order;
    const auto body = [](manual_loop* l, std::string* out) -> task<void> {
        flush hook(out);
        for (int turn = 0; turn < 2; ++turn) {
            for (int i = 0; i < 3; ++i) {
                l->at_turn_end(hook);
                *out += 'w';
                co_await skein::yield();
            }
            co_await skein::sleep_for(1ms);
        }
        l->at_turn_end(hook); // unlinked when destroyed
    };
    world.run(body(&world, &order));
    CHECK(order == "www|www|");
}

TEST_CASE("work that posts itself for ever does not keep timers from firing") {
    manual_loop world;
    const auto busy = [](manual_loop* l, const bool* stop) -> task<void> {
        while (!*stop) {
            l->spend(1us);
            co_await skein::yield();
        }
    };
    const auto body = [](manual_loop* l, decltype(busy) f) -> task<void> {
        bool stop = false;
        skein::scope s;
        s.spawn(f(l, &stop));
        co_await skein::sleep_for(1ms);
        stop = true;
        auto joined = s.join();
        co_await joined;
    };
    world.run(body(&world, busy));
    CHECK(world.elapsed() >= 1ms);
    CHECK(world.elapsed() < 2ms);
}

TEST_CASE("a task that never waits lets others run after its budget of hand-overs") {
    manual_loop world;
    const auto nothing = []() -> task<void> { co_return; };
    const auto hog = [](const bool* stop, decltype(nothing) f) -> task<int> {
        int rounds = 0;
        while (!*stop && rounds < 1'000'000) {
            auto t = f();
            co_await t;
            ++rounds;
        }
        co_return rounds;
    };
    const auto body = [](manual_loop* l, decltype(hog) h, decltype(nothing) f) -> task<int> {
        bool stop = false;
        l->post([&stop] { stop = true; });
        auto t = h(&stop, f);
        co_return co_await t;
    };
    CHECK(world.run(body(&world, hog, nothing)) < 1'000'000);
}

TEST_CASE("other threads wake the loop, and every call arrives once") {
    manual_loop world(manual_loop::others::may_post);
    const auto body = [](manual_loop* l) -> task<int> {
        constexpr int threads = 4, calls = 2000;
        int seen = 0;
        skein::event all;
        std::vector<std::jthread> others;
        for (int t = 0; t < threads; ++t)
            others.emplace_back([l, &seen, &all] {
                for (int i = 0; i < calls; ++i)
                    l->post_from_any_thread([&seen, &all] {
                        if (++seen == threads * calls) all.set();
                    });
            });
        co_await all.wait();
        co_return seen;
    };
    CHECK(world.run(body(&world)) == 8000);
}

TEST_CASE("many calls from other threads that find the loop waiting wake it once", "[T2]") {
    manual_loop world(manual_loop::others::may_post);
    int seen = 0;
    skein::event all;
    const auto body = [](skein::event* e) -> task<void> { co_await e->wait(); };
    world.while_waiting = [&] { // the loop waits in the kernel, so to speak
        std::jthread poster([&] {
            for (int i = 0; i < 100; ++i)
                world.post_from_any_thread([&] {
                    if (++seen == 100) all.set();
                });
        });
    };
    world.run(body(&all));
    CHECK(seen == 100);
    CHECK(world.notifies() == 1);

    // Those that come later wake it again.
    world.while_waiting = [&] { world.post_from_any_thread([&] { all.set(); }); };
    all.reset();
    world.run(body(&all));
    CHECK(world.notifies() == 2);
}

TEST_CASE("two loops on two threads hand work to each other") {
    manual_loop here(manual_loop::others::may_post), there(manual_loop::others::may_post);
    skein::event stop_there;
    std::jthread other([&] {
        const auto wait = [](skein::event* e) -> task<void> { co_await e->wait(); };
        there.run(wait(&stop_there));
    });
    const auto body = [](manual_loop* a, manual_loop* b, skein::event* stop) -> task<int> {
        int bounced = 0;
        for (int i = 0; i < 500; ++i) {
            skein::event back;
            b->post_from_any_thread(
                [a, &back] { a->post_from_any_thread([&back] { back.set(); }); });
            co_await back.wait();
            ++bounced;
        }
        b->post_from_any_thread([stop] { stop->set(); });
        co_return bounced;
    };
    CHECK(here.run(body(&here, &there, &stop_there)) == 500);
}

TEST_CASE("run is cancelled by its token") {
    manual_loop world;
    skein::cancel_source stop;
    const auto body = [](skein::cancel_source* s) -> task<void> {
        s->request();
        co_await skein::sleep_for(1h);
    };
    try {
        world.run(body(&stop), stop.token());
        FAIL("not cancelled");
    } catch (const skein::error& e) {
        CHECK(e.code() == skein::errc::cancelled);
    }
    CHECK(world.elapsed() < 1h);
}

TEST_CASE("a loop inside another one is refused with what to do") {
    manual_loop world;
    const auto nothing = []() -> task<void> { co_return; };
    const auto body = [](manual_loop* l, decltype(nothing) f) -> task<void> {
        l->run(f());
        co_return;
    };
    try {
        world.run(body(&world, nothing));
        FAIL("it ran");
    } catch (const skein::error& e) {
        CHECK(e.code() == skein::errc::not_supported);
        CHECK(std::string(e.what()).find("loop::run inside a running loop") != std::string::npos);
        CHECK(std::string(e.hint()).find("co_await") != std::string::npos);
    }
}

TEST_CASE("without a loop, and when a posted call throws, the program ends") {
    CHECK(skein_test::abort_text([] { (void)skein::loop::current(); }).find("no skein loop runs") !=
          std::string::npos);
    CHECK(skein_test::abort_text([] {
              manual_loop world;
              world.post([] { throw std::runtime_error("from a call"); });
              const auto wait = []() -> task<void> { co_await skein::sleep_for(1s); };
              world.run(wait());
          }).find("from a call") != std::string::npos);
}

TEST_CASE("a call may be the last thing a loop takes: the poster does not touch it afterwards") {
    for (int i = 0; i < 2000; ++i) {
        auto world = std::make_unique<manual_loop>(manual_loop::others::may_post);
        skein::event called;
        const auto wait = [](skein::event* e) -> skein::task<void> {
            auto waiting = e->wait();
            co_await waiting;
        };
        std::thread poster(
            [&, target = world.get()] { target->post_from_any_thread([&] { called.set(); }); });
        world->run(wait(&called));
        world.reset(); // under TSan or ASan a late notify() is seen
        poster.join();
    }
}

TEST_CASE("a lone sleeper costs one wait") {
    const auto body = []() -> skein::task<void> { co_await skein::sleep_for(1h); };
    manual_loop world;
    world.run(body());
    CHECK(world.waits() == 1);
}
