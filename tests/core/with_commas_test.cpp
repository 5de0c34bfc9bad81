// SPDX-License-Identifier: Apache-2.0
#include <skein/core/with_commas.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cstdint>

TEST_CASE("large counts have a comma before every three digits") {
    CHECK(skein::with_commas(0) == "0");
    CHECK(skein::with_commas(999) == "999");
    CHECK(skein::with_commas(1000) == "1,000");
    CHECK(skein::with_commas(1234567) == "1,234,567");
    CHECK(skein::with_commas(UINT64_MAX) == "18,446,744,073,709,551,615");
}
