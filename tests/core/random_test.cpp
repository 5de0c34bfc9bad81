// SPDX-License-Identifier: Apache-2.0
#include <skein/core/random.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <array>

TEST_CASE("the same seed gives the same bits, another seed others") {
    skein::seeded_random a(5), b(5), c(6);
    const auto first = a.next();
    CHECK(first == b.next());
    CHECK(first != c.next());
}

TEST_CASE("fill covers every byte of any length") {
    skein::seeded_random random(1);
    for (std::size_t n = 0; n < 40; ++n) {
        skein::byte_buffer bytes(n + 1), seen(n);
        bytes[n] = std::byte{0x5A};
        for (int round = 0; round < 20; ++round) {
            random.fill(skein::mut_byte_span(bytes).first(n));
            for (std::size_t i = 0; i < n; ++i) seen[i] |= bytes[i];
        }
        REQUIRE(bytes[n] == std::byte{0x5A});
        REQUIRE(std::count(seen.begin(), seen.end(), std::byte{0}) == 0);
    }
}

TEST_CASE("the kernel gives different bits every time") {
    std::array<std::byte, 32> a{}, b{};
    skein::system_random().fill(a);
    skein::system_random().fill(b);
    CHECK(a != b);
    CHECK(skein::system_random().below(10) < 10);
}

TEST_CASE("below and unit stay in their range") {
    skein::seeded_random random(3);
    for (int i = 0; i < 1000; ++i) {
        REQUIRE(random.below(3) < 3);
        const double u = random.unit();
        REQUIRE((u >= 0 && u < 1));
    }
}
