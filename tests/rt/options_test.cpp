// SPDX-License-Identifier: Apache-2.0
#include <skein/rt/options.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace skein;

TEST_CASE("call options are safe inside an awaited expression and have plain defaults",
          "[rt][options]") {
    static_assert(std::is_trivially_destructible_v<call_options>);
    constexpr call_options defaults;
    CHECK(defaults.cpus == 1);
    CHECK(defaults.retries == -1);
    CHECK(defaults.deadline == duration::zero());
    CHECK(defaults.name.empty());
}
