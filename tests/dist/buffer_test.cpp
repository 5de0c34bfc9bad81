// SPDX-License-Identifier: Apache-2.0
#include <skein/dist/buffer.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cmath>
#include <limits>
#include <span>
#include <vector>

using namespace skein::dist;

TEST_CASE("a view knows the type of its elements and its slices share the memory") {
    std::vector<double> numbers(10);
    const auto whole = view_of(std::span(numbers));
    CHECK(whole.type == dtype::f64);
    CHECK(whole.bytes() == 80);
    const auto part = whole.slice(3, 4);
    CHECK(part.data == &numbers[3]);
    CHECK(part.count == 4);
    CHECK(part.type == dtype::f64);
}

TEST_CASE("bfloat16 rounds to nearest even") {
    CHECK(to_bf16(1.0f).bits == 0x3f80);
    CHECK(to_bf16(std::bit_cast<float>(0x3f808000u)).bits == 0x3f80); // tie, down to even
    CHECK(to_bf16(std::bit_cast<float>(0x3f818000u)).bits == 0x3f82); // tie, up to even
    CHECK(to_bf16(std::bit_cast<float>(0x3f808001u)).bits == 0x3f81);
    CHECK(to_bf16(std::numeric_limits<float>::max()).bits ==
          0x7f80); // beyond the largest: infinity
    CHECK(to_bf16(-std::numeric_limits<float>::infinity()).bits == 0xff80);
    CHECK(std::isnan(to_float(to_bf16(std::bit_cast<float>(0x7f800001u)))));
    for (std::uint32_t bits = 0; bits < 0x10000;
         ++bits) { // every bfloat16 survives the way there and back
        const bf16_t x{static_cast<std::uint16_t>(bits)};
        if (!std::isnan(to_float(x))) REQUIRE(to_bf16(to_float(x)) == x);
    }
}
