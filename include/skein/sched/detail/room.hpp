// SPDX-License-Identifier: Apache-2.0
#pragma once
// What is free on one place, as numbers that a request's needs are compared with one by one.
//
// A resource is a number here ("dimension"). Gpus are two: gpus that are wholly free, and the
// largest share that is free on one gpu. So "two whole gpus" and "a third of one" are comparisons
// like all others.

#include <skein/core/check.hpp>
#include <skein/sched/resources.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace skein::sched::detail {

inline constexpr std::uint32_t dim_order =
    0; ///< minus the number of grants: always there while a place is open
inline constexpr std::uint32_t dim_cpu = 1; ///< in steps; below zero: more run than there are cpus
inline constexpr std::uint32_t dim_memory = 2; ///< in bytes
inline constexpr std::uint32_t dim_gpu = 3;    ///< wholly free gpus, in steps
inline constexpr std::uint32_t dim_share = 4;  ///< the largest free share of one gpu, in steps
inline constexpr std::uint32_t dim_custom = 5; ///< the first custom resource, in steps

/// Less than any need: the key of a place that takes nothing.
inline constexpr std::int64_t closed_key = INT64_MIN;

/// At least so much of a dimension.
struct need {
    std::uint32_t dim = 0;
    std::int64_t least = 0;
    friend bool operator==(const need&, const need&) = default;
};
/// In the order of dimensions, none zero.
using needs = std::vector<need>;

[[nodiscard]] inline std::int64_t need_of(const needs& all, std::uint32_t dim) noexcept {
    for (const auto& n : all)
        if (n.dim == dim) return n.least;
    return 0;
}

/// Amounts by dimension. The first eight lie in the object: a place is looked at more often than
/// its numbers are.
class key_list {
public:
    [[nodiscard]] std::uint32_t size() const noexcept { return size_; }
    void resize(std::uint32_t n) {
        size_ = n;
        if (n > few_.size()) more_.resize(n - few_.size());
    }
    [[nodiscard]] std::int64_t& operator[](std::uint32_t d) noexcept {
        return d < few_.size() ? few_[d] : more_[d - few_.size()];
    }
    [[nodiscard]] std::int64_t operator[](std::uint32_t d) const noexcept {
        return d < few_.size() ? few_[d] : more_[d - few_.size()];
    }

private:
    std::uint32_t size_ = 0;
    std::array<std::int64_t, 8> few_{};
    std::vector<std::int64_t> more_;
};

/// One gpu of a place.
struct gpu_room {
    std::uint8_t index = 0;  ///< on its host
    std::uint16_t free = 0;  ///< in steps
    std::uint16_t total = 0; ///< less than a whole one in a bundle that asked for a share
};

/// What is free, and taking and giving of it.
class room {
public:
    room() = default;

    /// The room of a place with these amounts; gpus has its gpus.
    room(const needs& total, gpu_set gpus) {
        keys_.resize(dim_custom);
        for (const auto& n : total) {
            if (n.dim == UINT32_MAX) continue; // a resource that no place has
            if (n.dim >= keys_.size()) keys_.resize(n.dim + 1);
            if (n.dim != dim_gpu && n.dim != dim_share) keys_[n.dim] = n.least;
        }
        const auto share = need_of(total, dim_share);
        const auto each = static_cast<std::uint16_t>(share != 0 ? share : amount::steps);
        for (int i = 0; i < gpu_set::most; ++i)
            if (gpus.has(i)) gpus_.push_back({static_cast<std::uint8_t>(i), each, each});
        count_gpus();
    }

    [[nodiscard]] std::int64_t at(std::uint32_t dim) const noexcept {
        return dim < keys_.size() ? keys_[dim] : 0;
    }
    [[nodiscard]] const key_list& keys() const noexcept { return keys_; }

    [[nodiscard]] bool fits(const needs& all) const noexcept {
        return std::all_of(all.begin(), all.end(),
                           [this](const need& n) { return at(n.dim) >= n.least; });
    }

    /// Takes the needs, which must fit; the gpus it took. A share is taken from the gpu on which it
    /// leaves least.
    gpu_set take(const needs& all) {
        gpu_set taken;
        --keys_[dim_order];
        for (const auto& n : all) {
            if (n.dim == dim_gpu) {
                taken = take_whole(n.least / amount::steps);
            } else if (n.dim == dim_share) {
                taken = take_share(n.least);
            } else if (n.dim != dim_order) {
                keys_[n.dim] -= n.least;
            }
        }
        return taken;
    }
    /// Takes the needs with these gpus. False, and nothing is taken: so much, or one of them, is
    /// not free.
    ///   cpus_too    of a worker that runs already: its cpus are taken even if they are not free
    [[nodiscard]] bool take_these(const needs& all, gpu_set gpus, bool cpus_too = false) {
        const auto whole = need_of(all, dim_gpu), share = need_of(all, dim_share);
        std::int64_t count = 0, free = 0;
        for (const auto& g : gpus_) {
            if (!gpus.has(g.index)) continue;
            ++count;
            free += whole != 0 ? g.free == amount::steps : g.free >= share;
        }
        const std::int64_t wanted = whole != 0 ? whole / amount::steps : share != 0 ? 1 : 0;
        const bool is_there = std::all_of(all.begin(), all.end(), [&](const need& n) {
            return at(n.dim) >= n.least || (cpus_too && n.dim == dim_cpu);
        });
        if (!is_there || count != wanted || free != wanted) return false;
        --keys_[dim_order];
        for (const auto& n : all)
            if (n.dim != dim_gpu && n.dim != dim_share && n.dim != dim_order)
                keys_[n.dim] -= n.least;
        for (auto& g : gpus_)
            if (gpus.has(g.index))
                g.free = static_cast<std::uint16_t>(whole != 0 ? 0 : g.free - share);
        count_gpus();
        return true;
    }
    /// What take() took; with_cpus = false: but for the cpus, which were given before.
    void give(const needs& all, gpu_set gpus, bool with_cpus = true) noexcept {
        ++keys_[dim_order];
        for (const auto& n : all) {
            if (n.dim == dim_gpu || n.dim == dim_share) {
                const auto each = n.dim == dim_share ? n.least : amount::steps;
                for (auto& g : gpus_)
                    if (gpus.has(g.index)) g.free = static_cast<std::uint16_t>(g.free + each);
                count_gpus();
            } else if (n.dim != dim_order && (with_cpus || n.dim != dim_cpu)) {
                keys_[n.dim] += n.least;
            }
        }
    }
    /// Cpus alone: of one that waits, or goes on.
    void add_cpus(std::int64_t n) noexcept { keys_[dim_cpu] += n; }

    /// Less room than there is, for plans: what is kept free for somebody else.
    void withhold(const needs& all) noexcept {
        for (const auto& n : all) {
            if (n.dim == dim_gpu || n.dim == dim_share) {
                gpus_.clear();
                count_gpus();
            } else if (n.dim < keys_.size() && n.dim != dim_order) {
                keys_[n.dim] -= n.least;
            }
        }
    }
    /// Steps of all gpus that are taken.
    [[nodiscard]] std::int64_t gpus_used() const noexcept {
        std::int64_t used = 0;
        for (const auto& g : gpus_) used += g.total - g.free;
        return used;
    }

private:
    gpu_set take_whole(std::int64_t count) noexcept {
        gpu_set taken;
        for (auto& g : gpus_) {
            if (count == 0) break;
            if (g.free != amount::steps) continue;
            g.free = 0;
            taken.insert(g.index);
            --count;
        }
        count_gpus();
        return taken;
    }
    gpu_set take_share(std::int64_t share) noexcept {
        gpu_room* best = nullptr;
        for (auto& g : gpus_)
            if (g.free >= share && (best == nullptr || g.free < best->free)) best = &g;
        gpu_set taken;
        if (best == nullptr) return taken;
        best->free = static_cast<std::uint16_t>(best->free - share);
        taken.insert(best->index);
        count_gpus();
        return taken;
    }
    void count_gpus() noexcept {
        keys_[dim_gpu] = keys_[dim_share] = 0;
        for (const auto& g : gpus_) {
            if (g.free == amount::steps) keys_[dim_gpu] += amount::steps;
            keys_[dim_share] = std::max<std::int64_t>(keys_[dim_share], g.free);
        }
    }

    key_list keys_;
    std::vector<gpu_room> gpus_;
};

} // namespace skein::sched::detail
