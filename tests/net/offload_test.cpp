// SPDX-License-Identifier: Apache-2.0
#include "net/support.hpp"

#include <skein/net/offload.hpp>

#include <catch2/catch_test_macros.hpp>

#include <condition_variable>
#include <fstream>
#include <mutex>
#include <thread>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace net_test;

TEST_CASE("work runs on another thread, its value comes back to the loop") {
    const auto body = [](net::real_loop&) -> task<void> {
        const auto here = std::this_thread::get_id();
        std::thread::id there;
        auto work = net::offload([&] {
            there = std::this_thread::get_id();
            return std::make_unique<int>(7);
        });
        const auto value = co_await work;
        CHECK(*value == 7);
        CHECK(there != here);
        CHECK(std::this_thread::get_id() == here);
    };
    run_real<void>(body);
}

TEST_CASE("an exception of the work comes out of the await") {
    const auto body = [](net::real_loop&) -> task<void> {
        for (int i = 0; i < 50; ++i) {
            std::string text;
            auto work = net::offload([i] { throw error(errc::io, fmt::format("disk {}", i)); });
            try {
                co_await work;
            } catch (const error& e) {
                text = e.text();
            }
            CHECK(text == fmt::format("disk {}", i));
        }
    };
    run_real<void>(body);
}

TEST_CASE("the loop runs while the work blocks, and a cancelled task waits for its end") {
    std::mutex mutex;
    std::condition_variable wake;
    bool go = false, ended = false;
    const auto block = [&] {
        std::unique_lock lock(mutex);
        wake.wait(lock, [&] { return go; });
        ended = true;
    };
    const auto body = [&](net::real_loop&) -> task<void> {
        return [](const decltype(block)* work, std::mutex* m, std::condition_variable* w,
                  bool* let) -> task<void> {
            cancel_source stop;
            const auto run = [](const decltype(block)* f) -> task<void> {
                auto inner = net::offload(*f);
                co_await inner;
                auto pause = sleep_for(1h);
                co_await pause;
            };
            std::optional<error> seen;
            const auto watch = [](task<void> inner, std::optional<error>* out) -> task<void> {
                auto trying = error_of(std::move(inner));
                *out = co_await trying;
            };
            scope running;
            running.spawn(watch(with_cancel(stop.token(), run(work)), &seen));
            auto pause = sleep_for(5ms);
            co_await pause;
            stop.request();
            auto more = sleep_for(5ms);
            co_await more;
            CHECK_FALSE(seen.has_value());
            {
                const std::lock_guard lock(*m);
                *let = true;
            }
            w->notify_all();
            auto joined = running.join();
            co_await joined;
            REQUIRE(seen);
            CHECK(seen->code() == errc::cancelled);
        }(&block, &mutex, &wake, &go);
    };
    run_real<void>(body);
    CHECK(ended);
}

TEST_CASE("on a simulated loop work runs inline and takes a drawn time") {
    const auto body = []() -> task<int> {
        const auto here = std::this_thread::get_id();
        auto work = net::offload([here] { return here == std::this_thread::get_id() ? 1 : 2; });
        co_return co_await work;
    };
    sim::loop a(1), b(1);
    CHECK(a.run(body()) == 1);
    CHECK(b.run(body()) == 1);
    CHECK(a.elapsed() > duration(0));
    CHECK(a.trace_hash() == b.trace_hash());
}

TEST_CASE("work says how long it seems to take, and who asks hears how long it took") {
    const auto body = [](duration* spent) -> task<void> {
        auto work = net::offload(
            [] {
                net::seem_to_take(std::chrono::seconds(2));
                net::seem_to_take(std::chrono::seconds(1));
            },
            nullptr, spent);
        co_await work;
        duration after{};
        auto quick = net::offload([] {}, nullptr, &after);
        co_await quick;
        CHECK(after < std::chrono::seconds(1)); // what was said counts once
    };
    duration spent{};
    sim::loop simulated(1);
    simulated.run(body(&spent));
    CHECK(spent >= std::chrono::seconds(3));
    CHECK(simulated.elapsed() >= spent);
    const auto real = [&](net::real_loop&) -> task<void> { return body(&spent); };
    run_real<void>(real);
    CHECK(spent < std::chrono::seconds(3)); // as it was: nothing was done
}

TEST_CASE("a pool finishes what it has before it goes") {
    std::atomic<int> done{0};
    {
        net::offload_pool pool(2);
        for (int i = 0; i < 100; ++i) pool.submit([&] { ++done; });
    }
    CHECK(done == 100);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SKEIN_TEST_SHADOW 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SKEIN_TEST_SHADOW 1
#endif
#endif
#if !defined(SKEIN_TEST_SHADOW) // sanitizers need more addresses than are left
TEST_CASE("threads that the system does not start are an error") {
    const auto child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        unsigned long pages = 0;
        std::ifstream("/proc/self/statm") >> pages;
        const auto most = pages * static_cast<unsigned long>(::sysconf(_SC_PAGESIZE)) + (64u << 20);
        const rlimit addresses{most, most};
        ::setrlimit(RLIMIT_AS, &addresses);
        int result = 1;
        try {
            net::offload_pool pool(1000);
        } catch (const error& e) {
            result = e.code() == errc::exhausted ? 0 : 2;
        }
        ::_exit(result);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
}
#endif
