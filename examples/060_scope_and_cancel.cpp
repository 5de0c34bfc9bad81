// SPDX-License-Identifier: Apache-2.0
// Who owns a task, and how it ends: scopes, cancellation, time limits, cleaning up.
//
//     060_scope_and_cancel
// [includes]
#include <skein/skein.hpp>

#include <fmt/core.h>

#include <chrono>
#include <string>

using namespace std::chrono_literals;
using skein::task;
// [/includes]

// [scope]
task<void> brew(std::string what, skein::duration takes) {
    co_await skein::sleep_for(takes);
    fmt::print("{} is ready\n", what);
}

task<void> breakfast() {
    skein::scope kitchen;
    kitchen.spawn(brew("tea", 2ms)); // both run from the loop's next turn on
    kitchen.spawn(brew("coffee", 10ms));
    auto both = kitchen.join(); // children end before their owner goes on
    co_await std::move(both);
    fmt::print("breakfast\n");
}
// [/scope]

// [failure]
task<void> drop_the_pot() {
    co_await skein::sleep_for(1ms);
    throw skein::error(skein::errc::internal, "the pot is broken");
}

task<void> bad_breakfast() {
    skein::scope kitchen;
    kitchen.spawn(brew("slow tea", 1h));
    kitchen.spawn(drop_the_pot()); // fails: its siblings are cancelled ...
    try {
        auto both = kitchen.join(); // ... waited for, and the failure is rethrown here
        co_await std::move(both);
    } catch (const skein::error& e) {
        fmt::print("no breakfast: {}\n", e.text());
    }
}
// [/failure]

// [with_scope]
task<void> serve(skein::scope& kitchen, std::string guest) {
    kitchen.spawn(brew("tea for " + guest, 1ms));
    fmt::print("{} sits down\n", guest);
    co_return;
} // with_scope joins the kitchen here, also when the body throws
// [/with_scope]

// [cancel]
task<void> wait_for_ever(std::string who) {
    try {
        co_await skein::sleep_for(1h);
    } catch (const skein::error& e) {
        fmt::print("{}: {}\n", who, to_string(e.code()));
        throw; // a cancelled task unwinds
    }
}

task<void> ask_it_to_stop(skein::cancel_source stop) {
    co_await skein::sleep_for(1ms);
    stop.request(); // all work under its token: each ends at its next wait
}

task<void> cancelled() {
    skein::cancel_source stop;
    skein::scope others;
    others.spawn(ask_it_to_stop(stop));
    auto work = skein::with_cancel(stop.token(), wait_for_ever("guest"));
    auto outcome = skein::as_result(std::move(work)); // an outcome as a value: nothing is thrown
    const auto ended = co_await std::move(outcome);
    fmt::print("it ended with {}\n", to_string(ended.error().code()));
    auto rest = others.join();
    co_await std::move(rest);
}
// [/cancel]

// [timeout]
task<void> limited() {
    auto patient = skein::with_timeout(wait_for_ever("waiter"), 5ms);
    try {
        co_await std::move(patient);
    } catch (const skein::error& e) {
        fmt::print("gave up: {}\n", to_string(e.code()));
    }
}
// [/timeout]

// [shield]
task<void> wash_up() {
    co_await skein::sleep_for(2ms);
    fmt::print("washed up\n");
}

task<void> tidy_cook() {
    bool stopped = false;
    try {
        co_await skein::sleep_for(1h);
    } catch (const skein::error&) {
        stopped = true; // no co_await inside a handler: the clean-up comes behind it
    }
    if (!stopped) co_return;
    auto last = skein::shield(wash_up()); // out of reach of the cancellation
    co_await std::move(last);
}
// [/shield]

// [app]
task<int> app() {
    auto good = breakfast();
    co_await std::move(good);
    auto bad = bad_breakfast();
    co_await std::move(bad);
    auto guest = skein::with_scope(serve, std::string("Ada"));
    co_await std::move(guest);
    auto stopped = cancelled();
    co_await std::move(stopped);
    auto impatient = limited();
    co_await std::move(impatient);
    auto cook =
        skein::with_timeout(tidy_cook(), 1ms); // its value came: being late is no error then
    co_await std::move(cook);
    co_return 0;
}

int main(int argc, char** argv) { return skein::run(argc, argv, app); }
// [/app]
