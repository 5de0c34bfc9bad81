// SPDX-License-Identifier: Apache-2.0
#include <skein/core/error.hpp>
#include <skein/train/element_values.hpp>

#include <tests/support/error_of.hpp>

#include <catch2/catch_test_macros.hpp>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace element_values_cases {

using namespace skein;
using namespace skein::train;
using skein::test::error_of;

std::uint16_t narrow(const std::string& dtype, double value) {
    byte_buffer bytes(2);
    write_values(dtype, std::span<const double>(&value, 1), bytes);
    return load_le<std::uint16_t>(bytes.data());
}

double widen(const std::string& dtype, std::uint16_t bits) {
    byte_buffer bytes(2);
    store_le(bytes.data(), bits);
    double value = 0;
    read_values(dtype, bytes, std::span(&value, 1));
    return value;
}

TEST_CASE("every number of 16 bits comes back as itself") {
    for (const std::string dtype : {"F16", "BF16"}) {
        INFO(dtype);
        std::size_t other = 0;
        for (std::uint32_t bits = 0; bits < 65536; ++bits) {
            const auto value = widen(dtype, static_cast<std::uint16_t>(bits));
            const auto back = narrow(dtype, value);
            const bool same = std::isnan(value) ? std::isnan(widen(dtype, back)) : back == bits;
            if (!same) ++other;
        }
        CHECK(other == 0);
    }
    CHECK(widen("F16", 0x3c00) == 1.0);
    CHECK(widen("F16", 0x7bff) == 65504.0);
    CHECK(widen("F16", 0x0001) == std::ldexp(1.0, -24));
    CHECK(widen("BF16", 0x3f80) == 1.0);
    CHECK(widen("BF16", 0xc2f7) == -123.5);
}

TEST_CASE("brain floats are read as the upper half of a float32") {
    std::size_t other = 0;
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
        const auto value = std::bit_cast<float>(bits << 16);
        const auto found = widen("BF16", static_cast<std::uint16_t>(bits));
        if (!(std::isnan(value) ? std::isnan(found) : found == double(value))) ++other;
    }
    CHECK(other == 0);
}

TEST_CASE("rounding is to the nearest, of two to the even, and once") {
    // Between 1 and the next half, 1 + 2^-10.
    CHECK(narrow("F16", 1 + std::ldexp(1, -11)) == 0x3c00);
    CHECK(narrow("F16", 1 + 3 * std::ldexp(1, -11)) == 0x3c02);
    CHECK(narrow("F16", 1 + std::ldexp(1, -11) + std::ldexp(1, -40)) == 0x3c01);
    CHECK(narrow("F16", std::nextafter(1.0, 0.0)) == 0x3c00); // carries into the exponent
    CHECK(narrow("F16", 65519.0) == 0x7bff);
    CHECK(narrow("F16", 65520.0) == 0x7c00); // infinite
    CHECK(narrow("F16", -1e300) == 0xfc00);
    CHECK(narrow("F16", std::ldexp(1, -25)) == 0);
    CHECK(narrow("F16", std::ldexp(1.5, -25)) == 1);
    CHECK(narrow("F16", std::ldexp(1023.75, -24)) == 0x0400); // the smallest with a leading one
    CHECK(narrow("F16", 1e-300) == 0);
    CHECK(narrow("BF16", -0.0) == 0x8000);
    CHECK(narrow("BF16", 1 + std::ldexp(1, -8)) == 0x3f80);
    CHECK(narrow("BF16", 3.4e38) == 0x7f80); // beyond the largest, 3.39e38
    CHECK(narrow("BF16", std::numeric_limits<double>::infinity()) == 0x7f80);
    CHECK(std::isnan(widen("BF16", narrow("BF16", std::nan("")))));
    CHECK(narrow("BF16", std::ldexp(1, -133)) == 1);
}

TEST_CASE("whole numbers are read, other types are refused by name") {
    const std::vector<std::int64_t> whole{-3, 7};
    std::vector<double> values(2);
    read_values("I64", as_bytes(std::span(whole)), values);
    CHECK(values == std::vector<double>{-3, 7});
    const std::vector<std::uint8_t> bits{0, 1};
    read_values("BOOL", as_bytes(std::span(bits)), values);
    CHECK(values == std::vector<double>{0, 1});
    CHECK_FALSE(has_values("F8_E4M3"));
    byte_buffer two(2);
    CHECK(error_of([&] { read_values("F8_E4M3", two, values); }).code() == errc::not_supported);
    CHECK(error_of([&] { read_values("F32", two, values); }).code() == errc::invalid_argument);
    CHECK(error_of([&] { (void)cast_elements(two, "I16", "F32"); }).code() == errc::not_supported);
    CHECK(error_of([&] { (void)cast_elements(two, "F16", "I16"); }).code() == errc::not_supported);
}

TEST_CASE("a cast goes through many elements") {
    std::vector<float> from(10'000);
    for (std::size_t i = 0; i < from.size(); ++i) from[i] = float(i) / 8;
    const auto half = cast_elements(as_bytes(std::span(from)), "F32", "F16");
    CHECK(half.size() == 20'000);
    const auto back = cast_elements(half, "F16", "F64");
    std::vector<double> values(from.size());
    read_values("F64", back, values);
    std::size_t far = 0;
    for (std::size_t i = 0; i < from.size(); ++i)
        if (std::fabs(values[i] - from[i]) > from[i] / 2048) ++far;
    CHECK(far == 0);
    CHECK(values[9999] == 1250.0); // 1249.875, and a half has 11 digits
}

} // namespace element_values_cases
