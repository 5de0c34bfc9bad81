// SPDX-License-Identifier: Apache-2.0
// What a struct needs to be a metric.

#include <skein/metrics/metric.hpp>

#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <catch2/catch_test_macros.hpp>

using namespace skein::metrics;

namespace metric_test {

enum class way : int { up, down };

struct many_options {
    way which = way::down;
    std::optional<int> ignored{};
    std::vector<double> weights{};
    std::string text = "so";
    summed seen{};
    void update(const samples& s) { seen[0] += static_cast<double>(s.target.size()); }
    score compute() const { return score(1, 2, {seen[0], 0}); }
};
struct without_compute {
    summed seen{};
    void update(const samples&) {}
};

// [own]
/// The mean absolute error of what counts.
struct mean_absolute_error {
    static constexpr std::string_view name = "mae";
    summed distance, weight; // what batches and ranks add up

    void update(const samples& s) {
        for (std::size_t i = 0; i < s.target.size(); ++i) {
            const double w = s.weight.is_given() ? s.weight[i] : 1.0;
            distance[0] += w * std::abs(s.preds[i] - s.target[i]);
            weight[0] += w;
        }
    }
    double compute() const { return distance[0] / weight[0]; }
};
// [/own]

} // namespace metric_test
using namespace metric_test;

static_assert(metric<many_options>);
static_assert(!metric<without_compute>);
static_assert(!metric<int>);
static_assert(metric<mean_absolute_error>);

TEST_CASE("metrics: options are told, and copies are independent") {
    any_metric one("seen", many_options{.ignored = -1, .weights = {0.5, 2}});
    CHECK(one.describe() == "many_options: which 1, ignored -1, weights [0.5 2], text so");
    CHECK(any_metric("x", many_options{}).describe() ==
          "many_options: which 1, ignored none, weights [], text so");
    const bool truth[] = {true};
    const samples shown{.preds = {}, .target = {truth, {1}}};
    auto other = one;
    other.update(shown);
    CHECK(one.compute().values[0] == 0);
    CHECK(other.compute().values[0] == 1);
    CHECK(other.compute().name == "seen");
    CHECK(other.compute().shape == std::vector<std::size_t>{1, 2});
    CHECK(name_of<many_options>() == "many_options");
}

TEST_CASE("metrics: the one of the documentation") {
    any_metric one("mae", mean_absolute_error{});
    const float preds[] = {1, 2, 9}, target[] = {1, 4, 9}, weight[] = {1, 3, 0};
    one.update({.preds = {preds, {3}}, .target = {target, {3}}, .weight = {weight, {3}}});
    CHECK(one.compute().values == std::vector<double>{1.5});
    CHECK(one.describe() == "mae");
}
