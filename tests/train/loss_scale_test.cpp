// SPDX-License-Identifier: Apache-2.0
#include <skein/train/loss_scale.hpp>

#include <catch2/catch_test_macros.hpp>

using skein::train::loss_scale;

TEST_CASE("a loss scale is halved by an overflow and doubled after many good steps") {
    loss_scale scale;
    CHECK(scale.value() == 65536.0);
    scale.update(false);
    scale.update(false);
    CHECK(scale.value() == 16384.0);
    CHECK(scale.overflows() == 2);
    for (std::uint64_t i = 0; i + 1 < loss_scale::interval; ++i) scale.update(true);
    CHECK(scale.value() == 16384.0);
    CHECK(scale.overflows() == 0);
    scale.update(true);
    CHECK(scale.value() == 32768.0);
    CHECK(scale.good_steps() == 0);
}

TEST_CASE("an overflow begins the count of good steps anew") {
    loss_scale scale;
    scale.restore(8.0, loss_scale::interval - 1);
    scale.update(false);
    CHECK(scale.value() == 4.0);
    scale.update(true);
    CHECK(scale.value() == 4.0);
    CHECK(scale.good_steps() == 1);
}

TEST_CASE("a loss is never scaled down") {
    loss_scale scale;
    for (int i = 0; i < 60; ++i) scale.update(false);
    CHECK(scale.value() == 1.0);
    CHECK(scale.overflows() == 60);
}
