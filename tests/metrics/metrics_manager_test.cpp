// SPDX-License-Identifier: Apache-2.0
// Which metrics a run has.

#include <skein/metrics/metrics_manager.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

using namespace skein;
using namespace skein::metrics;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

namespace metrics_manager_test {
struct total {
    summed sum{};
    void update(const samples& s) { sum[0] += s.preds[0]; }
    double compute() const { return sum[0]; }
};
} // namespace metrics_manager_test
using metrics_manager_test::total;

TEST_CASE("metrics managers: stages and names") {
    const metrics_manager all{on("train", total{}), on("val", total{}, named("again", total{}))};
    REQUIRE(all.find("val") != nullptr);
    CHECK(all.find("val")->names() == std::vector<std::string>{"total", "again"});
    CHECK(all.find("test") == nullptr);
    CHECK(metrics_manager().stages().empty());
}

TEST_CASE("metrics managers: what cannot be meant") {
    CHECK_THROWS_MATCHES((metrics_manager{on("val", total{}), on("val", total{})}), error,
                         MessageMatches(ContainsSubstring("\"val\" are given twice")));
    CHECK_THROWS_MATCHES((metrics_manager{on("", total{})}), error,
                         MessageMatches(ContainsSubstring("without a name")));
    CHECK_THROWS_MATCHES(on("val", total{}, total{}), error,
                         MessageMatches(ContainsSubstring("\"total\"")));
    CHECK_THROWS_MATCHES((metrics_manager{on("train", named("epoch_total", total{}))}), error,
                         MessageMatches(ContainsSubstring("epoch_total")));
    CHECK(metrics_manager{on("val", named("epoch_total", total{}))}.find("val") != nullptr);
    CHECK_THROWS_MATCHES(metrics_manager({on("val", total{})}, {.every = -1}), error,
                         MessageMatches(ContainsSubstring("-1 steps")));
}
