// SPDX-License-Identifier: Apache-2.0
#pragma once
// loader: the batches of a pipeline, made ahead by threads of its own and by helpers.
//
//     auto batches = data::loader(data::range(50'000) | data::map<&draw>() | data::shuffle()
//                                     | data::batch(64), {.seed = 1, .epochs = 3});
//     while (auto b = batches.next()) use(b->column<0>(), b->column<1>());   // blocks
//     fmt::print("{}", batches.stats().text());
//
// For training with a Trainer see train/feed.hpp.

#include <skein/data/detail/loader_core.hpp>
#include <skein/data/detail/row_program.hpp>
#include <skein/data/pipeline.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace skein::data {

namespace detail {
template <class T>
struct number_of_field {
    using type = T;
};
template <class T, int C>
struct number_of_field<image<T, C>> {
    using type = T;
};
template <class T>
struct number_of_field<std::span<T>> {
    using type = std::conditional_t<std::is_same_v<std::remove_cv_t<T>, std::byte>, std::uint8_t,
                                    std::remove_cv_t<T>>;
};
template <class T, std::size_t N>
struct number_of_field<std::array<T, N>> {
    using type = T;
};
} // namespace detail

/// Values of a batch, which lives as long as one of them is seen: what next() gave may be a
/// temporary, as in `for (float x : loader.next()->column<0>())`.
template <class T>
class held_span : public std::span<const T> {
public:
    held_span() = default;
    held_span(std::span<const T> values, std::shared_ptr<const void> keeper) noexcept
        : std::span<const T>(values), keeper_(std::move(keeper)) {}

    /// A copy.
    operator std::vector<T>() const { return {this->begin(), this->end()}; }

private:
    std::shared_ptr<const void> keeper_;
};

/// Rows of one batch, a column per field; its memory goes back when the last copy has gone, and
/// the last of what it gave.
template <class Row>
class row_batch {
public:
    explicit row_batch(detail::finished_batch made)
        : made_(std::make_shared<const detail::finished_batch>(std::move(made))) {}

    /// Rows; fewer than were asked for where a filter left some out, or at the end of an epoch.
    [[nodiscard]] std::size_t rows() const noexcept { return made_->samples.size(); }
    [[nodiscard]] std::uint64_t epoch() const noexcept { return made_->wanted.epoch; }
    /// The sample that each row was made of.
    [[nodiscard]] held_span<std::uint64_t> samples() const noexcept {
        return {made_->samples, made_};
    }
    /// Values of field I of all rows: [rows, its dims], without gaps.
    template <std::size_t I>
    [[nodiscard]] auto column() const noexcept {
        using number = typename detail::number_of_field<field_type<Row, I>>::type;
        if (!made_->memory) return held_span<number>();
        const auto& cell = made_->memory->layout().columns[I];
        return held_span<number>({reinterpret_cast<const number*>(made_->memory->column(I)),
                                  rows() * (cell.size() / cell.width)},
                                 made_);
    }
    /// The dims of field I: {3, 224, 224}.
    [[nodiscard]] std::vector<std::int64_t> dims(std::size_t field) const {
        if (!made_->memory) return {};
        const auto& cell = made_->memory->layout().columns[field];
        return {cell.dims.begin(), cell.dims.begin() + cell.rank};
    }
    /// Rows of this batch that could not be made and were left out.
    [[nodiscard]] held_span<detail::bad_row> bad() const noexcept { return {made_->bad, made_}; }

private:
    std::shared_ptr<const detail::finished_batch> made_;
};

/// Batches of a pipeline, one rank's part of each. Used by one thread at a time.
template <class Pipeline>
class loader {
public:
    ///   plan  with batch(n): samples of a global batch, over all ranks
    ///   errors  usage: no samples, no batch(n), or fewer samples than a batch that has to be full;
    ///           invalid_argument; exhausted: threads cannot be started
    explicit loader(Pipeline plan, loader_options how = {})
        : deal_{.global_batch = plan.global_batch,
                .epochs = how.epochs,
                .rank = how.rank,
                .world_size = how.world_size,
                .drop_last = how.drop_last} {
        auto program = std::make_shared<detail::typed_program<Pipeline>>(std::move(plan));
        deal_.size = program->size();
        if (deal_.global_batch == 0)
            throw error(errc::usage, "a loader does not know how large its batches are")
                .with_hint("end the pipeline with | data::batch(n)");
        if (deal_.drop_last && deal_.size > 0 && deal_.size < deal_.global_batch)
            throw error(errc::usage, "all samples are left out: " + std::to_string(deal_.size) +
                                         " of them do not fill a batch of " +
                                         std::to_string(deal_.global_batch))
                .with_hint("take smaller batches, or give no drop_last");
        core_ = std::make_unique<detail::loader_core>(std::move(program), how);
        place_ = {.fingerprint = core_->fingerprint(), .seed = how.seed};
    }

    /// The next batch; goes on to the next epoch by itself. Nothing after the last one. Blocks.
    ///   errors  of rows that could not be made (options.bad_rows); exhausted; usage: in a child
    ///           that was forked. The loader then stands where it stood: next() tries this batch again
    [[nodiscard]] std::optional<row_batch<row_of<Pipeline>>> next() {
        auto samples = deal_.samples_at(place_.consumed);
        if (samples == 0) {
            place_.epoch += 1;
            place_.consumed = 0;
            samples = deal_.samples_at(0);
        }
        if (deal_.epochs > 0 && place_.epoch >= deal_.epochs) return std::nullopt;
        auto made = core_->next(detail::batch_request::of(deal_, place_.epoch, place_.consumed, 0));
        place_.consumed += samples;
        return row_batch<row_of<Pipeline>>(std::move(made));
    }

    /// Where it stands: at most 64 bytes, the same on all ranks.
    [[nodiscard]] std::string state() const { return place_.save(); }
    /// Goes on from a saved place, with any number of ranks. What is made ahead is kept where it
    /// stands there already.
    ///   errors  malformed; mismatch: it is of another pipeline or seed
    void restore(std::string_view saved) {
        place_ = place_.restored(saved, core_->program().describe());
    }

    [[nodiscard]] loader_stats stats() const { return core_->stats(); }
    /// Batches of an epoch.
    [[nodiscard]] std::uint64_t batches_per_epoch() const noexcept {
        const auto full = deal_.size / deal_.global_batch;
        return full + (!deal_.drop_last && deal_.size % deal_.global_batch != 0 ? 1 : 0);
    }

private:
    detail::dealing deal_;
    detail::loader_place place_;
    std::unique_ptr<detail::loader_core> core_;
};

} // namespace skein::data
