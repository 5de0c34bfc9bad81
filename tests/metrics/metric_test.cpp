// SPDX-License-Identifier: Apache-2.0
// What a struct needs to be a metric.

#include <skein/metrics/metric.hpp>

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

} // namespace metric_test
using namespace metric_test;

static_assert(metric<many_options>);
static_assert(!metric<without_compute>);
static_assert(!metric<int>);

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
