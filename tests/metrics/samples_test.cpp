// SPDX-License-Identifier: Apache-2.0
// Arrays that metrics are shown.

#include <skein/core/error.hpp>
#include <skein/metrics/samples.hpp>

#include <cstdint>
#include <vector>

#include <catch2/catch_test_macros.hpp>

using namespace skein;
using namespace skein::metrics;

TEST_CASE("array views: any type reads as a double") {
    const float f[] = {0.5f, -1.0f};
    const double d[] = {0.25, 2.0};
    const std::int64_t i[] = {7, -9};
    const bool b[] = {true, false};
    CHECK(array_view(f, {2})[1] == -1.0);
    CHECK(array_view(d, {2})[0] == 0.25);
    CHECK(array_view(i, {2})[1] == -9.0);
    CHECK(array_view(b, {2})[0] == 1.0);
    CHECK(array_view(f, {2}).float32() == f);
    CHECK(array_view(f, {2}).int64() == nullptr);
    CHECK(array_view(i, {2}).int64() == i);
    CHECK(array_view(b, {2}).is_floating() == false);
}

TEST_CASE("array views: shapes") {
    const std::vector<float> values(6);
    const array_view two(values.data(), {2, 3});
    CHECK(two.size() == 6);
    CHECK(two.dimensions() == 2);
    CHECK(two.extent(1) == 3);
    CHECK(two.extent(5) == 1);
    CHECK(two.text() == "float32 [2, 3]");
    CHECK(array_view(values.data(), {}).size() == 1);
    CHECK(array_view(values.data(), {0, 3}).size() == 0);
    CHECK(array_view().is_given() == false);
    CHECK(array_view().text() == "nothing");
    CHECK_THROWS_AS(array_view(values.data(), {1, 1, 1, 1, 1, 1, 1, 1, 1}), error);
}
