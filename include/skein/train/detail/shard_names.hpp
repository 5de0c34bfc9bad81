// SPDX-License-Identifier: Apache-2.0
#pragma once
// Numbers of logical shards, merged in the order of shards: the same bits for any number of ranks.

#include <skein/metrics/metric_list.hpp>
#include <skein/report/metrics.hpp>
#include <skein/train/collective.hpp>
#include <skein/train/context.hpp>

#include <span>
#include <string_view>
#include <vector>

namespace skein::train::detail {

/// What one shard comes to.
struct shard_numbers {
    report::metric_set own{};      ///< the trainer's, with names of those that all ranks know
    report::metric_set reported{}; ///< the user's
};

/// What each rank has of its shards, in the order of shards. `each`: numbers of a shard.
[[nodiscard]] std::vector<double> gather_by_shard(const context& ctx, int shards,
                                                  std::span<const double> mine, std::size_t each,
                                                  std::size_t before_first = 0);

/// What a rank's metrics saw in one shard.
struct shard_metrics {
    metrics::packed_state seen;
    bool was_dealt = false; ///< it had samples
};

/// The metrics of one stage over all shards, added in the order of shards: the same bits for any
/// number of ranks. Collective.
///   mine   of the shards of this rank
///   into   what it comes to is added to it, on every rank alike
///   stage  for messages
///   errors mismatch, on every rank: a shard was given samples and showed its metrics none of them,
///          while another did
void merge_shards(const context& ctx, int shards, std::vector<shard_metrics> mine,
                  metrics::metric_list& into, std::string_view stage);

/// As train::shared_names, with a set of numbers for each shard. What was reported outside of all
/// shards comes first and is rank 0's.
class shard_names {
public:
    explicit shard_names(int shards) : shards_(shards) {}

    /// The numbers of all shards, reduced by kind; a `last` is that of the first shard that has it.
    ///   own      names of the trainer's numbers; their values count on rank 0, beside the shards
    ///   outside  what the user reported outside of shards; rank 0's counts
    ///   mine     of the shards of this rank
    ///   control  as for train::merge()
    ///   errors   mismatch, on every rank, when a name is reported by two kinds
    [[nodiscard]] std::vector<report::metric_value> merge(const context& ctx,
                                                          const report::metric_set& own,
                                                          const report::metric_set& outside,
                                                          std::span<const shard_numbers> mine,
                                                          std::span<double> control = {});
    /// In another world: its ranks learn anew.
    void forget() noexcept { known_.clear(); }

private:
    struct row_type {
        int number = 0; // 0: outside of all shards
        const report::metric_set* own = nullptr;
        const report::metric_set* reported = nullptr;
    };
    void learn(const context& ctx, std::span<const row_type> rows);
    [[nodiscard]] std::vector<report::metric_value> exchange(const context& ctx,
                                                             const report::metric_set& own,
                                                             std::span<const row_type> rows,
                                                             bool with_reported,
                                                             std::span<double> control) const;

    int shards_;
    report::metric_set known_; // the same on all ranks; counts nothing
};

} // namespace skein::train::detail

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/shard_names.ipp>
#endif
