// SPDX-License-Identifier: Apache-2.0
#pragma once
// The few blocking exchanges that training needs besides gradients, the same for one rank and many.
//
// All are collective: every rank calls them in the same order. In a world of one they cost nothing.
//
//     // every metric of every rank, reduced by kind
//     auto merged = merge(ctx, metrics);
//     require_same(ctx, hash, "the model");            // errc::mismatch names the odd rank

#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/core/time.hpp>
#include <skein/dist/buffer.hpp>
#include <skein/metrics/metric_list.hpp>
#include <skein/report/metrics.hpp>
#include <skein/spmd/settings.hpp>
#include <skein/train/checkpoint.hpp>
#include <skein/train/context.hpp>
#include <skein/train/run_config.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace skein::train {

namespace detail {
/// Errors that a failure elsewhere causes here.
[[nodiscard]] constexpr bool may_be_echo(errc code) noexcept {
    return code == errc::aborted || code == errc::peer_lost || code == errc::reset ||
           code == errc::closed || code == errc::timeout;
}
/// The world broke: what failed here may be mended by another world. What the communicator throws
/// has the rank and the operation for its place.
[[nodiscard]] bool is_of_world(const error& why);
} // namespace detail

/// In place over all ranks.
void all_reduce(const context& ctx, std::span<double> values, dist::reduce_op op);

/// The bytes of every rank, in rank order.
[[nodiscard]] std::vector<byte_buffer> gather_bytes(const context& ctx, byte_span mine);
[[nodiscard]] std::vector<byte_buffer> gather_bytes(dist::comm_thread& comm, byte_span mine);

/// Rank 0's text on every rank.
[[nodiscard]] std::string from_first(const context& ctx, const std::string& text);

/// Throws errc::mismatch on every rank, naming the first rank that differs from rank 0.
void require_same(const context& ctx, std::uint64_t hash, std::string_view what);

/// What every rank must have alike of its configuration; model, optimizer and data are compared
/// with it when training begins.
[[nodiscard]] std::vector<spmd::setting> settings_of(const run_config& config);

/// Throws errc::mismatch on every rank, with the settings that differ and both values.
void require_same(const context& ctx, const std::vector<spmd::setting>& mine);

/// The metrics of all ranks, reduced by kind; the same values on every rank.
///   control  travels with them and is no metric: becomes the largest of all ranks, number by
///            number
[[nodiscard]] std::vector<report::metric_value> merge(const context& ctx,
                                                      const report::metric_set& mine,
                                                      std::span<double> control = {});

/// The metrics of one stage over all ranks: adds what this rank's list has to `into`, on every rank
/// alike, and clears it. One exchange of sums, one of maxima, one of rows where there are any.
///   stage  for messages
///   dealt  this rank was given samples since the last merge
///   is_one_step  since the last merge there was one step, in which no rank may show anything
///   errors mismatch, on every rank: a rank was given samples and showed its metrics none of them,
///          while another did; usage when no rank did
void merge(const context& ctx, metrics::metric_list& mine, metrics::metric_list& into,
           std::string_view stage, bool dealt, bool is_one_step = false);

/// Rows of numbers whose names a rank may not know: one without samples reports nothing, one may
/// report under a condition of its own. All ranks learn each name and kind the first time that some
/// rank reports it, with one more exchange; after that a row costs what merge() costs.
class shared_names {
public:
    /// The metrics of all ranks, reduced by kind; `own`, the same names on every rank, come first.
    /// A reported name is in the row when some rank reported it, and counts for those that did.
    ///   control  as for merge()
    ///   errors   mismatch, on every rank, when two ranks report a name by different kinds
    [[nodiscard]] std::vector<report::metric_value> merge(const context& ctx,
                                                          const report::metric_set& own,
                                                          const report::metric_set& reported,
                                                          std::span<double> control = {});
    /// In another world: its ranks learn anew.
    void forget() noexcept { known_.clear(); }

private:
    void learn(const context& ctx, const report::metric_set& reported);

    report::metric_set known_; // the same on all ranks; counts nothing
};

/// For the checkpointer: its exchange over this context's control group, whose deadline is at least
/// 30 minutes, since between exchanges ranks read, verify and sync whole checkpoints. Dead ranks
/// are noticed without it. The context must outlive it; made by all ranks alike.
[[nodiscard]] checkpoint_world make_checkpoint_world(const context& ctx);

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/collective.ipp>
#endif
