// SPDX-License-Identifier: Apache-2.0
#include <skein/core/one_more.hpp>

#include <catch2/catch_test_macros.hpp>

#include <stdexcept>

TEST_CASE("a count is one higher while somebody is there, however it ends") {
    int count = 3;
    {
        const skein::one_more here(count);
        const skein::one_more too(count);
        CHECK(count == 5);
    }
    CHECK(count == 3);
    CHECK_THROWS([&] {
        const skein::one_more here(count);
        throw std::runtime_error("gone");
    }());
    CHECK(count == 3);
}
