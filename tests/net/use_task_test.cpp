// SPDX-License-Identifier: Apache-2.0
#include "net/support.hpp"

#include <skein/net/use_task.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace net_test;

namespace {

/// Asynchronous operations of our own, in Asio's way: they keep, call or drop their handler.
template <class Signature>
struct slot_of;
template <class... Args>
struct slot_of<void(Args...)> {
    unique_function<void(Args...)> kept;
    template <class Token>
    auto start(Token&& token) {
        return asio::async_initiate<Token, void(Args...)>(
            [this](auto handler) { kept = std::move(handler); }, token);
    }
};

} // namespace

TEST_CASE("a timer is awaited, and the loop runs on meanwhile") {
    const auto body = [](net::real_loop& on) -> task<int> {
        asio::steady_timer timer(on.context(), 5ms);
        int turns = 0;
        scope other;
        const auto count = [](int* n) -> task<void> {
            for (;;) {
                ++*n;
                auto pause = sleep_for(1ms);
                co_await pause;
            }
        };
        other.spawn(count(&turns));
        co_await timer.async_wait(use_task);
        other.cancel();
        auto joined = other.join();
        co_await joined;
        co_return turns;
    };
    CHECK(run_real<int>(body) >= 2);
}

TEST_CASE("an error code becomes a skein::error of its kind, or a result") {
    const auto body = [](net::real_loop& on) -> task<void> {
        asio::ip::tcp::acceptor acceptor(
            on.context(), asio::ip::tcp::endpoint(asio::ip::address_v4::loopback(), 0));
        const auto nobody = acceptor.local_endpoint();
        acceptor.close();
        asio::ip::tcp::socket s(on.context());
        auto as_result = co_await s.async_connect(nobody, use_task_result);
        REQUIRE_FALSE(as_result);
        CHECK(as_result.error().code() == errc::refused);
        s.close();
        std::optional<error> thrown;
        try {
            co_await s.async_connect(nobody, use_task);
        } catch (const error& e) {
            thrown = e;
        }
        REQUIRE(thrown);
        CHECK(thrown->code() == errc::refused);
        CHECK_FALSE(thrown->cause().empty());
    };
    run_real<void>(body);
}

TEST_CASE("values follow the error code: none, one, several") {
    const auto body = [](net::real_loop&) -> task<void> {
        const auto feed = [](auto* slot, auto... values) -> task<void> {
            while (!slot->kept) {
                auto others = yield();
                co_await others;
            }
            auto call = std::move(slot->kept);
            call(values...);
        };
        scope feeding;
        slot_of<void(std::error_code)> none;
        feeding.spawn(feed(&none, std::error_code()));
        co_await none.start(use_task);

        slot_of<void(std::error_code, int)> one;
        feeding.spawn(feed(&one, std::error_code(), 5));
        const int value = co_await one.start(use_task);
        CHECK(value == 5);

        slot_of<void(int, std::string)> two;
        feeding.spawn(feed(&two, 6, std::string("six")));
        const auto [number, text] = co_await two.start(use_task);
        CHECK(number == 6);
        CHECK(text == "six");

        slot_of<void(std::exception_ptr, int)> failing;
        feeding.spawn(feed(&failing, std::make_exception_ptr(std::runtime_error("boom")), 1));
        auto outcome = co_await failing.start(use_task_result);
        REQUIRE_FALSE(outcome);
        CHECK(outcome.error().text() == "boom");
        auto joined = feeding.join();
        co_await joined;
    };
    run_real<void>(body);
}

TEST_CASE("an operation that drops its handler ends the await with cancelled") {
    const auto body = [](net::real_loop&) -> task<void> {
        slot_of<void(std::error_code)> slot;
        const auto drop = [](slot_of<void(std::error_code)>* s) -> task<void> {
            auto pause = sleep_for(1ms);
            co_await pause;
            s->kept = nullptr;
        };
        scope dropping;
        dropping.spawn(drop(&slot));
        auto outcome = co_await slot.start(use_task_result);
        REQUIRE_FALSE(outcome);
        CHECK(outcome.error().code() == errc::cancelled);
        auto joined = dropping.join();
        co_await joined;
    };
    run_real<void>(body);
}

TEST_CASE("cancelling the task cancels the Asio operation, and the object stays usable") {
    const auto body = [](net::real_loop& on) -> task<void> {
        asio::steady_timer timer(on.context(), 1h);
        const auto wait = [](asio::steady_timer* t) -> task<void> {
            co_await t->async_wait(use_task);
        };
        for (int i = 0; i < 3; ++i) {
            auto trying = error_of(with_timeout(wait(&timer), 2ms));
            const auto seen = co_await trying;
            REQUIRE(seen);
            CHECK(seen->code() == errc::timeout);
        }
        timer.expires_after(1ms);
        co_await timer.async_wait(use_task);
    };
    run_real<void>(body);
}

TEST_CASE("an operation is not started by a cancelled task") {
    const auto body = [](net::real_loop&) -> task<void> {
        slot_of<void(std::error_code)> slot;
        const auto start = [](slot_of<void(std::error_code)>* s) -> task<void> {
            co_await s->start(use_task);
        };
        cancel_source stop;
        stop.request();
        auto trying = error_of(with_cancel(stop.token(), start(&slot)));
        const auto seen = co_await trying;
        REQUIRE(seen);
        CHECK(seen->code() == errc::cancelled);
        CHECK_FALSE(slot.kept);
    };
    run_real<void>(body);
}

TEST_CASE("an initiation that throws resumes the task once, with its exception") {
    const auto body = [](net::real_loop& on) -> task<void> {
        std::string text = "no exception";
        try {
            co_await asio::async_initiate<const use_task_t<false>, void(std::error_code)>(
                [](auto handler) {
                    const auto dropped = std::move(handler);
                    throw std::runtime_error("no descriptor left");
                },
                use_task);
        } catch (const std::runtime_error& e) {
            text = e.what();
        }
        CHECK(text == "no descriptor left");
        // A second resumption would end this wait at once.
        const auto begin = on.now();
        auto pause = sleep_for(5ms);
        co_await pause;
        CHECK(on.now() - begin >= 5ms);
    };
    run_real<void>(body);
}
