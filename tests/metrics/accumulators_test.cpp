// SPDX-License-Identifier: Apache-2.0
// Arrays that batches and ranks add up.

#include <skein/core/error.hpp>
#include <skein/metrics/accumulators.hpp>

#include <limits>

#include <catch2/catch_test_macros.hpp>

using namespace skein::metrics;

TEST_CASE("accumulators: nothing counts as nothing") {
    CHECK(summed()[0] == 0.0);
    CHECK(largest()[0] == -std::numeric_limits<double>::infinity());
    CHECK(smallest()[0] == std::numeric_limits<double>::infinity());
    summed three(3);
    three[2] = 5;
    three.clear();
    CHECK(three.size() == 3);
    CHECK(three[2] == 0.0);
    three.resize(1);
    CHECK(three.values().size() == 1);
}

TEST_CASE("accumulators: gathered rows") {
    gathered rows(2);
    rows.push({1, 2});
    rows.push({3, 4});
    CHECK(rows.rows() == 2);
    CHECK(rows.at(1, 0) == 3);
    CHECK_THROWS_AS(rows.push({5, 6, 7}), skein::error);
    CHECK(rows.rows() == 2);
    rows.truncate(1);
    CHECK(rows.rows() == 1);
    rows.truncate(5);
    CHECK(rows.rows() == 1);
    rows.resize(0);
    CHECK(rows.width() == 1);
    CHECK(rows.rows() == 0);
}
