// SPDX-License-Identifier: Apache-2.0
#include <skein/train/stop_at.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <limits>

namespace sk = skein;
using namespace skein::train;
using Catch::Matchers::ContainsSubstring;

namespace stop_at_test {

namespace {
decision after(sk::stop_at& rule, double accuracy) {
    const std::vector<skein::report::metric_value> metrics{{"val_loss", 3.0},
                                                           {"val_accuracy", accuracy}};
    return rule.on_eval({.metrics = &metrics});
}
} // namespace

TEST_CASE("a number that is good enough ends a run, and NaN never is") {
    sk::stop_at rule({.metric = "val_accuracy", .value = 0.97});
    CHECK(after(rule, 0.969).act == action::go_on);
    CHECK(after(rule, std::numeric_limits<double>::quiet_NaN()).act == action::go_on);
    CHECK(rule.stop_reason().empty());
    const auto made = after(rule, 0.97);
    CHECK(made.act == action::stop);
    CHECK_FALSE(made.plan);
    CHECK(made.why == "val_accuracy is 0.97, at least 0.97 is enough");
    CHECK(rule.stop_reason() == "stop_at: " + made.why);
    sk::stop_at low({.metric = "loss", .value = 0.5, .at_least = false, .at = watched::steps});
    const std::vector<skein::report::metric_value> row{{"loss", 0.4}};
    CHECK(low.on_step({.metrics = &row}).act == action::stop);
    CHECK(low.on_eval({.metrics = &row}).act == action::go_on); // not what it watches
}

TEST_CASE("stop_at refuses what is no number, and a number that is not there") {
    CHECK_THROWS_WITH(
        sk::stop_at({.metric = "val_f1", .value = std::numeric_limits<double>::quiet_NaN()}),
        ContainsSubstring("a value of nan"));
    // With a default of val_loss a run would end at its first evaluation.
    CHECK_THROWS_WITH(sk::stop_at({.value = 0.9}), ContainsSubstring("no metric is named") &&
                                                       ContainsSubstring("at_least = false"));
    sk::stop_at rule({.metric = "val_f1", .value = 1.0});
    CHECK_THROWS_WITH(after(rule, 1.0),
                      ContainsSubstring("stop_at: an evaluation has no 'val_f1'") &&
                          ContainsSubstring(R"(there are: "val_loss", "val_accuracy")"));
}

} // namespace stop_at_test
