// SPDX-License-Identifier: Apache-2.0
#include <skein/core/permutation.hpp>

#include <catch2/catch_test_macros.hpp>

#include <vector>

using skein::keyed_permutation;

TEST_CASE("every item appears exactly once, for many sizes and keys") {
    for (std::uint64_t n = 1; n < 700; n = n < 70 ? n + 1 : n + 37)
        for (std::uint64_t key = 0; key < 5; ++key) {
            const keyed_permutation order(n, key);
            std::vector<bool> seen(n);
            for (std::uint64_t i = 0; i < n; ++i) {
                const auto item = order(i);
                REQUIRE(item < n);
                REQUIRE_FALSE(seen[item]);
                seen[item] = true;
                REQUIRE(order.inverse(item) == i);
            }
        }
}

TEST_CASE("a large order is a bijection too") {
    const std::uint64_t n = 1'000'003;
    const keyed_permutation order(n, 9);
    std::vector<bool> seen(n);
    std::uint64_t hits = 0;
    for (std::uint64_t i = 0; i < n; ++i) {
        const auto item = order(i);
        hits += seen[item] ? 0 : 1;
        seen[item] = true;
    }
    CHECK(hits == n);
}

TEST_CASE("positions far beyond memory work") {
    const std::uint64_t n = (std::uint64_t{1} << 62) - 5;
    const keyed_permutation order(n, 1);
    for (const std::uint64_t i : {std::uint64_t{0}, std::uint64_t{12345}, n - 1}) {
        CHECK(order(i) < n);
        CHECK(order.inverse(order(i)) == i);
    }
}

TEST_CASE("another key is another order, and the order mixes well") {
    const std::uint64_t n = 10'000;
    const keyed_permutation a(n, 1), b(n, 2);
    int equal = 0, fixed = 0, neighbours = 0;
    for (std::uint64_t i = 0; i < n; ++i) {
        equal += a(i) == b(i) ? 1 : 0;
        fixed += a(i) == i ? 1 : 0;
        if (i > 0) neighbours += a(i) == a(i - 1) + 1 ? 1 : 0;
    }
    CHECK(equal < 15); // about one is expected by chance
    CHECK(fixed < 15);
    CHECK(neighbours < 15);
}

TEST_CASE("the order is fixed for ever, because checkpoints rely on it") {
    const keyed_permutation order(10, 42);
    std::vector<std::uint64_t> got;
    for (std::uint64_t i = 0; i < 10; ++i) got.push_back(order(i));
    CHECK(got == std::vector<std::uint64_t>{2, 9, 1, 5, 3, 7, 0, 4, 8, 6});
}
