// SPDX-License-Identifier: Apache-2.0
// Means of classes.

#include <skein/metrics/average.hpp>

#include <cmath>
#include <limits>

#include <catch2/catch_test_macros.hpp>

using namespace skein::metrics;

TEST_CASE("averages: weights of 0 leave out, also what is no number") {
    const double odd = std::numeric_limits<double>::quiet_NaN();
    const double values[] = {1, odd, 4}, weights[] = {1, 0, 2}, none[] = {0, 0, 0};
    CHECK(mean_of(values, weights, 0) == 3);
    CHECK(mean_of(values, none, 7) == 7);
    CHECK(std::isnan(mean_of(values, none, odd)));
    CHECK(to_string(average::weighted) == "weighted");
}
