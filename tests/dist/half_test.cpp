// SPDX-License-Identifier: Apache-2.0
#include <skein/dist/half.hpp>

#include <catch2/catch_test_macros.hpp>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

using namespace skein::dist;

namespace {

/// The value of a half by its definition.
double half_by_definition(std::uint16_t bits) {
    const int exponent = bits >> 10 & 31;
    const double fraction = static_cast<double>(bits & 1023) / 1024;
    const double sign = (bits >> 15) != 0 ? -1 : 1;
    if (exponent == 31)
        return (bits & 1023) != 0 ? std::numeric_limits<double>::quiet_NaN()
                                  : sign * std::numeric_limits<double>::infinity();
    return sign *
           (exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1 + fraction, exponent - 15));
}

/// The nearest half by counting steps, ties to even; not for NaN.
std::uint16_t nearest_half(float value) {
    const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
    const double a = std::fabs(static_cast<double>(value));
    if (a >= 65520) return static_cast<std::uint16_t>(sign | 0x7c00);
    int exponent = -14;
    while (exponent < 15 && a >= std::ldexp(1, exponent + 1)) ++exponent;
    const double steps = a / std::ldexp(1, exponent - 10);
    double whole = std::floor(steps);
    const double rest = steps - whole;
    if (rest > 0.5 || (rest == 0.5 && std::fmod(whole, 2) == 1)) ++whole;
    const auto above = static_cast<std::uint16_t>(whole); // 1024 and more of a normal one
    return static_cast<std::uint16_t>(sign | (above + ((exponent + 14) << 10)));
}

std::vector<f16_t> all_halves() {
    std::vector<f16_t> halves;
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits)
        halves.push_back(f16_t{static_cast<std::uint16_t>(bits)});
    return halves;
}

/// All halves, what lies in the middle between two neighbours, the floats beside those, and any
/// bits.
std::vector<float> telling_floats() {
    std::vector<float> floats;
    const float most = std::numeric_limits<float>::infinity();
    for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {
        const double low = half_by_definition(static_cast<std::uint16_t>(bits));
        const double high =
            bits == 0x7bff ? 65536 : half_by_definition(static_cast<std::uint16_t>(bits + 1));
        const auto middle = static_cast<float>((low + high) / 2); // exact
        for (const float f : {static_cast<float>(low), middle, std::nextafter(middle, most),
                              std::nextafter(middle, 0.0f)}) {
            floats.push_back(f);
            floats.push_back(-f);
        }
    }
    std::uint64_t x = 7;
    for (int i = 0; i < 300000; ++i) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        floats.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(x >> 16)));
    }
    for (const std::uint32_t bits :
         {0x7f800000u, 0xff800000u, 0x7fc00000u, 0x7f800001u, 0xffabcdefu, 0x00000001u, 0x80000001u,
          0x7f7fffffu, 0x33000000u, 0x33000001u, 0x477fefffu, 0x477ff000u})
        floats.push_back(std::bit_cast<float>(bits));
    return floats;
}

std::size_t differing(const std::vector<float>& a, const std::vector<float>& b) {
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < a.size(); ++i)
        wrong += std::bit_cast<std::uint32_t>(a[i]) == std::bit_cast<std::uint32_t>(b[i]) ? 0 : 1;
    return wrong;
}

} // namespace

TEST_CASE("every half has the value of its definition and comes back as the same bits") {
    for (const f16_t h : all_halves()) {
        const double value = half_by_definition(h.bits);
        if (std::isnan(value)) {
            REQUIRE(std::isnan(to_float(h)));
            REQUIRE(to_f16(to_float(h)).bits == (h.bits | 0x200)); // quiet, with its payload
        } else {
            REQUIRE(static_cast<double>(to_float(h)) == value);
            REQUIRE(std::signbit(to_float(h)) == std::signbit(value));
            REQUIRE(to_f16(to_float(h)) == h);
        }
    }
}

TEST_CASE("floats become the nearest half, ties the even one") {
    std::size_t wrong = 0;
    for (const float f : telling_floats()) {
        if (std::isnan(f)) {
            const std::uint16_t bits = to_f16(f).bits;
            wrong += std::isnan(half_by_definition(bits)) && (bits & 0x200) != 0 ? 0 : 1;
        } else {
            wrong += to_f16(f).bits == nearest_half(f) ? 0 : 1;
        }
    }
    CHECK(wrong == 0);
    static_assert(to_f16(1.0f).bits == 0x3c00 && to_float(f16_t{0xc000}) == -2.0f);
}

TEST_CASE("the processor's conversions and the portable ones give the same bits") {
    if (!skein::dist::detail::has_f16c()) SKIP("this machine has no F16C");
    const auto halves = all_halves();
    std::vector<float> plain(halves.size()), fast(halves.size());
    skein::dist::detail::widen_f16_plain(plain.data(), halves.data(), halves.size());
    skein::dist::detail::widen_f16_f16c(fast.data(), halves.data(), halves.size());
    CHECK(differing(plain, fast) == 0);

    const auto floats = telling_floats();
    std::vector<f16_t> narrow_plain(floats.size()), narrow_fast(floats.size());
    skein::dist::detail::narrow_f16_plain(narrow_plain.data(), floats.data(), floats.size());
    skein::dist::detail::narrow_f16_f16c(narrow_fast.data(), floats.data(), floats.size());
    CHECK(narrow_plain == narrow_fast);
}

TEST_CASE("buffers of any length are widened and narrowed, whichever type they have") {
    for (const std::size_t n : {0u, 1u, 7u, 8u, 9u, 31u, 32u, 33u, 100u}) {
        std::vector<f16_t> h(n), h_again(n);
        std::vector<bf16_t> b(n), b_again(n);
        std::vector<float> f(n), f_again(n), wide(n + 1, 77.0f);
        for (std::size_t i = 0; i < n; ++i) {
            f[i] = 0.25f * static_cast<float>(i) - 3;
            h[i] = to_f16(f[i]);
            b[i] = to_bf16(f[i]);
        }
        widen(wide.data(), h.data(), dtype::f16, n);
        narrow(h_again.data(), dtype::f16, wide.data(), n);
        CHECK(h_again == h);
        widen(wide.data(), b.data(), dtype::bf16, n);
        narrow(b_again.data(), dtype::bf16, wide.data(), n);
        CHECK(b_again == b);
        widen(wide.data(), f.data(), dtype::f32, n);
        narrow(f_again.data(), dtype::f32, wide.data(), n);
        CHECK(f_again == f);
        CHECK(wide[n] == 77.0f);
    }
}
