// SPDX-License-Identifier: Apache-2.0
#pragma once
// Logical shards: who has which, and the one tree by which their gradients are added.
//
// The tree is binary and complete: its leaves are the L shards of a global batch in order, L a power
// of two. A rank has a contiguous range of shards, whose sums it brings as the largest whole subtrees
// in that range, at most two of each size. Those of all ranks are joined into the root, so every sum
// is made of the same two numbers whatever the number of ranks.
//
//     L = 8, 3 ranks:   rank 0: 0 1 | 2     rank 1: 3 | 4 5     rank 2: 6 7
//     the root:         ((0+1) + (2+3)) + ((4+5) + (6+7))

#include <skein/data/order.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace skein::train::detail {

/// Shards [first, first + size): a subtree when `size` is a power of two that divides `first`.
struct shard_node {
    int first = 0, size = 0;

    friend bool operator==(const shard_node&, const shard_node&) = default;
};

/// Two subtrees that have one parent.
[[nodiscard]] constexpr bool are_siblings(const shard_node& left,
                                          const shard_node& right) noexcept {
    return left.size == right.size && left.first % (2 * left.size) == 0 &&
           right.first == left.first + left.size;
}

/// The shards of a rank, from `first` up to `last`: at least one when there are as many as ranks.
struct shard_range {
    int first = 0, last = 0;

    [[nodiscard]] constexpr int size() const noexcept { return last - first; }
};
[[nodiscard]] constexpr shard_range shards_of(int shards, int rank, int ranks) noexcept {
    const auto [first, last] = data::rank_range(static_cast<std::uint64_t>(shards), rank, ranks);
    return {static_cast<int>(first), static_cast<int>(last)};
}

/// Numbers `into` and `from` of a row of subtrees: the sum of both is at `into` from then on.
using shard_merge = std::pair<std::size_t, std::size_t>;

/// Adds subtrees to a row from left to right and joins siblings; calls join(into, from) for each.
template <class Join>
void add_node(std::vector<shard_node>& row, shard_node next, Join join) {
    row.push_back(next);
    while (row.size() > 1 && are_siblings(row[row.size() - 2], row.back())) {
        join(row.size() - 2, row.size() - 1);
        row.pop_back();
        row.back().size *= 2;
    }
}

/// The largest subtrees within a range, from left to right.
[[nodiscard]] inline std::vector<shard_node> subtrees_of(const shard_range& range) {
    std::vector<shard_node> row;
    for (int s = range.first; s < range.last; ++s)
        add_node(row, {s, 1}, [](std::size_t, std::size_t) {});
    return row;
}

/// The sums of two that make the root of these, which are all subtrees of a tree from left to right.
/// The last one's result is the root, at 0.
[[nodiscard]] inline std::vector<shard_merge> merges_of(const std::vector<shard_node>& leaves) {
    std::vector<shard_merge> all;
    std::vector<shard_node> row;
    std::vector<std::size_t> at; // where the sums of the row are, among the leaves
    for (std::size_t i = 0; i < leaves.size(); ++i) {
        at.push_back(i);
        add_node(row, leaves[i], [&](std::size_t into, std::size_t from) {
            all.emplace_back(at[into], at[from]);
            at.pop_back();
        });
    }
    return all;
}

} // namespace skein::train::detail
