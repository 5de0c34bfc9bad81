// SPDX-License-Identifier: Apache-2.0
#include <skein/spmd/silence_limit.hpp>
#include <tests/spmd/simulated_hosts.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

namespace silence_limit_test {

using namespace simulated_hosts;
using Catch::Matchers::ContainsSubstring;

namespace {

time_point at(duration from_start) { return time_point(from_start); }

/// A worker of host b stands still for each of these in turn; whether it was lost by the last one.
struct stops {
    time_span first, second;
    time_span most_silence{};
};
task<void> stop_a_worker(simulated_job* job, stops what, bool* is_lost) {
    scope all;
    job->plans["a"].most_silence = what.most_silence;
    begin(job, &all, "a");
    auto first = until(job, [&] { return job->count("a") == 2; });
    co_await first;
    const auto one = job->newest().members[1];
    for (const auto length : {what.first, what.second}) {
        job->children["a"]->pause(one.pid, length);
        auto passing = sleep_for(length + 2s);
        co_await passing;
    }
    const auto& now = job->newest().members;
    *is_lost = std::find(now.begin(), now.end(), one) == now.end();
    auto finishing = finish(job, &all);
    co_await finishing;
}
bool is_lost_by(stops what, std::string* told = nullptr) {
    simulated_job job;
    bool is_lost = false;
    job.loop.run(stop_a_worker(&job, what, &is_lost));
    if (told != nullptr && !job.failures.empty()) *told = job.failures.front();
    return is_lost;
}

} // namespace

TEST_CASE("a host whose workers come late is given four times that, for a minute, within a bound") {
    silence_limit of(1s, 10s);
    CHECK(of.limit(at(0s)) == 1s);
    of.saw(100ms, at(1s));
    CHECK(of.limit(at(1s)) == 1s);
    of.saw(600ms, at(2s));
    of.saw(20ms, at(3s));
    CHECK(of.limit(at(3s)) == 2400ms);
    CHECK(of.limit(at(31s)) == 2400ms); // of the half before
    CHECK(of.limit(at(62s)) == 1s);
    of.saw(time_span::max(), at(63s));
    CHECK(of.limit(at(63s)) == 10s);
    CHECK(of.limit(at(200s)) == 1s);
}

TEST_CASE("a limit that is set is what it is") {
    silence_limit of(5s, 5s);
    of.saw(3s, at(1s));
    CHECK(of.limit(at(1s)) == 5s);
}

TEST_CASE("on an idle host a worker that stands still is lost after a second, and that is said") {
    std::string told;
    CHECK(is_lost_by({.first = 0ms, .second = 1300ms}, &told));
    CHECK_THAT(told, ContainsSubstring("was silent for 1 s, the limit of this host now"));
}

TEST_CASE("where workers come late and come back, a longer silence is no loss") {
    CHECK_FALSE(is_lost_by({.first = 700ms, .second = 2s}));
    CHECK(is_lost_by({.first = 700ms, .second = 4s}));
    CHECK(is_lost_by({.first = 700ms, .second = 2s, .most_silence = 1s})); // nothing is learned
}

} // namespace silence_limit_test
