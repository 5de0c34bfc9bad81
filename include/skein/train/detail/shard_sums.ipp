// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/detail/shard_sums.hpp>.

#include <skein/core/error.hpp>
#include <skein/train/detail/sharded.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace skein::train::detail {

SKEIN_INLINE bool sharded_parallel::has_place(std::size_t segment) {
    return !takes_turns_ || phase_ != phase::reducing ||
           make_place(store_->segments()[segment].unit, /*wait=*/!gatherer_);
}

SKEIN_INLINE bool sharded_parallel::wait_for_pieces() {
    store_->ask_before([this](std::size_t segment) {
        const auto* const mark = mark_of_[segment];
        return (mark == nullptr || mark->pending() <= 0) && has_place(segment);
    });
    return takes_turns_;
}

SKEIN_INLINE void sharded_parallel::sum_by_shards(int shards) {
    sums_ = std::make_unique<shard_sums>(*store_, shards, groups_->replicas);
    (void)wait_for_pieces();
}

SKEIN_INLINE shard_sums::shard_sums(flat_store& store, int shards, dist::comm_thread* group)
    : store_(store), shards_(shards) {
    if (store.keeps_own_grads())
        throw error(errc::not_supported,
                    "not supported: logical shards whose gradients are summed in 16 bits")
            .with_hint("sum in float32: precision<bf16> does, precision<bf16, bf16> does not");
    rebind(group);
}

SKEIN_INLINE void shard_sums::rebind(dist::comm_thread* group) {
    group_ = group;
    const int ranks = group != nullptr ? group->world_size() : 1;
    own_ = shards_of(shards_, group != nullptr ? group->rank() : 0, ranks);
    counts_.clear();
    std::vector<shard_node> all;
    for (int r = 0; r < ranks; ++r) {
        const auto here = subtrees_of(shards_of(shards_, r, ranks));
        counts_.push_back(here.size());
        all.insert(all.end(), here.begin(), here.end());
    }
    merges_ = merges_of(all);
    halves_ = ranks == 2 && all.size() == 2;
    mine_ = gathered_ = at::Tensor();
    begin_step();
}

SKEIN_INLINE void shard_sums::begin_step() {
    shard_ = own_.first - 1;
    row_.clear();
    joins_.clear();
}

SKEIN_INLINE at::Tensor shard_sums::aside(std::size_t number, const flat_unit& unit) const {
    return aside_[number].narrow(0, unit.grads_at, unit.place.size());
}

SKEIN_INLINE void shard_sums::join(std::size_t number, const flat_unit& unit) const {
    store_.grads_of(unit).add_(aside(number, unit));
}

/// What is in the store makes room; it is the last of the row.
SKEIN_INLINE void shard_sums::put_aside() {
    const auto number = row_.size() - 1;
    if (number == aside_.size()) aside_.push_back(make_flat_buffer(store_.grads_P().numel()));
    aside_[number].copy_(store_.grads_P());
}

SKEIN_INLINE void shard_sums::begin_shard() {
    at::NoGradGuard no_grad;
    if (shard_ >= own_.first) {
        store_.settle_gradients();
        for (const auto number : joins_)
            for (const auto& unit : store_.units()) join(number, unit);
    }
    shard_ += 1;
    const shard_node next{shard_, 1};
    const bool adds = !row_.empty() && are_siblings(row_.back(), next);
    if (!row_.empty() && !adds) put_aside();
    joins_.clear();
    bool in_store = adds; // the first sum is made where the gradients are put
    add_node(row_, next, [&](std::size_t into, std::size_t) {
        if (!std::exchange(in_store, false)) joins_.push_back(into);
    });
    store_.begin_pass(adds);
}

SKEIN_INLINE dist::ticket shard_sums::send(const flat_unit& unit, dist::collective_tag tag) {
    at::NoGradGuard no_grad;
    for (const auto number : joins_) join(number, unit);
    const auto place = store_.grads_of(unit);
    if (halves_) return group_->all_reduce(view_of_flat(place), dist::reduce_op::sum, tag);

    const auto size = unit.place.size();
    const auto brings = static_cast<std::int64_t>(row_.size());
    auto in = place;
    if (merges_.size() + 1 > counts_.size()) { // all ranks alike: not from the place on some
        if (!mine_.defined()) mine_ = make_flat_buffer(brings * store_.grads_P().numel());
        in = mine_.narrow(0, brings * unit.grads_at, brings * size);
        for (std::int64_t i = 0; i < brings; ++i)
            in.narrow(0, i * size, size)
                .copy_(i + 1 < brings ? aside(static_cast<std::size_t>(i), unit) : place);
    }
    std::vector<std::size_t> counts;
    std::int64_t all = 0;
    for (const auto each : counts_) {
        counts.push_back(each * static_cast<std::size_t>(size));
        all += static_cast<std::int64_t>(each);
    }
    if (!gathered_.defined()) gathered_ = make_flat_buffer(all * store_.grads_P().numel());
    const auto out = gathered_.narrow(0, all * unit.grads_at, all * size);
    return group_->all_gather_v(view_of_flat(in), view_of_flat(out), std::move(counts), tag);
}

SKEIN_INLINE void shard_sums::take(const flat_unit& unit) {
    if (!halves_) add_up(unit);
}

SKEIN_INLINE void shard_sums::finish() {
    at::NoGradGuard no_grad;
    for (const auto number : joins_)
        for (const auto& unit : store_.units()) join(number, unit);
}

/// The tree over what was gathered. In blocks that stay in the cache: each number is read once.
SKEIN_INLINE void shard_sums::add_up(const flat_unit& unit) const {
    constexpr std::int64_t block = 4096;
    const auto size = unit.place.size();
    const auto subtrees = static_cast<std::int64_t>(merges_.size()) + 1;
    auto* const from = static_cast<float*>(gathered_.mutable_data_ptr()) + subtrees * unit.grads_at;
    auto* const to = static_cast<float*>(store_.grads_of(unit).mutable_data_ptr());
    const auto row = [&](std::size_t number) {
        return from + static_cast<std::int64_t>(number) * size;
    };
    at::parallel_for(0, (size + block - 1) / block, 16, [&](std::int64_t first, std::int64_t last) {
        for (auto at = first * block; at < std::min(last * block, size); at += block) {
            const auto end = std::min(at + block, size);
            for (std::size_t m = 0; m < merges_.size(); ++m) {
                const auto [into, added] = merges_[m];
                const float *const left = row(into), *const right = row(added);
                auto* const sum = m + 1 < merges_.size() ? row(into) : to;
                for (auto i = at; i < end; ++i) sum[i] = left[i] + right[i];
            }
        }
    });
}

} // namespace skein::train::detail
