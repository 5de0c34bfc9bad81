// SPDX-License-Identifier: Apache-2.0
#pragma once
// The batches of one session in order: deals, makes them ahead, and goes back to the last committed
// place. Used by <skein/train/detail/session_core.ipp> alone.

#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/net/offload.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/collective.hpp>
#include <skein/train/detail/run_length.hpp>
#include <skein/train/detail/shard_tree.hpp>
#include <skein/train/input.hpp>
#include <skein/train/run_config.hpp>
#include <skein/train/sampler.hpp>
#include <skein/train/step_plan.hpp>
#include <skein/train/training_state.hpp>
#include <skein/wire/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::train::detail {

/// One micro-batch of this rank. Without samples it is left out of the step.
struct micro_batch {
    std::uint64_t samples = 0;
    std::vector<std::uint64_t> ids;    ///< of numbered data
    std::shared_ptr<const void> value; ///< null: not made yet, or done with
    std::exception_ptr failed;         ///< what the user's code threw instead
};

/// One global batch as this rank sees it.
struct drawn_batch {
    std::uint64_t epoch = 0, global_batch = 0;
    std::vector<micro_batch> micros;
    sampler_state place;      ///< behind it
    std::string stream;       ///< the stream's state behind it
    std::uint64_t asked = 0;  ///< samples that were wanted
    std::uint64_t units = 0;  ///< of run_progress, behind it
    std::uint64_t within = 0; ///< likewise, of a stream
    bool ends_epoch = false;  ///< of a stream

    [[nodiscard]] std::size_t with_samples() const {
        return static_cast<std::size_t>(
            std::ranges::count_if(micros, [](const micro_batch& m) { return m.samples > 0; }));
    }
};

class feeder {
public:
    feeder(const context& ctx, const run_config& config, input_source& source)
        : ctx_(ctx), config_(config), source_(source), rank_(ctx.rank()),
          world_size_(ctx.world_size()), plan_(plan_of(config)) {
        if (!source_.is_stream()) {
            order_.emplace(order_options(), world_size_);
            ahead_ = order_;
            total_ = total_steps(config, source_.size());
        } else {
            if (config.last == last_batch::carry)
                throw error(errc::usage, "a stream cannot carry samples over into its next epoch")
                    .with_hint("choose last_batch::drop or last_batch::shorten");
            if (config.epochs == 0)
                total_ = static_cast<std::uint64_t>(config.max_steps);
            else if (source_.size() > 0)
                total_ = total_steps(config, source_.size());
            state_ = source_.state();
        }
        length_.emplace(config, source_.size(), total_);
        depth_ = source_.reads_ahead() ? 0 : static_cast<std::size_t>(config.prefetch_batches);
    }
    feeder(const feeder&) = delete;
    feeder& operator=(const feeder&) = delete;
    ~feeder() { drop_ahead(); }

    /// Steps count by what they are worth beside one of the first batch, from the first one on.
    ///   gain    of a step of so many times the first batch; asked when it is committed, and for how
    ///           many are left
    ///   errors  not_supported: a stream
    void go_by_gain(std::function<double(double scale)> gain) {
        if (!order_)
            throw error(errc::not_supported,
                        "not supported: a rule that measures what a step is worth, with a stream")
                .with_hint("use data with size() and batch(ids)");
        gain_ = std::move(gain);
        is_other_batch_ = true;
        length_->go_by_worth();
    }
    /// Steps of the first batch that training has come to, after so many finished ones.
    [[nodiscard]] double progress_steps(std::uint64_t step) const noexcept {
        return gain_ ? static_cast<double>(units_) / static_cast<double>(first_batch())
                     : static_cast<double>(schedule_step(step));
    }

    /// Steps of the run; 0: as many as the stream gives.
    [[nodiscard]] std::uint64_t total() const noexcept { return total_; }
    /// Where the schedule of the rate stands after so many finished steps.
    [[nodiscard]] std::uint64_t schedule_step(std::uint64_t step) const noexcept {
        return is_other_batch_ ? length_->first_steps(progress(), batch_size()) : step;
    }
    /// Passes over the data that are finished.
    [[nodiscard]] std::uint64_t epochs_done() const noexcept {
        return length_->epochs_done(progress(), batch_size());
    }

    /// From the step after so many finished ones on batches are dealt by this plan; what was made
    /// ahead by another one is dropped. True when that changes which batches come.
    bool follow(const step_plan& plan, std::uint64_t step) {
        const bool same =
            plan.global_batch == plan_.global_batch && plan.micro_batches == plan_.micro_batches;
        if (plan.global_batch != plan_.global_batch && !is_other_batch_) {
            is_other_batch_ = true;
            units_ = step * first_batch();
        }
        plan_ = plan;
        if (same) return false;
        rewind();
        count_steps(step);
        return true;
    }
    /// Samples since the beginning, once the batch has changed; for checkpoints.
    [[nodiscard]] std::optional<std::uint64_t> units() const {
        return is_other_batch_ ? std::optional(units_) : std::nullopt;
    }
    /// After the place in the data was restored: goes on by this plan.
    ///   units  what units() said; nothing: the batch has never changed
    void restore_plan(const step_plan& plan, std::optional<std::uint64_t> units,
                      std::uint64_t step) {
        plan_ = plan;
        is_other_batch_ = units.has_value() || gain_;
        units_ = units.value_or(gain_ ? step * first_batch() : 0);
        counted_ = step;
        rewind();
        if (is_other_batch_) count_steps(step);
    }

    /// Null with a stream.
    [[nodiscard]] sampler* order() noexcept { return order_ ? &*order_ : nullptr; }

    /// The batch of the step after so many finished ones; nothing when the epochs are over.
    /// Collective with a stream.
    [[nodiscard]] std::optional<drawn_batch> next(std::uint64_t step) {
        return order_ ? next_by_number(step) : next_of_stream(step);
    }

    /// Of a batch that next() gave: makes it, if nobody has. Throws what the user's code threw.
    [[nodiscard]] const void* batch_of(micro_batch& micro) {
        if (micro.failed) std::rethrow_exception(std::exchange(micro.failed, nullptr));
        if (!micro.value) {
            watched([&] { micro.value = source_.batch(micro.ids); });
            watched_ = true;
        }
        return micro.value.get();
    }

    /// Starts what may be made ahead of the step after so many finished ones.
    void look_ahead(std::uint64_t step) {
        if (depth_ == 0 || !watched_ || begins_anew_) return;
        while (ahead_of_.size() < depth_ && (total_ == 0 || step + 1 + ahead_of_.size() < total_)) {
            auto job = std::make_unique<pending>();
            if (order_) job->batch = deal();
            job->epoch = epoch_;
            job->step = step + 1 + ahead_of_.size();
            auto& now = *job;
            now.end = now.done.get_future();
            if (!worker_) worker_.emplace(1);
            worker_->submit([this, &now] {
                make_ahead(now);
                now.done.set_value();
            });
            ahead_of_.push_back(std::move(job));
        }
    }
    /// Waits until the data is left alone.
    void quiet() {
        for (auto& job : ahead_of_) job->end.wait();
    }

    /// Nothing of its epoch is left behind this batch.
    [[nodiscard]] bool ends_epoch(const drawn_batch& taken) const {
        if (!order_) return taken.ends_epoch;
        const auto& at = taken.place;
        const auto left = order_->options().samples - at.cursor;
        const bool spent = config_.last == last_batch::drop ? left < batch_size() : left == 0;
        return spent || at.epoch != taken.epoch;
    }

    /// May be called again for the same batch.
    ///   step  finished ones, this one included
    void commit(const drawn_batch& taken, std::uint64_t step) {
        if (gain_) {
            if (std::exchange(counted_, step) != step) units_ += worth_of(taken);
        } else {
            units_ = taken.units;
        }
        if (order_) {
            order_->restore(taken.place);
            if (gain_) count_steps(step);
            return;
        }
        state_ = taken.stream;
        within_ = taken.within;
        committed_epoch_ = taken.epoch + (taken.ends_epoch ? 1 : 0);
        if (is_other_batch_ && source_.size() == 0) count_steps(step); // short ones were not known
    }

    /// The next batch is again the one after the last committed.
    void rewind() {
        drop_ahead();
        if (order_) {
            ahead_->restore(order_->state());
            ahead_units_ = units_;
        } else {
            source_.restore(state_);
            epoch_ = committed_epoch_;
            begins_anew_ = false;
        }
    }

    /// Shares are those of this rank, until rebind().
    void deal_as(int rank, int world_size) {
        rank_ = rank;
        world_size_ = world_size;
        rewind();
    }

    /// The world is another one: from the committed place on its ranks get their shares. Collective
    /// with a stream.
    void rebind() {
        if (order_)
            sampler::check(order_options(), ctx_.world_size()).value();
        else
            require_places();
        rank_ = ctx_.rank();
        world_size_ = ctx_.world_size();
        rewind();
    }

    /// For the checkpoint of a stream; collective.
    [[nodiscard]] json saved_stream() const {
        return stream_of(gather_bytes(ctx_, as_bytes(std::string_view(state_))));
    }
    /// The same of a stream whose state all ranks have alike.
    [[nodiscard]] json own_stream() const { return stream_of({to_buffer(as_bytes(state_))}); }
    [[nodiscard]] json stream_of(const std::vector<byte_buffer>& of_ranks) const {
        json states = json::array();
        for (const auto& state : of_ranks) states.push_back(to_hex(state));
        return {{"epoch", committed_epoch_},
                {"within", within_},
                {"data", source_.describe()},
                {"states", std::move(states)}};
    }
    void restore_stream(const json& saved, const std::string& where) {
        if (const auto data = saved.value("data", ""); !data.empty() && data != source_.describe())
            throw error(errc::mismatch, fmt::format("the checkpoint is of other data: {}, now {}",
                                                    data, source_.describe()))
                .with_where(where)
                .with_hint("go on with the data that the run was started with, or start anew");
        const auto& states = saved.at("states");
        const auto mine = static_cast<std::size_t>(ctx_.rank());
        bool alike = true;
        for (const auto& s : states) alike = alike && s == states[0];
        if (states.empty() || (!alike && states.size() != std::size_t(ctx_.world_size())))
            throw error(errc::mismatch,
                        fmt::format("the streams of {} ranks were saved, now there are {}",
                                    states.size(), ctx_.world_size()))
                .with_where(where)
                .with_hint("resume with as many workers as before, or save one state for all: the "
                           "place in the whole stream");
        const auto text = states[alike ? 0 : mine].get<std::string>();
        byte_buffer bytes(text.size() / 2);
        if (!from_hex(text, bytes))
            throw error(errc::malformed, "the state of a stream is no hexadecimal text")
                .with_where(where);
        state_ = std::string(as_text(bytes));
        committed_epoch_ = json_uint(saved, "epoch").value();
        within_ = saved.value("within", std::uint64_t{0});
        fresh_ = false;
        rewind();
    }

private:
    /// Made on the worker.
    struct pending {
        drawn_batch batch;
        std::uint64_t epoch = 0, step = 0;
        std::promise<void> done;
        std::future<void> end;
    };

    [[nodiscard]] sampler_options order_options() const {
        return {.samples = source_.size(),
                .batch = batch_size(),
                .seed = config_.seed,
                .last = config_.last};
    }

    /// Every rank reads on where it was, or all are at one place of the whole stream.
    void require_places() const {
        const bool same = rank_ == ctx_.rank() && world_size_ == ctx_.world_size();
        const auto all = gather_bytes(ctx_, as_bytes((same ? "same " : "moved ") + state_));
        bool alike = true, moved = false;
        for (const auto& each : all) {
            const auto text = as_text(each), first = as_text(all[0]);
            alike = alike && text.substr(text.find(' ')) == first.substr(first.find(' '));
            moved = moved || !text.starts_with("same ");
        }
        if (alike || !moved) return;
        throw error(errc::not_supported,
                    fmt::format("not supported: the streams of {} ranks go on with {}", world_size_,
                                ctx_.world_size()))
            .with_hint("give streams one state for all: the place in the whole stream");
    }

    [[nodiscard]] int parts() const noexcept { return static_cast<int>(plan_.micro_batches); }
    [[nodiscard]] std::uint64_t batch_size() const noexcept {
        return static_cast<std::uint64_t>(plan_.global_batch);
    }
    [[nodiscard]] run_progress progress() const noexcept {
        if (order_) return {units_, order_->state().epoch, order_->state().cursor};
        return {units_, committed_epoch_, within_};
    }
    [[nodiscard]] std::uint64_t first_batch() const noexcept {
        return static_cast<std::uint64_t>(config_.global_batch);
    }
    /// In whole samples of the first batch, as lengths are: at least one.
    [[nodiscard]] std::uint64_t worth_of(std::uint64_t samples) const {
        const auto first = static_cast<double>(first_batch());
        const double scale = static_cast<double>(samples) / first;
        const double gain = scale > 1 ? std::clamp(gain_(scale), 1.0, scale) : scale;
        return static_cast<std::uint64_t>(std::max(1.0, std::round(gain * first)));
    }
    [[nodiscard]] std::uint64_t worth_of(const drawn_batch& taken) const {
        return worth_of(length_->counted(taken.global_batch, taken.asked));
    }
    void count_steps(std::uint64_t step) {
        if (total_ == 0) return;
        const auto worth = gain_ ? worth_of(batch_size()) : 1;
        total_ = step + length_->steps_left(progress(), batch_size(), worth);
    }

    /// The next places of the order, cut into micro-batches.
    [[nodiscard]] drawn_batch deal() {
        const auto& from = ahead_->state();
        const auto asked =
            is_other_batch_ ? length_->most({ahead_units_, from.epoch, from.cursor}, batch_size())
                            : batch_size();
        ahead_->deal_by(asked);
        const int shards = config_.scaling.logical_shards;
        auto slice = shards > 0 ? ahead_->next(0, 1) : ahead_->next(rank_, world_size_);
        drawn_batch out;
        out.epoch = slice.epoch;
        out.global_batch = slice.global_batch;
        out.asked = asked;
        run_progress behind{.units = ahead_units_};
        length_->take(behind, out.global_batch, asked);
        out.units = ahead_units_ = behind.units;
        const auto own =
            shards > 0 ? shards_of(shards, rank_, world_size_) : shard_range{0, parts()};
        for (int part = own.first; part < own.last; ++part) {
            const auto [first, last] =
                rank_range(slice.ids.size(), part, shards > 0 ? shards : parts());
            micro_batch micro;
            micro.samples = last - first;
            micro.ids.assign(slice.ids.begin() + static_cast<std::ptrdiff_t>(first),
                             slice.ids.begin() + static_cast<std::ptrdiff_t>(last));
            out.micros.push_back(std::move(micro));
        }
        out.place = ahead_->state();
        return out;
    }

    [[nodiscard]] std::optional<drawn_batch> next_by_number(std::uint64_t step) {
        if (step >= total_) return std::nullopt;
        auto job = take();
        return job ? std::move(job->batch) : deal();
    }

    /// What was made ahead, when it is there or comes.
    [[nodiscard]] std::unique_ptr<pending> take() {
        if (ahead_of_.empty()) return nullptr;
        ahead_of_.front()->end.wait();
        auto job = std::move(ahead_of_.front());
        ahead_of_.pop_front();
        return job;
    }

    void make_ahead(pending& job) noexcept {
        if (!order_) return ask(job.batch, job.epoch, std::nullopt);
        for (auto& micro : job.batch.micros) {
            if (micro.ids.empty()) continue;
            try {
                micro.value = source_.batch(micro.ids);
            } catch (...) {
                micro.failed = std::current_exception();
            }
        }
    }

    /// This rank's share from the stream; an error becomes that of the micro-batch it belongs to.
    ///   step  seeds the generator, where that is allowed
    void ask(drawn_batch& out, std::uint64_t epoch, std::optional<std::uint64_t> step) noexcept {
        const auto [first, last] = rank_range(batch_size(), rank_, world_size_);
        out.epoch = epoch;
        out.asked = batch_size();
        for (int part = 0; part < parts(); ++part) {
            const auto [from, to] = rank_range(last - first, part, parts());
            const stream_share share{.rank = rank_,
                                     .world_size = world_size_,
                                     .samples = to - from,
                                     .begin = first + from,
                                     .global_batch = batch_size(),
                                     .is_last = part + 1 == parts(),
                                     .parts = parts(),
                                     .epoch = epoch};
            micro_batch micro;
            try {
                if (step) seed_step(~config_.seed, *step, rank_ * parts() + part);
                decltype(source_.next(share)) got;
                const auto get = [&] { got = source_.next(share); };
                step ? watched(get) : get();
                out.stream = source_.state();
                micro.samples = got.value ? got.samples : 0;
                out.ends_epoch = !got.value;
                micro.value = std::move(got.value);
            } catch (...) {
                micro.failed = std::current_exception();
                micro.samples = 1; // it shows when it is asked for
            }
            out.micros.push_back(std::move(micro));
            if (out.ends_epoch || out.micros.back().failed) break;
        }
    }

    /// Ranks may end at different places: what they do is agreed before anybody computes.
    [[nodiscard]] std::optional<drawn_batch> next_of_stream(std::uint64_t step) {
        if (total_ > 0 && step >= total_) return std::nullopt;
        if (std::exchange(begins_anew_, false)) restart();
        for (;;) {
            if (config_.epochs > 0 && epoch_ >= static_cast<std::uint64_t>(config_.epochs))
                return std::nullopt;
            auto batch = one_share(step);
            double seen[] = {0.0, batch.ends_epoch ? 1.0 : 0.0};
            for (const auto& micro : batch.micros) seen[0] += static_cast<double>(micro.samples);
            all_reduce(ctx_, seen, dist::reduce_op::sum);
            batch.global_batch = static_cast<std::uint64_t>(seen[0]);
            batch.ends_epoch = seen[1] > 0;
            const bool whole = !batch.ends_epoch || config_.last == last_batch::shorten;
            if (whole && batch.global_batch > 0) {
                run_progress behind{.units = units_};
                length_->take(behind, batch.global_batch, batch.asked);
                batch.units = behind.units;
                batch.within = batch.ends_epoch ? 0 : within_ + batch.global_batch;
                fresh_ = false;
                if (batch.ends_epoch) {
                    epoch_ += 1;
                    begins_anew_ = true;
                }
                return batch;
            }
            if (!batch.ends_epoch) continue; // filters left nothing of it: no step
            if (fresh_)
                throw error(errc::usage,
                            fmt::format("epoch {} of the stream does not fill one global batch of "
                                        "{} samples",
                                        epoch_, batch_size()))
                    .with_hint("use a smaller batch, last_batch::shorten, more data or a filter "
                               "that keeps more");
            epoch_ += 1;
            fresh_ = true;
            restart();
        }
    }

    /// From the committed place, so that it does not matter how much was made ahead.
    void restart() {
        drop_ahead();
        source_.restore(state_);
    }

    [[nodiscard]] drawn_batch one_share(std::uint64_t step) {
        if (auto job = take()) return std::move(job->batch);
        drawn_batch batch;
        ask(batch, epoch_, step);
        watched_ = true;
        return batch;
    }

    /// Runs the user's code here. The first time it is looked whether it draws from torch's
    /// generator: on another thread it would take the model's numbers.
    template <class Call>
    void watched(Call call) {
        if (depth_ == 0 || watched_) return call();
        const auto before = generator_state();
        call();
        if (!at::equal(before, generator_state())) depth_ = 0;
    }

    [[nodiscard]] static at::Tensor generator_state() {
        auto generator = at::detail::getDefaultCPUGenerator();
        const std::lock_guard lock(generator.mutex());
        return generator.get_state();
    }

    void drop_ahead() {
        quiet();
        ahead_of_.clear();
    }

    const context& ctx_;
    const run_config& config_;
    input_source& source_;
    int rank_, world_size_;                // as the shares are dealt, on the worker too
    std::optional<sampler> order_, ahead_; // committed, and behind all that was dealt
    step_plan plan_;
    std::optional<run_length> length_;
    bool is_other_batch_ = false; // than the run began with, at some time; or steps go by worth
    std::function<double(double)> gain_; // of a step by its scale; none: steps go by samples
    std::uint64_t counted_ = 0;          // the step whose worth is in units_
    std::uint64_t units_ = 0, ahead_units_ = 0; // of run_progress: committed, and dealt
    std::uint64_t within_ = 0;                  // samples of the stream's epoch, committed
    std::uint64_t total_ = 0;
    std::size_t depth_ = 0;
    bool watched_ = false; // the user's code has run once

    std::string state_;                             // of the stream, committed
    std::uint64_t committed_epoch_ = 0, epoch_ = 0; // of the stream; the second: of the next batch
    bool begins_anew_ = false;                      // the stream, before it is asked again
    bool fresh_ = true;                             // nothing was taken in this epoch

    std::deque<std::unique_ptr<pending>> ahead_of_;
    std::optional<net::offload_pool> worker_; // last: it ends before what it works on
};

} // namespace skein::train::detail
