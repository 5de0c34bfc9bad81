// SPDX-License-Identifier: Apache-2.0
#pragma once
// Finds a place with enough room without looking at all of them: a binary tree over the places,
// whose inner nodes have the largest key of each dimension below them.
//
// With one kind of need a search goes straight down. With several, a node may promise what none of
// its places holds alone (one has the cpus, another the gpus); the search then turns back, at worst
// past every place.

#include <skein/sched/detail/room.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace skein::sched::detail {

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
            key_list keys;
            keys.resize(dims_);
            for (std::uint32_t d = 0; d < dims_; ++d) keys[d] = from[d];
            bigger.set(leaf, keys);
        }
        *this = std::move(bigger);
    }
    [[nodiscard]] std::uint32_t dims() const noexcept { return dims_; }

    /// Dimensions that are not in `keys` are zero.
    void set(std::uint32_t leaf, const key_list& keys) noexcept {
        for (std::uint32_t d = 0; d < dims_; ++d) change(leaf, d, d < keys.size() ? keys[d] : 0);
    }
    void close(std::uint32_t leaf) noexcept {
        for (std::uint32_t d = 0; d < dims_; ++d) change(leaf, d, closed_key);
    }

    /// Whether a leaf is open and has all needs.
    [[nodiscard]] bool fits(std::uint32_t leaf, const needs& all) const noexcept {
        return promises(leaves_ + leaf, all);
    }
    /// What a leaf has of a dimension; closed_key if it is closed.
    [[nodiscard]] std::int64_t at(std::uint32_t leaf, std::uint32_t dim) const noexcept {
        return dim < dims_ ? node(leaves_ + leaf)[dim] : 0;
    }

    /// The first leaf that has all needs and that accept(leaf) takes, else no_index.
    template <class Accept>
    [[nodiscard]] std::uint32_t first(const needs& all, Accept&& accept) const {
        return leaves_ == 0 ? no_index : first_below(1, all, accept);
    }
    /// The same among the leaves from this one on.
    template <class Accept>
    [[nodiscard]] std::uint32_t first_from(std::uint32_t leaf, const needs& all,
                                           Accept&& accept) const {
        if (leaf >= leaves_) return no_index;
        for (auto n = leaves_ + leaf;;
             ++n) { // the leaf, then what lies to its right, ever larger parts
            const auto found = first_below(n, all, accept);
            if (found != no_index) return found;
            while (n % 2 != 0) n /= 2;
            if (n == 0) return no_index;
        }
    }
    /// The most of each dimension that any leaf has; closed_key: none is open.
    [[nodiscard]] key_list most_of_each() const {
        key_list keys;
        keys.resize(dims_);
        for (std::uint32_t d = 0; d < dims_; ++d) keys[d] = node(1)[d];
        return keys;
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
    /// Most changes concern one or two dimensions, and stop where another place has more.
    void change(std::uint32_t leaf, std::uint32_t d, std::int64_t key) noexcept {
        auto n = leaves_ + leaf;
        if (node(n)[d] == key) return;
        node(n)[d] = key;
        for (n /= 2; n >= 1; n /= 2) {
            const auto larger = std::max(node(2 * n)[d], node(2 * n + 1)[d]);
            if (node(n)[d] == larger) return;
            node(n)[d] = larger;
        }
    }
    [[nodiscard]] bool promises(std::uint32_t n, const needs& all) const noexcept {
        const auto* at = node(n);
        for (const auto& x : all)
            if (x.dim >= dims_ || at[x.dim] < x.least) return false;
        return !all.empty() || at[dim_order] != closed_key; // a need is more than closed_key
    }
    template <class Accept>
    [[nodiscard]] std::uint32_t first_below(std::uint32_t n, const needs& all,
                                            Accept& accept) const {
        if (!promises(n, all)) return no_index;
        if (n >= leaves_) return accept(n - leaves_) ? n - leaves_ : no_index;
        while (2 * n < leaves_ && !promises(2 * n, all)) { // without calls while there is one way
            n = 2 * n + 1;
            if (!promises(n, all)) return no_index;
        }
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

} // namespace skein::sched::detail
