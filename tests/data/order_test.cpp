// SPDX-License-Identifier: Apache-2.0
#include <skein/data/order.hpp>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include <catch2/catch_test_macros.hpp>

using namespace skein;

TEST_CASE("an epoch's order is the one that checkpoints rely on") {
    // The values of the sampler before it shared this formula.
    const auto order = data::epoch_order(10, 1, 0);
    std::vector<std::uint64_t> seen;
    for (std::uint64_t i = 0; i < 10; ++i) seen.push_back(order(i));
    auto sorted = seen;
    std::ranges::sort(sorted);
    std::vector<std::uint64_t> all(10);
    std::iota(all.begin(), all.end(), 0);
    CHECK(sorted == all);
    CHECK(data::epoch_key(1, 0) == 0x910a2dec89025cc1ULL);
    CHECK(data::epoch_key(1, 0) != data::epoch_key(1, 1));
    CHECK(data::epoch_key(0, 1) != data::epoch_key(1, 0));
}

TEST_CASE("ranks take contiguous parts that differ by one at most") {
    for (std::uint64_t count = 0; count < 20; ++count)
        for (int world = 1; world < 7; ++world) {
            std::uint64_t at = 0;
            for (int rank = 0; rank < world; ++rank) {
                const auto [first, last] = data::rank_range(count, rank, world);
                CHECK(first == at);
                CHECK(last - first - count / static_cast<std::uint64_t>(world) <= 1);
                at = last;
            }
            CHECK(at == count);
        }
}
