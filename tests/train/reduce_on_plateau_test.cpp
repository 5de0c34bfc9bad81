// SPDX-License-Identifier: Apache-2.0
#include <skein/train/reduce_on_plateau.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <cmath>
#include <limits>
#include <vector>

namespace sk = skein;
using namespace skein::train;
using Catch::Matchers::ContainsSubstring;

namespace reduce_on_plateau_test {

namespace {

/// The rate after each number of an evaluation, over a schedule that gives `scheduled`.
std::vector<double> rates(sk::reduce_on_plateau& rule, const std::vector<double>& numbers,
                          step_plan& plan, double scheduled = 1.0) {
    std::vector<double> out;
    for (const double number : numbers) {
        const std::vector<skein::report::metric_value> metrics{{"val_loss", number}};
        const auto made =
            rule.on_eval({.metrics = &metrics, .plan = &plan, .next_rate = scheduled});
        plan = made.plan.value_or(plan);
        out.push_back(scheduled * plan.rate_factor);
    }
    return out;
}
std::vector<double> rates(sk::reduce_on_plateau_options how, const std::vector<double>& numbers,
                          double scheduled = 1.0) {
    sk::reduce_on_plateau rule(how);
    step_plan plan;
    return rates(rule, numbers, plan, scheduled);
}

} // namespace

TEST_CASE("the rate is lowered after more numbers without an improvement than the patience") {
    CHECK(rates({.factor = 0.5, .patience = 1}, {3, 2, 2, 2, 2, 2, 1, 1}) ==
          std::vector<double>{1, 1, 1, 0.5, 0.5, 0.25, 0.25, 0.25});
    CHECK(rates({.factor = 0.5, .patience = 0}, {1, 1.0 - 1e-5}) == std::vector<double>{1, 0.5});
    CHECK(rates({.factor = 0.5, .patience = 0, .lower_is_better = false}, {1, 2, 1.5}) ==
          std::vector<double>{1, 1, 0.5});
}

TEST_CASE("numbers within the cooldown do not count") {
    CHECK(rates({.factor = 0.5, .patience = 0, .cooldown = 2}, {1, 1, 1, 1, 1, 1}) ==
          std::vector<double>{1, 0.5, 0.5, 0.5, 0.25, 0.25});
}

TEST_CASE("the rate goes no lower than its least, and changes up to eps are not made") {
    CHECK(rates({.factor = 0.5, .patience = 0, .min_lr = 0.3}, {1, 1, 1, 1}) ==
          std::vector<double>{1, 0.5, 0.3, 0.3});
    CHECK(rates({.factor = 0.5, .patience = 0, .eps = 0.4}, {1, 1, 1}) ==
          std::vector<double>{1, 0.5, 0.5});
    for (const double scheduled : {0.7, 0.1, 3.3}) { // a division's last bit is no change
        sk::reduce_on_plateau rule({.factor = 0.3, .patience = 0, .min_lr = 0.01, .eps = 0});
        step_plan plan;
        (void)rates(rule, std::vector<double>(20, 1.0), plan, scheduled);
        const auto lowest = plan;
        (void)rates(rule, std::vector<double>(20, 1.0), plan, scheduled);
        CHECK(plan == lowest);
        CHECK(std::abs(scheduled * plan.rate_factor - 0.01) < 1e-15);
    }
}

TEST_CASE("a number that is none is no improvement, and a decision says why") {
    const auto none = std::numeric_limits<double>::quiet_NaN();
    CHECK(rates({.factor = 0.5, .patience = 0}, {none, 1, none}) ==
          std::vector<double>{0.5, 0.5, 0.25});
    sk::reduce_on_plateau rule({.metric = "loss", .patience = 0, .at = watched::steps});
    const std::vector<skein::report::metric_value> row{{"loss", 2.0}, {"lr", 0.1}};
    const step_plan plan;
    const step_info step{.metrics = &row, .plan = &plan, .next_rate = 0.1};
    CHECK_FALSE(rule.on_step(step).plan);
    CHECK_FALSE(rule.on_eval({.metrics = &row, .plan = &plan, .next_rate = 0.1}).plan);
    CHECK_THAT(rule.on_step(step).why,
               ContainsSubstring("loss is 2, 1 in a row have not improved on 2"));
}

TEST_CASE("a negative number that stays or gets worse is no improvement by a relative threshold") {
    CHECK(rates({.factor = 0.5, .patience = 0}, {-1, -1, -0.99995, -2, -2.0001, -2.1}) ==
          std::vector<double>{1, 0.5, 0.25, 0.25, 0.125, 0.125});
    CHECK(rates({.factor = 0.5, .patience = 0, .lower_is_better = false}, {-2, -2, -2.0001, -1}) ==
          std::vector<double>{1, 0.5, 0.25, 0.25});
    // The worst there is, at the start, is improved on by every number.
    CHECK(rates({.factor = 0.5, .patience = 0, .lower_is_better = false}, {-1e300}) ==
          std::vector<double>{1});
}

TEST_CASE("a plateau that is restored goes on where it was saved") {
    const std::vector<double> numbers{3, 2.5, 2.5, 2.6, 2.4, 2.4, 2.4, 2.4, 2.3, 2.35, 2.31, 2.4};
    const sk::reduce_on_plateau_options how{.factor = 0.7, .patience = 1, .cooldown = 1};
    const auto whole = rates(how, numbers);
    for (std::size_t cut = 0; cut <= numbers.size(); ++cut) {
        const auto middle = numbers.begin() + static_cast<std::ptrdiff_t>(cut);
        sk::reduce_on_plateau one(how), two(how);
        step_plan plan;
        auto out = rates(one, {numbers.begin(), middle}, plan);
        two.restore(one.state());
        CHECK(two.state() == one.state());
        for (const double rate : rates(two, {middle, numbers.end()}, plan)) out.push_back(rate);
        CHECK(out == whole);
    }
    sk::reduce_on_plateau rule;
    for (const char* text :
         {"", "x", "0x1p+0", "0x1p+0 1", "0x1p+0 1 2", "0x1p+0 1 2 y", "0x1p+0 1 2 3 4"})
        CHECK_THROWS_AS(rule.restore(text), sk::error);
}

TEST_CASE("a plateau refuses options that make no sense and a number that is not there") {
    for (const auto& how : {sk::reduce_on_plateau_options{.factor = 1.0},
                            {.factor = -0.1},
                            {.patience = -1},
                            {.threshold = -1.0},
                            {.cooldown = -1},
                            {.min_lr = -1.0},
                            {.eps = -1.0}})
        CHECK_THROWS_AS(sk::reduce_on_plateau(how), sk::error);
    sk::reduce_on_plateau rule({.metric = "val_acuracy"});
    const std::vector<skein::report::metric_value> metrics{{"val_loss", 1.0},
                                                           {"val_accuracy", 0.5}};
    const step_plan plan;
    CHECK_THROWS_WITH(rule.on_eval({.metrics = &metrics, .plan = &plan}),
                      ContainsSubstring("reduce_on_plateau: an evaluation has no 'val_acuracy'") &&
                          ContainsSubstring(R"(there are: "val_loss", "val_accuracy")"));
}

} // namespace reduce_on_plateau_test
