// SPDX-License-Identifier: Apache-2.0
#include <skein/core/metrics.hpp>

#include <catch2/catch_test_macros.hpp>

#include <thread>

namespace telemetry = skein::telemetry;

TEST_CASE("the same name and labels are the same metric") {
    telemetry::registry all;
    auto& a = all.counter("calls_total", "calls", {{"kind", "task"}});
    auto& b = all.counter("calls_total", "calls", {{"kind", "actor"}});
    auto& again = all.counter("calls_total", "calls", {{"kind", "task"}});
    CHECK(&a == &again);
    CHECK(&a != &b);
    a.add();
    again.add(4);
    CHECK(a.value() == 5);
    CHECK(b.value() == 0);
}

TEST_CASE("a histogram counts by upper bound, inclusive") {
    telemetry::histogram h({1, 2, 4});
    for (const double v : {0.5, 1.0, 1.5, 4.0, 9.0}) h.observe(v);
    CHECK(h.counts() == std::vector<std::uint64_t>{2, 1, 1, 1});
    CHECK(h.sum() == 16.0);
    CHECK(telemetry::exponential_bounds(1, 10, 3) == std::vector<double>{1, 10, 100});
}

TEST_CASE("updates from several threads are all counted") {
    telemetry::registry all;
    auto& hits = all.counter("hits_total", "");
    auto& level = all.gauge("level", "");
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([&] {
            for (int i = 0; i < 10'000; ++i) {
                hits.add();
                level.add(1);
            }
        });
    threads.clear();
    CHECK(hits.value() == 40'000);
    CHECK(level.value() == 40'000.0);
}

TEST_CASE("the Prometheus text is as its format wants it") {
    telemetry::registry all;
    all.counter("b_total", "second", {{"path", "a\"b\\c\n"}}).add(3);
    all.gauge("a_level", "first\nline").set(0.5);
    auto& h = all.histogram("c_seconds", "third", {0.1, 1}, {{"op", "x"}});
    h.observe(0.05);
    h.observe(0.5);
    h.observe(5);
    CHECK(telemetry::prometheus_text(all.snapshot()) == "# HELP a_level first\\nline\n"
                                                        "# TYPE a_level gauge\n"
                                                        "a_level 0.5\n"
                                                        "# HELP b_total second\n"
                                                        "# TYPE b_total counter\n"
                                                        "b_total{path=\"a\\\"b\\\\c\\n\"} 3\n"
                                                        "# HELP c_seconds third\n"
                                                        "# TYPE c_seconds histogram\n"
                                                        "c_seconds_bucket{op=\"x\",le=\"0.1\"} 1\n"
                                                        "c_seconds_bucket{op=\"x\",le=\"1\"} 2\n"
                                                        "c_seconds_bucket{op=\"x\",le=\"+Inf\"} 3\n"
                                                        "c_seconds_sum{op=\"x\"} 5.55\n"
                                                        "c_seconds_count{op=\"x\"} 3\n");
}

TEST_CASE("the registry of the process is one") {
    CHECK(&telemetry::metrics() == &telemetry::metrics());
}
