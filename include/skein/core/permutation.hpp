// SPDX-License-Identifier: Apache-2.0
#pragma once
// A shuffled order of n items without a table: a keyed bijection on [0, n).
//
// A balanced Feistel network permutes the next larger even power of two; results outside [0, n) are
// walked on until they fall inside (less than four steps on average). Any position is found in O(1)
// and no memory, so each rank computes just its own samples. The function is fixed for ever:
// checkpoints rely on it. Source: Black, Rogaway, "Ciphers with arbitrary finite domains" (2002).
//
//     keyed_permutation order(samples, seed ^ epoch);
//     std::uint64_t sample = order(position);

#include <skein/core/check.hpp>

#include <bit>
#include <cstdint>

namespace skein {

/// One shuffled order of n items, chosen by a key. Small, copyable, without state.
class keyed_permutation {
public:
    /// n: number of items, 1 <= n <= 2^62. Equal (n, key) give the equal order on every machine.
    explicit keyed_permutation(std::uint64_t n, std::uint64_t key) : n_(n) {
        SKEIN_CHECK(n >= 1 && n <= std::uint64_t{1} << 62,
                    "a permutation needs 1 to 2^62 items, not {}", n);
        const int bits = n <= 4 ? 2 : static_cast<int>(std::bit_width(n - 1));
        half_ = (bits + 1) / 2;
        mask_ = (std::uint64_t{1} << half_) - 1;
        for (auto& k : keys_) k = mix(key += 0x9E3779B97F4A7C15u);
    }

    [[nodiscard]] std::uint64_t size() const noexcept { return n_; }

    /// The item at position i.
    [[nodiscard]] std::uint64_t operator()(std::uint64_t i) const {
        SKEIN_CHECK(i < n_, "position {} >= {} items", i, n_);
        do i = forward(i);
        while (i >= n_);
        return i;
    }
    /// The position of an item: inverse((*this)(i)) == i.
    [[nodiscard]] std::uint64_t inverse(std::uint64_t item) const {
        SKEIN_CHECK(item < n_, "item {} >= {} items", item, n_);
        do item = backward(item);
        while (item >= n_);
        return item;
    }

private:
    static constexpr int rounds = 8;

    /// The finaliser of splitmix64.
    static constexpr std::uint64_t mix(std::uint64_t x) noexcept {
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
        return x ^ (x >> 31);
    }
    [[nodiscard]] std::uint64_t forward(std::uint64_t x) const noexcept {
        std::uint64_t left = x >> half_, right = x & mask_;
        for (int r = 0; r < rounds; ++r) {
            const std::uint64_t next = left ^ (mix(right ^ keys_[r]) & mask_);
            left = right;
            right = next;
        }
        return left << half_ | right;
    }
    [[nodiscard]] std::uint64_t backward(std::uint64_t x) const noexcept {
        std::uint64_t left = x >> half_, right = x & mask_;
        for (int r = rounds - 1; r >= 0; --r) {
            const std::uint64_t next = right ^ (mix(left ^ keys_[r]) & mask_);
            right = left;
            left = next;
        }
        return left << half_ | right;
    }

    std::uint64_t n_, mask_ = 0;
    int half_ = 1;
    std::uint64_t keys_[rounds]{};
};

} // namespace skein
