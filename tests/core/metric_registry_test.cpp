// SPDX-License-Identifier: Apache-2.0
#include <skein/core/error.hpp>
#include <skein/core/metric_registry.hpp>

#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch_test_macros.hpp>

namespace metric_registry_test {

using namespace skein;

std::string text_of(const metric_registry& of) {
    std::string out;
    append_prometheus(out, of.collect());
    return out;
}

TEST_CASE("a number is one for its name and labels, in whatever order these are", "[metrics]") {
    metric_registry all;
    auto& a = all.counter("skein_a_total", "A.", {{"x", "1"}, {"b", "2"}});
    auto& same = all.counter("skein_a_total", "another help", {{"b", "2"}, {"x", "1"}});
    CHECK(&a == &same);
    CHECK(&a != &all.counter("skein_a_total", "A.", {{"b", "3"}, {"x", "1"}}));
    CHECK(&a != &all.counter("skein_a_total", "A."));
    a.add(5);
    same.add();
    CHECK(a.value() == 6);
    auto& g = all.gauge("skein_g", "G.");
    g.set(10);
    g.add(-14);
    CHECK(g.value() == -4);
    CHECK(all.series() == 4);
    CHECK(&metric_registry::process() == &metric_registry::process());
}

TEST_CASE("numbers are told to Prometheus as it reads them", "[metrics]") {
    metric_registry all;
    all.counter("skein_sent_bytes_total", "Bytes\nthat \\ were sent.", {{"to", "a"}})
        .add(1ULL << 40);
    all.gauge("skein_tasks", "Tasks.", {{"state", "run\"ning\\\n"}, {"node", "\u00fc <b>"}})
        .set(-3);
    auto& h = all.histogram("skein_step_seconds", "Steps.", {0.1, 1, 10});
    for (const double s : {0.05, 0.1, 0.5, 100.0}) h.add(s);
    CHECK(text_of(all) == "# HELP skein_sent_bytes_total Bytes\\nthat \\\\ were sent.\n"
                          "# TYPE skein_sent_bytes_total counter\n"
                          "skein_sent_bytes_total{to=\"a\"} 1099511627776\n"
                          "# HELP skein_step_seconds Steps.\n"
                          "# TYPE skein_step_seconds histogram\n"
                          "skein_step_seconds_bucket{le=\"0.1\"} 2\n"
                          "skein_step_seconds_bucket{le=\"1\"} 3\n"
                          "skein_step_seconds_bucket{le=\"10\"} 3\n"
                          "skein_step_seconds_bucket{le=\"+Inf\"} 4\n"
                          "skein_step_seconds_sum 100.65\n"
                          "skein_step_seconds_count 4\n"
                          "# HELP skein_tasks Tasks.\n"
                          "# TYPE skein_tasks gauge\n"
                          "skein_tasks{node=\"\u00fc <b>\",state=\"run\\\"ning\\\\\\n\"} -3\n");
    std::string odd;
    append_prometheus(odd, {{"x", "", series_kind::gauge, {}, {{{}, 0.25, {}}}}});
    CHECK(odd == "# TYPE x gauge\nx 0.25\n");
    odd.clear();
    append_prometheus(odd, {{"x", "", series_kind::gauge, {}, {{{{"n", "a\xff\xc3"}}, 1, {}}}}});
    CHECK(odd == "# TYPE x gauge\nx{n=\"a\ufffd\ufffd\"} 1\n"); // not UTF-8
    odd.clear();
    constexpr auto inf = std::numeric_limits<double>::infinity();
    append_prometheus(odd, {{"x", "", series_kind::gauge, {}, {{{}, -inf, {}}, {{}, inf, {}}}}});
    CHECK(odd == "# TYPE x gauge\nx -Inf\nx +Inf\n");
}

TEST_CASE("what Prometheus would not take is refused", "[metrics]") {
    metric_registry all;
    for (const char* name : {"", "1a", "a b", "a-b", "\u00e4", "a\n", "a{"}) {
        CAPTURE(name);
        CHECK_THROWS_AS(all.counter(name, ""), error);
        CHECK_THROWS_AS(all.counter("fine", "", {{name, "x"}}), error);
    }
    CHECK_THROWS_AS(all.counter("fine", "", {{"__own", "x"}}), error);
    CHECK_THROWS_AS(all.counter("fine", "", {{"le", "x"}}), error);
    CHECK_THROWS_AS(all.counter("fine", "", {{"a", "x"}, {"a", "y"}}), error);
    CHECK_THROWS_AS(all.histogram("fine", "", {1, 1}), error);
    CHECK_THROWS_AS(all.histogram("fine", "", std::vector<double>(33, 1)), error);
    (void)all.counter("taken", "");
    CHECK_THROWS_AS(all.gauge("taken", ""), error);
    (void)all.histogram("times", "", {1, 2});
    CHECK_THROWS_AS(all.histogram("times", "", {1, 3}), error);
    CHECK(all.series() == 2);
}

TEST_CASE("more series than there may be are counted as dropped, and nobody sees them",
          "[metrics]") {
    metric_registry all;
    for (std::size_t i = 0; i < metric_registry::most_series; ++i)
        all.counter("many_total", "", {{"i", std::to_string(i)}}).add(i);
    CHECK(all.series() == metric_registry::most_series);
    CHECK(all.dropped() == 0);
    auto& beyond = all.counter("many_total", "", {{"i", "more"}});
    beyond.add(7);
    all.gauge("another", "").set(1);
    all.histogram("third", "", {1}).add(3);
    CHECK(all.dropped() == 3);
    CHECK(all.series() == metric_registry::most_series);
    CHECK(all.counter("many_total", "", {{"i", "17"}}).value() == 17); // those there are go on
    CHECK(all.dropped() == 3);
    const auto text = text_of(all);
    CHECK(text.find("more") == text.npos);
    CHECK(text.find("another") == text.npos);
}

TEST_CASE("numbers are added to from many threads, and none is lost", "[metrics]") {
    metric_registry all;
    constexpr int each = 20'000;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([&all, t] {
            auto& mine = all.counter("calls_total", "", {{"thread", std::to_string(t)}});
            for (int i = 0; i < each; ++i) {
                mine.add();
                all.counter("all_total", "").add();
                all.histogram("h", "", {0.5}).add(i % 2);
                if (i % 1000 == 0) (void)all.collect();
            }
        });
    for (auto& t : threads) t.join();
    CHECK(all.counter("all_total", "").value() == 4 * each);
    CHECK(all.counter("calls_total", "", {{"thread", "3"}}).value() == each);
    CHECK(all.histogram("h", "", {0.5}).sum() == 2 * each);
    CHECK(all.histogram("h", "", {0.5}).counts() == std::vector<std::uint64_t>{2 * each, 2 * each});
}

} // namespace metric_registry_test
