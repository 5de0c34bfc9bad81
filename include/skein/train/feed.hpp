// SPDX-License-Identifier: Apache-2.0
#pragma once
// feed: a pipeline (skein/data.hpp) as the data of a Trainer.
//
//     struct points { torch::Tensor pixels_BCHW, label_B; };    // one per field of the row, in order
//     auto train = data::range(50'000) | data::map<&draw>() | data::shuffle();
//     auto batches = skein::train::feed<points>(ctx, run, train);
//     auto held_out = skein::train::numbered<points>(ctx, run, test);
//     trainer.fit(net, skein::SGD{}, schedule, loss, batches, held_out);
//
// Batches are the run's: its seed and last_batch, and the plan in force (train/step_plan.hpp), which
// begins with its global_batch and accumulation. The rows of step n are
// the same for any number of ranks, threads and helpers, and after a resume. Tensors lie over the
// loader's memory, without a copy; it comes back when the last of them has gone, so a tensor that
// is kept for long should be a clone().

#include <skein/core/error.hpp>
#include <skein/core/fields.hpp>
#include <skein/core/option_count.hpp>
#include <skein/core/time.hpp>
#include <skein/data/detail/loader_core.hpp>
#include <skein/data/detail/row_program.hpp>
#include <skein/data/pipeline.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/context.hpp>
#include <skein/train/input.hpp>
#include <skein/train/run_config.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace skein::train {

/// What feed() does beside what the run says.
struct feed_options {
    int threads = 0; ///< that make rows; 0: the cores of this process, shared with the ranks here
    option_count budget = std::size_t{512} << 20; ///< bytes of all batches that are made or held
    option_count bad_rows = 0; ///< samples that cannot be made and are left out, of each rank; one
                               ///< that is bad in every epoch counts once. Each is named in the
                               ///< log and in left_out.csv of the run's folder, once
    time_span
        row_limit{}; ///< that one row may take here; a longer one ends the run. 0: none, a row
                     ///< that takes long is named in the log
};

namespace detail {

/// Column `index` of a batch, over its slot: [rows, dims].
[[nodiscard]] torch::Tensor column_tensor(const data::detail::finished_batch& made,
                                          std::size_t index);

template <class Batch, class Pipeline>
[[nodiscard]] Batch tensors_of(const data::detail::finished_batch& made) {
    using row = data::row_of<Pipeline>;
    static_assert(plain_aggregate<Batch>, "skein: a batch of feed<> is a struct of torch::Tensor");
    static_assert(
        field_count<Batch> == field_count<row>,
        "skein: a batch of feed<> has one torch::Tensor per field of the pipeline's rows");
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
        static_assert((std::is_same_v<field_type<Batch, I>, torch::Tensor> && ...),
                      "skein: a batch of feed<> is a struct of torch::Tensor");
        return Batch{column_tensor(made, I)...};
    }(std::make_index_sequence<field_count<Batch>>{});
}

[[nodiscard]] data::loader_options loader_options_of(const context& ctx, const run_config& run,
                                                     const feed_options& how);
[[nodiscard]] data::detail::dealing dealing_of(const run_config& run, std::uint64_t size);

/// The loader of a run: a row that does not end gives way to a stop of the run.
[[nodiscard]] std::unique_ptr<data::detail::loader_core> make_loader(
    std::shared_ptr<const data::detail::row_program> program, const context& ctx,
    const run_config& run, const feed_options& how);

/// What a loader of a run has left out: in left_out.csv of the run's folder.
class left_out_file {
public:
    explicit left_out_file(const context& ctx) : ctx_(&ctx) {}
    /// Writes what is new; a sample of these data that stands there already is not written again.
    void update(const data::detail::loader_core& of);

private:
    const context* ctx_;
    std::size_t seen_ = 0;
    bool failing_ = false;
};

/// The place of a pipeline in a run, without its types.
class fed_places {
public:
    fed_places(std::shared_ptr<const data::detail::row_program> program, const context& ctx,
               const run_config& run, const feed_options& how);

    [[nodiscard]] std::optional<data::detail::finished_batch> next(const stream_share& share);
    [[nodiscard]] std::string state() const { return place_.save(); }
    void restore(std::string_view saved);
    [[nodiscard]] std::string describe() const { return core_->program().describe(); }
    [[nodiscard]] std::uint64_t size() const { return core_->program().size(); }
    [[nodiscard]] data::loader_stats stats() const { return core_->stats(); }

private:
    data::detail::dealing deal_;
    data::detail::loader_place place_;
    int part_ = 0; // of the step that is being asked for
    std::unique_ptr<data::detail::loader_core> core_;
    left_out_file left_out_;
};

/// Batches by number, the ones behind the last read ahead.
class numbered_places {
public:
    numbered_places(std::shared_ptr<const data::detail::row_program> program, const context& ctx,
                    const run_config& run, const feed_options& how);

    [[nodiscard]] std::uint64_t size() const { return size_; }
    [[nodiscard]] data::detail::finished_batch batch(std::span<const std::uint64_t> ids) const;
    [[nodiscard]] data::loader_stats stats() const {
        return core_ ? core_->stats() : data::loader_stats();
    }

private:
    std::uint64_t size_ = 0;
    std::unique_ptr<data::detail::loader_core> core_;
    mutable left_out_file left_out_;
};

} // namespace detail

/// A pipeline as a batch_stream; made by feed(). One thread.
template <class Batch, class Pipeline>
class fed_stream {
public:
    static constexpr bool reads_ahead = true;

    fed_stream(const context& ctx, const run_config& run, Pipeline plan, feed_options how)
        : places_(std::make_shared<data::detail::typed_program<Pipeline>>(std::move(plan)), ctx,
                  run, how),
          is_filtered_(data::detail::has_filter<Pipeline> || how.bad_rows > 0) {}

    /// The rows of a share. Blocks while they are being made.
    ///   errors  of the first row that could not be made; exhausted: tensors of too many batches
    ///           are still held
    [[nodiscard]] std::optional<Batch> next(const stream_share& share) {
        auto made = places_.next(share);
        if (!made) return std::nullopt;
        samples_ = made->samples.size();
        return detail::tensors_of<Batch, Pipeline>(*made);
    }
    /// Rows of the batch that next() gave last.
    [[nodiscard]] std::uint64_t samples(const Batch&) const noexcept { return samples_; }
    [[nodiscard]] std::string state() const { return places_.state(); }
    ///   errors  malformed; mismatch: it is of another pipeline or seed
    void restore(std::string_view saved) { places_.restore(saved); }
    [[nodiscard]] std::string describe() const { return places_.describe(); }
    /// Rows of an epoch; 0: filters decide.
    [[nodiscard]] std::uint64_t size() const { return is_filtered_ ? 0 : places_.size(); }
    /// What making rows has cost so far, here and at helpers, and what was left out.
    [[nodiscard]] data::loader_stats stats() const { return places_.stats(); }

private:
    detail::fed_places places_;
    bool is_filtered_;
    std::uint64_t samples_ = 0;
};

/// A pipeline as the training data of a run; ctx and run must outlive it.
///   Batch   a struct of torch::Tensor, one per field of the pipeline's rows: an image<float, C>
///           becomes [rows, C, height, width], an image<std::uint8_t, C> [rows, height, width, C],
///           a number [rows]
///   errors  usage: no samples
template <class Batch, class Pipeline>
[[nodiscard]] fed_stream<Batch, Pipeline> feed(const context& ctx, const run_config& run,
                                               Pipeline plan, feed_options how = {}) {
    return {ctx, run, std::move(plan), how};
}

/// A pipeline as a data_source; made by numbered(). One thread.
template <class Batch, class Pipeline>
class numbered_rows {
public:
    numbered_rows(const context& ctx, const run_config& run, Pipeline plan, feed_options how)
        : places_(std::make_shared<data::detail::typed_program<Pipeline>>(std::move(plan)), ctx,
                  run, how) {
        static_assert(!data::detail::has_filter<Pipeline>,
                      "skein: not supported: a filter in an evaluation set, whose batches have a "
                      "number of samples that is known before; filter its source");
    }
    [[nodiscard]] std::uint64_t size() const { return places_.size(); }
    /// Rows of samples that follow each other, without the bad ones that may be left out; the next
    /// ones are made meanwhile.
    ///   errors  of rows that cannot be made; not_supported: numbers that do not follow each other
    [[nodiscard]] Batch batch(std::span<const std::uint64_t> ids) const {
        const auto made = places_.batch(ids);
        samples_ = made.samples.size();
        return detail::tensors_of<Batch, Pipeline>(made);
    }
    /// Rows of the batch that batch() gave last.
    [[nodiscard]] std::uint64_t samples(const Batch&) const noexcept { return samples_; }
    /// The same as of fed_stream; nothing for an empty set.
    [[nodiscard]] data::loader_stats stats() const { return places_.stats(); }

private:
    detail::numbered_places places_;
    mutable std::uint64_t samples_ = 0;
};

/// A pipeline as the evaluation set of a run, in the order of its samples, with the draws of epoch
/// 0. ctx and run must outlive it.
template <class Batch, class Pipeline>
[[nodiscard]] numbered_rows<Batch, Pipeline> numbered(const context& ctx, const run_config& run,
                                                      Pipeline plan, feed_options how = {}) {
    return {ctx, run, std::move(plan), how};
}

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/feed.ipp>
#endif
