// SPDX-License-Identifier: Apache-2.0
#include <tests/apps/apps.hpp>
#include <tests/support/sim_cluster.hpp>

#include <skein/core/timeout.hpp>
#include <skein/rt/failures.hpp>
#include <skein/rt/remote.hpp>
#include <skein/rt/remote_error.hpp>

#include <stdexcept>
#include <string>

#include <catch2/catch_test_macros.hpp>

using namespace skein;
using namespace rt_test;
using namespace std::chrono_literals;
using test::in_sim;
using test::sim_cluster;

namespace {
/// How often the tasks below were run, in all workers of a world.
int tried = 0;
int fails_with_a_hint() { throw error(errc::io, "no paper").with_hint("load the tray"); }

} // namespace

namespace rt_test {

struct out_of_luck : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// Throws the first `times` times: a code of skein's, or an exception for 0.
int fails_first(int times, int code) {
    if (tried++ >= times) return tried;
    if (code == 0) throw out_of_luck("bad luck");
    throw error(static_cast<errc>(code), "not yet");
}
task<int> fails_first_later(int times, int ms) {
    const bool is_bad = tried++ < times;
    co_await sleep_for(std::chrono::milliseconds(ms));
    if (is_bad) throw error(errc::io, "not yet");
    co_return tried;
}
task<int> asks_one_that_fails(int times) {
    auto r = remote<&fails_first>.with({.retries = 5, .retry_on = thrown<out_of_luck>()})(times, 0);
    co_return co_await r;
}

} // namespace rt_test

namespace {

rt::failure thrown_here(errc code, const std::string& type = "") {
    rt::failure out{error(code, "text"), nullptr};
    if (type.empty()) return out;
    auto from = std::make_shared<remote_error::origin>();
    from->type = type;
    out.from = std::move(from);
    return out;
}

constexpr int code(errc e) { return static_cast<int>(e); }

} // namespace

TEST_CASE("failures are codes and types, and are read back from their text", "[rt][failures]") {
    const auto known = [](const failures& f) {
        return rt::known_failures::parse(f.text()).value();
    };
    const failures codes{errc::timeout, errc::io};
    CHECK(known(codes).has(thrown_here(errc::timeout)));
    CHECK(known(codes).has(thrown_here(errc::io, "skein::error")));
    CHECK_FALSE(known(codes).has(thrown_here(errc::reset)));
    CHECK_FALSE(known(codes).has(thrown_here(errc::remote_exception, "out_of_luck")));

    const auto types = thrown<std::runtime_error, out_of_luck>();
    CHECK(known(types).has(thrown_here(errc::remote_exception, "std::runtime_error")));
    CHECK(known(types).has(thrown_here(errc::remote_exception, "rt_test::out_of_luck")));
    CHECK_FALSE(known(types).has(thrown_here(errc::remote_exception, "std::runtime_err")));
    CHECK_FALSE(known(types).has(thrown_here(errc::remote_exception, "runtime_error")));
    CHECK_FALSE(known(types).has(thrown_here(errc::remote_exception, "std::logic_error")));
    CHECK_FALSE(known(types).has(thrown_here(errc::remote_exception)));

    const auto both = thrown<std::runtime_error>().or_code(errc::io);
    CHECK(known(both).has(thrown_here(errc::io)));
    CHECK(known(both).has(thrown_here(errc::remote_exception, "std::runtime_error")));

    CHECK(known(any_failure).has(thrown_here(errc::remote_exception, "anything")));
    CHECK(known(any_failure).has(thrown_here(errc::corrupt)));
    CHECK_FALSE(known(any_failure).has(thrown_here(errc::cancelled)));
    CHECK(failures().empty());
    CHECK(failures().text().empty());
    CHECK(known(types).text() == types.text());
}

TEST_CASE("a text that is none of failures is refused", "[rt][failures]") {
    for (const char* text : {"", "1", "000000000000000g", "0000000000000001x", "-000000000000001",
                             "+000000000000001"}) {
        INFO(text);
        const auto read = rt::known_failures::parse(text);
        REQUIRE_FALSE(read);
        CHECK(read.error().code() == errc::malformed);
    }
}

TEST_CASE("a task runs again after the failures that .retry_on names", "[F11][rt][failures]") {
    in_sim(11, 2, [](sim_cluster& c) -> task<void> {
        tried = 0;
        auto r = remote<&fails_first>.with({.retry_on = {errc::io}})(2, code(errc::io));
        const auto r_came = co_await r;
        CHECK(r_came == 3);
        CHECK(c.driver().stats().retried == 2);

        tried = 0;
        auto thrower = remote<&fails_first>.with({.retry_on = thrown<out_of_luck>()})(3, 0);
        const auto thrower_came = co_await thrower;
        CHECK(thrower_came == 4);

        tried = 0;
        auto later = remote<&fails_first_later>.with({.cpus = 0, .retry_on = any_failure})(2, 10);
        const auto later_came = co_await later;
        CHECK(later_came == 3);

        tried = 0;
        auto of_a_worker = remote<&asks_one_that_fails>(4);
        const auto of_a_worker_came = co_await of_a_worker;
        CHECK(of_a_worker_came == 5);
    });
}

TEST_CASE("other failures, and more of them than .retries allows, are the outcome",
          "[F11][rt][failures]") {
    in_sim(12, 1, [](sim_cluster&) -> task<void> {
        tried = 0;
        auto other =
            as_result(remote<&fails_first>.with({.retry_on = {errc::io}})(9, code(errc::reset)));
        const auto reset = co_await std::move(other);
        REQUIRE_FALSE(reset);
        CHECK(reset.error().code() == errc::reset);
        CHECK(tried == 1);

        tried = 0;
        auto never =
            as_result(remote<&fails_first>.with({.retries = 2, .retry_on = any_failure})(9, 0));
        const auto spent = co_await std::move(never);
        REQUIRE_FALSE(spent);
        CHECK(spent.error().code() == errc::remote_exception);
        CHECK(contains(spent.error().what(), "bad luck"));
        CHECK(contains(spent.error().what(), "it failed 3 times, and has no retries left"));
        CHECK(tried == 3);

        tried = 0;
        auto without = as_result(remote<&fails_first>(9, 0)); // no .retry_on: once
        const auto once = co_await std::move(without);
        CHECK_FALSE(once);
        CHECK(tried == 1);
    });
}

TEST_CASE("how often it failed is said beside the error's own hint", "[F11][rt][failures]") {
    in_sim(15, 1, [](sim_cluster&) -> task<void> {
        for (const int retries : {0, 1}) {
            auto asked = as_result(
                remote<&fails_with_a_hint>.with({.retries = retries, .retry_on = {errc::io}})());
            const auto failed = co_await std::move(asked);
            REQUIRE_FALSE(failed);
            CHECK(contains(failed.error().hint(), "load the tray; "));
            CHECK(contains(failed.error().hint(),
                           retries == 0 ? "it failed once, and has no retries left"
                                        : "it failed 2 times, and has no retries left"));
        }
    });
}

TEST_CASE("a failure and the death of a worker count together", "[F11][rt][failures]") {
    in_sim(13, 1, [](sim_cluster& c) -> task<void> {
        tried = 0;
        auto asked = as_result(
            remote<&fails_first_later>.with({.retries = 1, .retry_on = {errc::io}})(1, 1000));
        co_await sleep_for(1500ms); // it has failed once, and runs again
        CHECK(tried == 2);
        c.kill(0);
        const auto lost = co_await std::move(asked);
        REQUIRE_FALSE(lost);
        CHECK(lost.error().code() == errc::worker_lost);
        CHECK(tried == 2);
    });
}

TEST_CASE("a task that is cancelled or too late does not run again", "[F11][rt][failures]") {
    in_sim(14, 1, [](sim_cluster&) -> task<void> {
        tried = 0;
        auto late = as_result(remote<&fails_first_later>.with(
            {.retries = 100, .retry_on = any_failure, .deadline = 350ms})(1000, 100));
        const auto over = co_await std::move(late);
        REQUIRE_FALSE(over);
        CHECK(over.error().code() == errc::timeout);
        CHECK(tried == 4);

        tried = 0;
        auto r =
            remote<&fails_first_later>.with({.retries = 100, .retry_on = any_failure})(1000, 100);
        co_await sleep_for(150ms);
        r.cancel();
        auto asked = as_result(r);
        const auto stopped = co_await std::move(asked);
        REQUIRE_FALSE(stopped);
        CHECK(stopped.error().code() == errc::cancelled);
        co_await sleep_for(1s);
        CHECK(tried == 2);
    });
}

TEST_CASE(".retry_on of a method is refused with what to use instead", "[F11][rt][failures]") {
    in_sim(15, 1, [](sim_cluster&) -> task<void> {
        auto h = co_await actor<counter>(0);
        auto asked = as_result(remote<&counter::add>.with({.retry_on = any_failure})(h, 1));
        const auto refused = co_await std::move(asked);
        REQUIRE_FALSE(refused);
        CHECK(refused.error().code() == errc::not_supported);
        CHECK(contains(refused.error().what(), ".call_retries"));
    });
}
