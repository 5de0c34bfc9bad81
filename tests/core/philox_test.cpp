// SPDX-License-Identifier: Apache-2.0
#include <skein/core/philox.hpp>

#include <catch2/catch_test_macros.hpp>

#include <set>
#include <vector>

using skein::philox;

TEST_CASE("the known answers of Random123 for philox4x32-10 come out") {
    using four = std::array<std::uint32_t, 4>;
    CHECK(philox({0, 0, 0, 0}, {0, 0}) == four{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
    CHECK(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
          four{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
    CHECK(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
          four{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("a stream continues exactly where it was stopped") {
    skein::philox_stream first(7, 3);
    std::vector<std::uint64_t> all;
    for (int i = 0; i < 100; ++i) all.push_back(first.next());
    for (std::uint64_t at = 0; at < 100; ++at) {
        skein::philox_stream resumed(7, 3);
        resumed.seek(at);
        REQUIRE(resumed.next() == all[at]);
        REQUIRE(resumed.position() == at + 1);
    }
    first.seek(1); // backwards as well
    CHECK(first.next() == all[1]);
}

TEST_CASE("streams and seeds differ from each other") {
    std::set<std::uint64_t> seen;
    for (std::uint64_t seed = 0; seed < 20; ++seed)
        for (std::uint64_t stream = 0; stream < 20; ++stream)
            seen.insert(skein::philox_stream(seed, stream).next());
    CHECK(seen.size() == 400);
}

TEST_CASE("draws below a bound are even and stay below it") {
    skein::philox_stream random(1);
    std::array<int, 7> hits{};
    for (int i = 0; i < 70'000; ++i) ++hits[random.below(7)];
    for (const int n : hits) {
        CHECK(n > 9'500);
        CHECK(n < 10'500);
    }
    CHECK(random.below(1) == 0);
}

TEST_CASE("units are in [0, 1) with the right mean") {
    skein::philox_stream random(2);
    double sum = 0;
    for (int i = 0; i < 100'000; ++i) {
        const double u = random.unit();
        REQUIRE(u >= 0);
        REQUIRE(u < 1);
        sum += u;
    }
    CHECK(sum / 100'000 > 0.495);
    CHECK(sum / 100'000 < 0.505);
}
