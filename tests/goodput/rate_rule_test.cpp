// SPDX-License-Identifier: Apache-2.0
#include <skein/goodput/rate_rule.hpp>

#include <skein/core/error.hpp>
#include <skein/goodput/gradient_noise.hpp>

#include <tests/goodput/adaptdl_numbers.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>

#include <limits>

namespace rate_rule_test {

using namespace skein::goodput;
using Catch::Matchers::WithinRel;

TEST_CASE("rates of larger batches are adaptdl's") {
    for (const auto& row : goodput_test::adaptdl_rates) {
        const gradient_moments noise{.sqr = row.sqr, .var = row.var};
        const rate_inputs now{.scale = row.scale,
                              .gain = gain_of(noise, row.scale),
                              .progress = row.progress,
                              .warm_up = double(row.epochs) * row.samples / row.first};
        const rate_rule rules[] = {rate_rule::adascale, rate_rule::adamscale, rate_rule::linear,
                                   rate_rule::sqrt, rate_rule::legw};
        for (int i = 0; i < 5; ++i) {
            INFO(name_of(rules[i]));
            CHECK_THAT(rate_factor(rules[i], now), WithinRel(row.rates[i], 1e-9));
        }
    }
}

TEST_CASE("the first batch has the rate of the schedule, by every rule") {
    for (const auto rule : {rate_rule::same, rate_rule::adascale, rate_rule::adamscale,
                            rate_rule::linear, rate_rule::sqrt, rate_rule::legw}) {
        CHECK(rate_factor(rule, {}) == 1.0);
        CHECK_FALSE(name_of(rule).empty());
    }
    CHECK(rate_factor(rate_rule::same, {.scale = 8.0, .gain = 4.0}) == 1.0);
    const rate_inputs warming{.scale = 4.0, .gain = 1.0, .progress = 50.0, .warm_up = 100.0};
    CHECK(rate_factor(rate_rule::legw, warming) == 2.0 * 50.0 / 400.0);
}

TEST_CASE("a rate rule refuses what is no scale or gain") {
    const double inf = std::numeric_limits<double>::infinity();
    for (const auto& bad : {rate_inputs{.scale = 0.0}, rate_inputs{.gain = -1.0},
                            rate_inputs{.scale = inf}, rate_inputs{.progress = -1.0},
                            rate_inputs{.warm_up = inf}, rate_inputs{.gain = inf - inf}})
        CHECK_THROWS_AS(rate_factor(rate_rule::linear, bad), skein::error);
}

} // namespace rate_rule_test
