// SPDX-License-Identifier: Apache-2.0
#include <skein/core/error.hpp>
#include <skein/data/detail/draws_kernels.hpp>
#include <skein/data/detail/self_test.hpp>
#include <skein/data/draws.hpp>
#include <skein/data/order.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <set>
#include <vector>

#include <catch2/catch_test_macros.hpp>

using namespace skein;

SKEIN_EXACT_BEGIN
namespace {

// Box and Muller as the kernels compute it, one value at a time.
float scalar_radius(std::uint32_t word) {
    const auto bits = std::bit_cast<std::int32_t>(static_cast<float>((word >> 8) + 1)) +
                      (0x3f800000 - 0x3f3504f3);
    const auto e = static_cast<float>((bits >> 23) - 151);
    const auto x = std::bit_cast<float>((bits & 0x7fffff) + 0x3f3504f3) - 1.0f;
    const auto z = x * x;
    auto y = 7.0376836292e-2f * x - 1.1514610310e-1f;
    for (const float factor :
         {1.1676998740e-1f, -1.2420140846e-1f, 1.4249322787e-1f, -1.6668057665e-1f,
          2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f})
        y = y * x + factor;
    y = y * x * z;
    y = y - e * 2.12194440e-4f;
    y = y - z * 0.5f;
    return std::sqrt((x + y + e * 0.693359375f) * -2.0f);
}

std::array<float, 2> scalar_turn(std::uint32_t word) {
    const auto within = static_cast<std::int32_t>(word >> 8 & 0x3fffff) - 0x200000;
    const auto x = static_cast<float>(within) * 3.7450702829238413e-7f;
    const auto z = x * x;
    const auto s = ((z * -1.9515295891e-4f + 8.3321608736e-3f) * z - 1.6666654611e-1f) * z * x + x;
    const auto c =
        ((z * 2.443315711809948e-5f - 1.388731625493765e-3f) * z + 4.166664568298827e-2f) * z * z -
        z * 0.5f + 1.0f;
    switch (word >> 30) {
    case 0: return {c, s};
    case 1: return {-s, c};
    case 2: return {-c, -s};
    default: return {s, -c};
    }
}

std::vector<float> scalar_normals(std::size_t count, philox_key key, std::uint64_t sample,
                                  std::uint64_t block) {
    std::vector<float> made;
    for (; made.size() < count; block += 8) {
        std::array<float, 32> group{};
        for (std::size_t lane = 0; lane < 8; ++lane) {
            const auto at = block + lane;
            const auto words = philox(
                {static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(at >> 32),
                 static_cast<std::uint32_t>(sample), static_cast<std::uint32_t>(sample >> 32)},
                key);
            for (std::size_t pair = 0; pair < 4; pair += 2) {
                const auto [cosine, sine] = scalar_turn(words[pair + 1]);
                group[8 * pair + lane] = cosine * scalar_radius(words[pair]);
                group[8 * pair + 8 + lane] = sine * scalar_radius(words[pair]);
            }
        }
        made.insert(made.end(), group.begin(), group.end());
    }
    made.resize(count);
    return made;
}

} // namespace
SKEIN_EXACT_END

TEST_CASE("the kernels give the bits that they give everywhere") {
    CHECK(data::detail::hash_of_kernels() == data::detail::expected_hash);
    CHECK_NOTHROW(data::detail::require_exact_kernels());
}

TEST_CASE("normal values have the bits of the scalar formula, of every length") {
    const auto key = data::epoch_key(data::epoch_key(5, 6), 8);
    for (const std::size_t count : {0, 1, 7, 31, 32, 33, 64, 1000}) {
        data::draws random(5, 6, 0x1'0000'0007, 8);
        (void)random.bits(); // the values start at the next whole block
        std::vector<float> made(count);
        random.fill_normal(made);
        CHECK(made == scalar_normals(
                          count,
                          {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)},
                          0x1'0000'0007, 1));
    }
}

TEST_CASE("the copy for every processor gives the same bits as the one for AVX2") {
    if (!data::detail::has_avx2()) SKIP("this processor has no AVX2");
    // Across the end of the low half of the block number, too.
    for (const bool normal : {true, false})
        for (const std::uint64_t block : {std::uint64_t{0}, std::uint64_t{0xffff'fffc}}) {
            std::vector<float> plain(4096), wide(4096);
            data::detail::fill_groups(plain.data(), plain.size(), {1, 2, block}, normal);
            data::detail::fill_groups_avx2(wide.data(), wide.size(), {1, 2, block}, normal);
            CHECK(plain == wide);
        }
}

TEST_CASE("normal values have mean 0, variance 1 and the tails of a normal distribution") {
    data::draws random(1, 0, 0, 0);
    std::vector<float> made(1'000'000);
    random.fill_normal(made);
    double sum = 0, squares = 0, fourths = 0;
    int beyond = 0;
    for (const double each : made) {
        sum += each;
        squares += each * each;
        fourths += each * each * each * each;
        beyond += std::abs(each) > 3;
    }
    CHECK(std::abs(sum / 1e6) < 0.004);
    CHECK(std::abs(squares / 1e6 - 1) < 0.006);
    CHECK(std::abs(fourths / 1e6 - 3) < 0.04);
    CHECK(std::abs(beyond - 2700) < 220);
}

TEST_CASE("Box and Muller is near to the functions of the mathematical library") {
    double worst = 0;
    for (std::uint32_t i = 0; i < 200'000; ++i) {
        const std::uint32_t first = i < 512 ? i << 8 : ~(i * 2654435761U),
                            second = i * 40503U * 77777U;
        const auto [cosine, sine] = data::detail::normal_of(first, second);
        const double u = ((first >> 8) + 1) * 0x1p-24, r = std::sqrt(-2 * std::log(u));
        const double angle = ((second >> 8) * 0x1p-23 - 0.25) * std::numbers::pi;
        worst = std::max(
            {worst, std::abs(cosine - r * std::cos(angle)), std::abs(sine - r * std::sin(angle))});
    }
    CHECK(worst < 1e-6);
}

TEST_CASE("draws depend on seed, epoch, sample and operation, and on nothing else") {
    std::set<std::uint64_t> seen;
    for (std::uint64_t i = 0; i < 81; ++i)
        seen.insert(data::draws(i % 3, i / 3 % 3, i / 9 % 3, i / 27).bits());
    CHECK(seen.size() == 81);
    data::draws one(1, 2, 3, 4), two(1, 2, 3, 4);
    for (int i = 0; i < 10; ++i) {
        CHECK(one.normal() == two.normal());
        CHECK(one.uniform(-1, 1) == two.uniform(-1, 1));
        CHECK(one.integer(10) == two.integer(10));
        CHECK(one.flip(0.5) == two.flip(0.5));
    }
    CHECK(data::draws(1, 2, 3, 4).bits() == 0xea0da9c592c5375bULL);
}

TEST_CASE("single draws stay in their range") {
    data::draws random(7, 0, 0, 0);
    int heads = 0;
    double sum = 0;
    std::array<int, 6> faces{};
    for (int i = 0; i < 6000; ++i) {
        const float value = random.uniform(0.1f, 2.0f);
        REQUIRE((value >= 0.1f && value <= 2.0f));
        sum += static_cast<double>(random.normal());
        ++faces.at(random.integer(6));
        heads += random.flip(0.25);
    }
    CHECK(std::abs(sum / 6000) < 0.06);
    CHECK(std::abs(heads - 1500) < 170);
    for (const int face : faces) CHECK(std::abs(face - 1000) < 150);
    CHECK_FALSE(random.flip(0));
    CHECK(random.flip(1));
    std::vector<float> uniform(10'001);
    random.fill_uniform(uniform);
    double mean = 0;
    for (const float each : uniform) {
        REQUIRE((each >= 0 && each < 1));
        mean += static_cast<double>(each) / 10'001;
    }
    CHECK(std::abs(mean - 0.5) < 0.015);
}
