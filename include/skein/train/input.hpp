// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where batches come from: samples by number, or a stream that deals its own.
//
// Data that can be asked for any sample by its number is a data_source: the trainer shuffles, deals
// to the ranks and keeps the place, exactly for any number of workers. What can only be read on
// (files too large for an index, a service, generated text) is a batch_stream: each rank has its
// own and asks it for its share of every step.
//
//     struct lines {
//         // nothing: the epoch ends
//         std::optional<text_batch> next(const skein::train::stream_share& share);
//         std::string state() const;                     // where it stands, for checkpoints
//         void restore(std::string_view state);          // goes on from there
//     };
//
// With run_config::prefetch_batches > 0 both are called on a thread of their own, one call at a
// time, while the step before computes; never during an evaluation. They must not draw from torch's
// default generator there: its numbers belong to the model. The trainer looks whether the first
// step's batches do; if so it makes them where it computes, as with prefetch_batches = 0, so that
// runs repeat.

#include <skein/core/error.hpp>
#include <skein/train/detail/sample_sum.hpp>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace skein::train {

/// Samples by number. Laws: batch(ids) depends on ids alone, on every rank alike; every id is below
/// size(). Ranks compare some samples before the first step (errc::mismatch), unless two calls in a
/// row give different ones.
/// A source may leave out samples that cannot be made, if it says how many a batch has:
/// samples(batch). An evaluation counts those; training refuses a batch that lacks some.
template <class D>
concept data_source = requires(const D& data, std::span<const std::uint64_t> ids) {
    { data.size() } -> std::convertible_to<std::uint64_t>;
    data.batch(ids);
};

/// What one rank asks a stream for: one micro-batch.
struct stream_share {
    int rank = 0, world_size = 1;
    std::uint64_t samples = 0; ///< wanted; the last batch of an epoch may have fewer
    /// Where these samples begin in the global batch of the step, and how many that has.
    std::uint64_t begin = 0, global_batch = 0;
    bool is_last = true; ///< of the micro-batches that this rank asks for in this step
    int parts = 1;       ///< micro-batches that it asks for in this step
    std::uint64_t epoch =
        0; ///< a larger one than before: begin the stream anew, whatever is left of it
};

/// Batches in an order of the stream's own. Laws:
///  1. next() gives nothing at the end of share.epoch, and again when asked for that epoch once
///     more.
///  2. After restore(s) of s = state() the same calls give the same batches; it may be called at
///     any time.
///  3. A batch has share.samples samples, unless it says how many: a member `samples`, a number or a
///     function; or the stream does: samples(batch). Ranks share no sample: that is the stream's
///     own business. A batch of no samples is left out of its step; a step that has none on any
///     rank is no step.
/// A stream may have more, each looked for by name:
///   size()       samples of an epoch, if every one of them becomes a row, else 0; epochs then have
///                a length
///   describe()   what it is, in one line: compared between the ranks, and with the checkpoint that
///                a run goes on from
///   reads_ahead  true (static, bool): it makes batches ahead itself, so that nobody else need do
///                so; next() may then be called on the thread that computes
/// An epoch ends on all ranks with the first rank whose stream has ended: last_batch::shorten
/// trains on what the others were given for that step, last_batch::drop does not, last_batch::carry
/// is refused.
template <class S>
concept batch_stream =
    requires(S& stream, const S& fixed, const stream_share& share, std::string_view saved) {
        { stream.next(share).has_value() } -> std::convertible_to<bool>;
        *stream.next(share);
        { fixed.state() } -> std::convertible_to<std::string>;
        stream.restore(saved);
    };

namespace detail {

template <class D>
struct batch_type {};
template <data_source D>
struct batch_type<D> {
    using type = std::remove_cvref_t<decltype(std::declval<const D&>().batch(
        std::span<const std::uint64_t>{}))>;
};
template <batch_stream S>
    requires(!data_source<S>)
struct batch_type<S> {
    using type = std::remove_cvref_t<decltype(*std::declval<S&>().next(stream_share{}))>;
};

/// Samples of a stream's batch.
template <class Batch>
std::uint64_t samples_of(const Batch& batch, std::uint64_t asked) {
    if constexpr (requires {
                      { batch.samples() } -> std::convertible_to<std::uint64_t>;
                  })
        return static_cast<std::uint64_t>(batch.samples());
    else if constexpr (requires {
                           { batch.samples } -> std::convertible_to<std::uint64_t>;
                       })
        return static_cast<std::uint64_t>(batch.samples);
    else
        return asked;
}

/// Samples of a batch of numbered data.
template <data_source D, class Batch>
std::uint64_t samples_made(const D& data, const Batch& batch, std::uint64_t asked) {
    if constexpr (requires {
                      { data.samples(batch) } -> std::convertible_to<std::uint64_t>;
                  })
        return static_cast<std::uint64_t>(data.samples(batch));
    else
        return asked;
}
/// Of numbered data that is trained on: every sample has its place in a step.
inline void require_samples(std::uint64_t made, std::uint64_t asked) {
    if (made == asked) return;
    throw error(errc::not_supported, "not supported: " + std::to_string(made) + " of " +
                                         std::to_string(asked) +
                                         " samples of numbered data that is trained on could be "
                                         "made")
        .with_hint("train on a stream, as train::feed() is, which may leave out bad samples");
}

/// A stream's batch, whose type the loop does not know.
struct any_batch {
    std::shared_ptr<const void> value; ///< null: the stream has ended
    std::uint64_t samples = 0;
};

/// A checksum of a batch; nothing: there is nothing in it that has one.
using batch_sum = std::function<std::optional<std::uint64_t>(std::span<const std::uint64_t>)>;

/// Samples by number, as far as ranks compare them.
struct sample_range {
    std::uint64_t samples = 0;
    batch_sum sum{};
};

/// The user's data behind virtual calls; refers to it.
class input_source {
public:
    virtual ~input_source() = default;
    [[nodiscard]] virtual bool is_stream() const { return false; }
    [[nodiscard]] virtual bool reads_ahead() const { return false; }
    /// Of a stream, if it says what it is.
    [[nodiscard]] virtual std::string describe() const { return {}; }
    [[nodiscard]] virtual std::uint64_t size() const { return 0; }
    [[nodiscard]] virtual std::shared_ptr<const void> batch(std::span<const std::uint64_t>) {
        return {};
    }
    /// A checksum of such a batch; nothing: it has none, or the data is a stream.
    [[nodiscard]] virtual std::optional<std::uint64_t> sum_of(std::span<const std::uint64_t>) {
        return std::nullopt;
    }
    [[nodiscard]] virtual any_batch next(const stream_share&) { return {}; }
    [[nodiscard]] virtual std::string state() const { return {}; }
    virtual void restore(std::string_view) {}
};

template <data_source D>
class numbered_input final : public input_source {
public:
    explicit numbered_input(const D& data) : data_(data) {}
    std::uint64_t size() const override { return static_cast<std::uint64_t>(data_.size()); }
    std::shared_ptr<const void> batch(std::span<const std::uint64_t> ids) override {
        auto batch = std::make_shared<const typename batch_type<D>::type>(data_.batch(ids));
        require_samples(samples_made(data_, *batch, ids.size()), ids.size());
        return batch;
    }
    std::optional<std::uint64_t> sum_of(std::span<const std::uint64_t> ids) override {
        return sample_sum::of(data_.batch(ids));
    }

private:
    const D& data_;
};

template <batch_stream S>
class stream_input final : public input_source {
public:
    explicit stream_input(S& stream) : stream_(stream) {}
    bool is_stream() const override { return true; }
    bool reads_ahead() const override {
        if constexpr (requires { requires S::reads_ahead; })
            return true;
        else
            return false;
    }
    std::string describe() const override {
        if constexpr (requires {
                          { std::as_const(stream_).describe() } -> std::convertible_to<std::string>;
                      })
            return std::as_const(stream_).describe();
        else
            return {};
    }
    std::uint64_t size() const override {
        if constexpr (requires {
                          { std::as_const(stream_).size() } -> std::convertible_to<std::uint64_t>;
                      })
            return static_cast<std::uint64_t>(std::as_const(stream_).size());
        else
            return 0;
    }
    any_batch next(const stream_share& share) override {
        using type = typename batch_type<S>::type;
        auto got = stream_.next(share);
        if (!got.has_value()) return {};
        std::uint64_t samples = 0;
        if constexpr (requires {
                          { stream_.samples(*got) } -> std::convertible_to<std::uint64_t>;
                      })
            samples = static_cast<std::uint64_t>(stream_.samples(*got));
        else
            samples = samples_of(*got, share.samples);
        return {std::make_shared<const type>(*std::move(got)), samples};
    }
    std::string state() const override { return std::as_const(stream_).state(); }
    void restore(std::string_view saved) override { stream_.restore(saved); }

private:
    S& stream_;
};

/// What is both is asked by number.
template <class D>
[[nodiscard]] std::unique_ptr<input_source> make_input(D& data) {
    if constexpr (data_source<std::remove_const_t<D>>)
        return std::make_unique<numbered_input<std::remove_const_t<D>>>(data);
    else
        return std::make_unique<stream_input<D>>(data);
}

} // namespace detail

/// What can be trained on.
template <class D>
concept train_input = data_source<std::remove_cvref_t<D>> || batch_stream<std::remove_cvref_t<D>>;

/// The type of the batches that a data set or stream gives.
template <class D>
using batch_of = typename detail::batch_type<std::remove_cvref_t<D>>::type;

} // namespace skein::train
