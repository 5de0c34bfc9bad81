// SPDX-License-Identifier: Apache-2.0
// Runs in this process; ranks and launchers: tests/programs/run_result_test.py.
#include <skein/core/error.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/train/reporter.hpp>
#include <skein/train/run.hpp>

#include <support/temporary_folder.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace skein;
using namespace skein::train;
using Catch::Matchers::ContainsSubstring;

// [loop]
struct hyper {
    double lr = 0.1;
};
struct score {
    double accuracy = 0;
    std::uint64_t steps = 0;
};
score search_step(skein::train::context& ctx, skein::run_config config, hyper how) {
    // a Trainer on ctx fits a model here
    return {.accuracy = ctx.is_first() ? 1 - how.lr : 0,
            .steps = static_cast<std::uint64_t>(config.max_steps)};
}
// [/loop]

namespace run_tests {

enum class kind : std::uint8_t { slow, fast };
struct inner {
    double rate = 0.0;
    bool on = false;
};
struct outcome {
    int ranks = 0;
    std::string name;
    inner deep;
    kind how = kind::fast;
    std::vector<double> curve;
    std::map<std::string, int> counts;
    std::optional<int> none;
    std::array<int, 2> pair{};
    std::uint8_t small = 7;
};
struct node {
    int value = 0;
    std::vector<node> more; // a tree
};

outcome fill(context& ctx, run_config config, const inner& given, std::string_view name) {
    outcome out;
    out.ranks = ctx.world_size();
    out.name = std::string(name) + " of " + config.name;
    out.deep = given;
    out.curve = {1.0, 0.5, std::numeric_limits<double>::quiet_NaN()};
    out.counts = {{"a \"b\"", 1}};
    out.pair = {3, 4};
    return out;
}
void fails(context&) { throw error(errc::io, "no digits").with_hint("look"); }
int counts(context&, int number) noexcept { return number + 1; }
std::vector<double> gives(context&, std::uint64_t bytes) {
    return std::vector<double>(bytes / sizeof(double));
}
int is_stopped(context& ctx) {
    if (ctx.stop_requested()) return -1;
    ::raise(SIGTERM);
    return ctx.stop_requested() ? ctx.stop_signal() : 0;
}
void writes(context& ctx, const run_config& config) {
    report::settings none;
    reporter files(ctx, config, none);
    files.begin({});
    fit_result end;
    end.steps = 4;
    end.loss = 0.5;
    end.run_name = files.name();
    end.run_path = files.path();
    end.stopped = true;
    end.stop_reason = "no better for 3 evaluations";
    leave_screen(ctx, config, end);
}

} // namespace run_tests

namespace {

run_config quiet() {
    run_config config;
    config.output = output_mode::quiet;
    return config;
}

} // namespace

TEST_CASE("a search over settings: the program goes on with what its runs have given") {
    skein::run_config config = quiet();
    // [run]
    double best = 0;
    for (const double lr : {0.3, 0.1}) {
        const auto result = skein::train::run<&search_step>(config, hyper{.lr = lr});
        if (!result.ok()) throw result.error(); // "rank 1 of 3: ..."
        best = std::max(best, result.value().accuracy);
    }
    // [/run]
    CHECK(best == 0.9);
}

TEST_CASE("arguments and a result of many kinds travel through a run") {
    const auto result = train::run<&run_tests::fill>(quiet(), run_tests::inner{0.5, true}, "it");
    REQUIRE(result.ok());
    CHECK(result.value().ranks == 1);
    CHECK(result.value().name == "it of run");
    CHECK(result.value().deep.on);
    CHECK(result.value().counts.size() == 1);
    CHECK(result.value().pair[1] == 4);
    CHECK(result.value_json ==
          R"({"ranks": 1, "name": "it of run", "deep": {"rate": 0.5, "on": true}, "how": 1, )"
          R"("curve": [1, 0.5, null], "counts": {"a \"b\"": 1}, "none": null, )"
          R"("pair": [3, 4], "small": 7})");
    CHECK(result.path.empty());
    CHECK(train::run<&run_tests::counts>(quiet(), 41).value() == 42);
    CHECK(train::detail::value_text(run_tests::node{}).empty()); // a tree has no such text
}

TEST_CASE("what a loop throws is its run's error") {
    const auto result = train::run<&run_tests::fails>(quiet());
    REQUIRE_FALSE(result.ok());
    CHECK(result.error().code() == errc::io);
    CHECK(std::string(result.error().what()) == "no digits; look");
    CHECK(result.failed_rank == 0);
    CHECK_THROWS_WITH(result.value(), ContainsSubstring("no digits"));
}

TEST_CASE("a result and arguments of more than a mebibyte are refused, and a little less is not") {
    const std::uint64_t most = train::detail::most_loop_bytes;
    CHECK(train::run<&run_tests::gives>(quiet(), most - 16).ok());
    const auto large = train::run<&run_tests::gives>(quiet(), most);
    REQUIRE_FALSE(large.ok());
    CHECK(large.error().code() == errc::too_large);
    CHECK_THAT(large.error().what(),
               ContainsSubstring("the result of run_tests::gives is 1048584 bytes, the limit is "
                                 "1048576 bytes; save it to a file"));
    const auto order =
        train::run<&run_tests::fill>(quiet(), run_tests::inner{}, std::string(most, 'x'));
    CHECK_THAT(order.error().what(), ContainsSubstring("the arguments of run_tests::fill are"));
}

TEST_CASE("a configuration that makes no sense is an error in the result") {
    auto config = quiet();
    config.scaling.workers = 0;
    CHECK(train::run<&run_tests::counts>(config, 1).error().code() == errc::usage);
    config.scaling.workers = 2;
    config.communicator = "carrier pigeon";
    CHECK(train::run<&run_tests::counts>(config, 1).error().code() == errc::usage);
}

TEST_CASE("several workers in a task are refused, and one runs there") {
    const auto inside = [](int workers) -> task<int> {
        auto config = quiet();
        config.scaling.workers = workers;
        const auto result = train::run<&run_tests::counts>(config, 1);
        if (!result.ok()) CHECK(result.error().code() == errc::not_supported);
        co_return result.ok() ? result.value() : -1;
    };
    net::real_loop loop;
    CHECK(loop.run(inside(1)) == 2);
    CHECK(loop.run(inside(2)) == -1);
}

TEST_CASE("runs at once on threads, none of which takes the signals") {
    std::vector<std::thread> threads;
    std::vector<int> values(4, -1);
    for (std::size_t i = 0; i < values.size(); ++i)
        threads.emplace_back([&values, i] {
            values[i] = train::run<&run_tests::counts>(quiet(), static_cast<int>(i)).value();
        });
    for (auto& thread : threads) thread.join();
    CHECK(values == std::vector<int>{1, 2, 3, 4});
}

TEST_CASE("SIGTERM asks a loop on the main thread to stop, unless the program has taken it") {
    struct sigaction none{}, before_int{}, before_term{};
    none.sa_handler = SIG_DFL; // the test runner has handlers of its own
    ::sigaction(SIGINT, &none, &before_int);
    ::sigaction(SIGTERM, &none, &before_term);
    const auto result = train::run<&run_tests::is_stopped>(quiet());
    CHECK(result.value() == SIGTERM);
    CHECK(result.stopped_by == "SIGTERM");
    struct sigaction own{};
    own.sa_handler = [](int) {};
    ::sigaction(SIGTERM, &own, nullptr);
    const auto deaf = train::run<&run_tests::is_stopped>(quiet());
    CHECK(deaf.value() == 0);
    CHECK_FALSE(deaf.stopped());
    ::sigaction(SIGINT, &before_int, nullptr);
    ::sigaction(SIGTERM, &before_term, nullptr);
}

TEST_CASE(
    "what a fit() leaves is in the result and in result.json, and goes when the run goes on") {
    const test::temporary_folder folder;
    auto config = quiet();
    config.runs_dir = folder.path;
    const auto result = train::run<&run_tests::writes>(config);
    REQUIRE(result.ok());
    CHECK(result.name == "run");
    CHECK(result.steps == 4);
    CHECK(result.stopped_by == "no better for 3 evaluations");
    CHECK(load_result(result.path).stopped_by == result.stopped_by);
    config.resume = resume_mode::latest;
    auto ctx = context::single();
    reporter again(ctx, config, {});
    CHECK(load_result(folder.path + "/run").steps == 4); // it may refuse to go on
    again.begin({});
    CHECK_THROWS_WITH(load_result(folder.path + "/run"), ContainsSubstring("is not there"));
}
