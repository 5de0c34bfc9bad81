// SPDX-License-Identifier: Apache-2.0
#pragma once
// Finds a place with enough room without looking at all of them: a binary tree over the places, whose inner nodes
// have the largest key of each dimension below them.
//
// With one kind of need a search goes straight down. With several, a node may promise what none of its
// places holds alone (one has the cpus, another the gpus); the search then turns back, at worst past every place.

#include <skein/rt/detail/room.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace skein::rt::detail {

inline constexpr std::uint32_t no_index = UINT32_MAX;

class place_tree {
public:
    /// Room for so many leaves of so many dimensions; keys stay, new leaves are closed.
    void reserve(std::uint32_t leaves, std::uint32_t dims) {
        const auto wanted = std::max(leaves_, std::bit_ceil(std::max(leaves, 2u)));
        if (wanted == leaves_ && dims <= dims_) return;
        place_tree bigger;
        bigger.leaves_ = wanted;
        bigger.dims_ = std::max(dims, dims_);
        bigger.keys_.assign(std::size_t{2} * wanted * bigger.dims_, closed_key);
        for (std::uint32_t leaf = 0; leaf < leaves_; ++leaf) {
            const auto* from = node(leaves_ + leaf);
            if (from[dim_order] == closed_key) continue;
            std::vector<std::int64_t> keys(from, from + dims_);
            bigger.set(leaf, keys);
        }
        *this = std::move(bigger);
    }
    [[nodiscard]] std::uint32_t dims() const noexcept { return dims_; }

    /// Dimensions that are not in `keys` are zero.
    void set(std::uint32_t leaf, const std::vector<std::int64_t>& keys) noexcept {
        auto* at = node(leaves_ + leaf);
        for (std::uint32_t d = 0; d < dims_; ++d) at[d] = d < keys.size() ? keys[d] : 0;
        update_above(leaf);
    }
    void close(std::uint32_t leaf) noexcept {
        std::fill_n(node(leaves_ + leaf), dims_, closed_key);
        update_above(leaf);
    }

    /// The first leaf that has all needs and that accept(leaf) takes, else no_index.
    template <class Accept>
    [[nodiscard]] std::uint32_t first(const needs& all, Accept&& accept) const {
        return leaves_ == 0 ? no_index : first_below(1, all, accept);
    }
    /// One with the most of a dimension among them: the larger half first.
    template <class Accept>
    [[nodiscard]] std::uint32_t most(std::uint32_t dim, const needs& all, Accept&& accept) const {
        return leaves_ == 0 || dim >= dims_ ? no_index : most_below(1, dim, all, accept);
    }

private:
    [[nodiscard]] std::int64_t* node(std::uint32_t n) noexcept {
        return keys_.data() + std::size_t{n} * dims_;
    }
    [[nodiscard]] const std::int64_t* node(std::uint32_t n) const noexcept {
        return keys_.data() + std::size_t{n} * dims_;
    }
    void update_above(std::uint32_t leaf) noexcept {
        for (auto n = (leaves_ + leaf) / 2; n >= 1; n /= 2) {
            auto* at = node(n);
            const auto *left = node(2 * n), *right = node(2 * n + 1);
            bool changed = false;
            for (std::uint32_t d = 0; d < dims_; ++d) {
                const auto larger = std::max(left[d], right[d]);
                changed |= at[d] != larger;
                at[d] = larger;
            }
            if (!changed) return;
        }
    }
    [[nodiscard]] bool promises(std::uint32_t n, const needs& all) const noexcept {
        const auto* at = node(n);
        if (at[dim_order] == closed_key) return false;
        return std::all_of(all.begin(), all.end(),
                           [&](const need& x) { return x.dim < dims_ && at[x.dim] >= x.least; });
    }
    template <class Accept>
    [[nodiscard]] std::uint32_t first_below(std::uint32_t n, const needs& all,
                                            Accept& accept) const {
        if (!promises(n, all)) return no_index;
        if (n >= leaves_) return accept(n - leaves_) ? n - leaves_ : no_index;
        const auto found = first_below(2 * n, all, accept);
        return found != no_index ? found : first_below(2 * n + 1, all, accept);
    }
    template <class Accept>
    [[nodiscard]] std::uint32_t most_below(std::uint32_t n, std::uint32_t dim, const needs& all,
                                           Accept& accept) const {
        if (!promises(n, all)) return no_index;
        if (n >= leaves_) return accept(n - leaves_) ? n - leaves_ : no_index;
        const auto larger = node(2 * n + 1)[dim] > node(2 * n)[dim] ? 2 * n + 1 : 2 * n;
        const auto found = most_below(larger, dim, all, accept);
        return found != no_index ? found : most_below(larger ^ 1u, dim, all, accept);
    }

    std::uint32_t leaves_ = 0, dims_ = 0;
    std::vector<std::int64_t> keys_; ///< node 1 is the root, leaves begin at node leaves_
};

} // namespace skein::rt::detail
