// SPDX-License-Identifier: Apache-2.0
#pragma once
// Logical shards of one session: the micro-batches of a step by their numbers in the global batch,
// and what each of them reports and leaves in the module's buffers. Used by
// <skein/train/detail/session_core.ipp> alone.

#include <skein/core/error.hpp>
#include <skein/report/metrics.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/context.hpp>
#include <skein/train/detail/session_parts.ipp>
#include <skein/train/detail/shard_names.hpp>
#include <skein/train/detail/shard_tree.hpp>
#include <skein/train/flat.hpp>
#include <skein/train/run_config.hpp>

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::train::detail {

/// What cannot be the same for any number of ranks.
SKEIN_INLINE void require_shardable(const input_source& input) {
    if (!input.is_stream()) return;
    throw error(errc::not_supported,
                "not supported: a stream with logical shards, because each rank has its own")
        .with_hint("use data with size() and batch(ids)");
}

class step_shards {
public:
    step_shards(const context& ctx, int shards, report::metric_set& reported,
                const flat_store& store)
        : ctx_(ctx), shards_(shards), reported_(reported), names_(shards) {
        for (const auto& f : store.fixed())
            if (f.is_buffer) buffers_.push_back({f.tensor, {}, {}});
    }

    /// Those of this rank.
    [[nodiscard]] shard_range own() const {
        return shards_of(shards_, ctx_.rank(), ctx_.world_size());
    }

    [[nodiscard]] bool has_buffers() const noexcept { return !buffers_.empty(); }

    /// All ranks have the buffers of the first one.
    void begin_step() {
        at::NoGradGuard no_grad;
        for (auto& b : buffers_) b.begin = b.now.detach().clone();
        mine_.assign(static_cast<std::size_t>(own().size()), {});
        in_hand_.reset();
    }
    /// The micro-batch of this number of the rank is next: what is reported from now on is its own,
    /// and its forward pass starts from the buffers of the step's beginning.
    void begin(std::size_t micro) {
        auto& before = in_hand_ ? mine_[*in_hand_].reported : outside_;
        before = reported_;
        reported_.clear();
        if (micro > 0) {
            keep_buffers();
            at::NoGradGuard no_grad;
            for (auto& b : buffers_) b.now.detach().copy_(b.begin);
        }
        in_hand_ = micro;
    }
    /// No micro-batch is in hand any more: the buffers of the step are those behind shard 0.
    void end() {
        if (!in_hand_) return;
        mine_[*in_hand_].reported = reported_;
        reported_.clear();
        reported_.append(outside_);
        keep_buffers();
        in_hand_.reset();
        if (own().first > 0) return;
        at::NoGradGuard no_grad;
        for (auto& b : buffers_)
            if (b.behind.defined()) b.now.detach().copy_(std::exchange(b.behind, at::Tensor()));
    }

    void add(const loss_sum& loss) {
        mine_[in_hand_.value()].own.mean("loss", loss.mean(), loss.weight);
        weights_.resize(mine_.size());
        weights_[*in_hand_] = loss.weight;
    }
    /// The trainer's numbers of a micro-batch of this rank.
    [[nodiscard]] report::metric_set& own_of(std::size_t micro) { return mine_.at(micro).own; }
    /// The weights of all shards, in their order. Collective.
    [[nodiscard]] double weight() {
        double all = 0.0;
        weights_.resize(mine_.size());
        for (const double each : gather_by_shard(ctx_, shards_, weights_, 1)) all += each;
        weights_.clear();
        return all;
    }
    [[nodiscard]] std::vector<report::metric_value> merge(const report::metric_set& own,
                                                          std::span<double> control) {
        return names_.merge(ctx_, own, reported_, mine_, control);
    }
    /// The world is another one.
    void rebind() noexcept { names_.forget(); }

private:
    struct buffer_type {
        at::Tensor now, begin, behind; // of the module; of the step's beginning; behind shard 0
    };

    void keep_buffers() {
        if (in_hand_ != std::optional<std::size_t>(0) || own().first > 0) return;
        at::NoGradGuard no_grad;
        for (auto& b : buffers_) b.behind = b.now.detach().clone();
    }

    const context& ctx_;
    int shards_;
    report::metric_set& reported_;
    shard_names names_;
    std::vector<buffer_type> buffers_;
    report::metric_set outside_; // while a micro-batch is in hand: what was reported before all
    std::vector<shard_numbers> mine_;
    std::vector<double> weights_;
    std::optional<std::size_t> in_hand_;
};

} // namespace skein::train::detail
