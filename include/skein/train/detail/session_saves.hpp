// SPDX-License-Identifier: Apache-2.0
#pragma once
// The saves of a run: made on the training's thread, or written by another one from a copy while
// training goes on. Used by <skein/train/detail/session_between.ipp> alone.
//
//     run_saves saves(ctx, config);
//     saves.open(dir, options, state);                   // all ranks; again in another world
//     if (auto done = saves.settle()) tell(*done);       // the one before: it is waited for
//     if (auto done = saves.save(state, true)) tell(*done);  // nothing: it is staged, and in flight
//
// A save is staged when its copy is made: training may go on. It is durable when the checkpointer
// has ended on all ranks, which each hears by the row of a step. One is in flight. While it is, its
// thread alone submits to ctx.control(): whoever wants that, or takes the world away, waits for the
// save or gives it up, which is done here and nowhere else. What lies on a device is saved by a
// copy in any case: from open() on there is room for it.
//
// States: closed -> open -> (in flight -> ended -> open). A save that failed or was given up is
// owed: the ranks hear it by the row, and make one of that step.

#include <skein/core/available_cores.hpp>
#include <skein/core/error.hpp>
#include <skein/core/log.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/dist/comm_thread.hpp>
#include <skein/report/progress.hpp>
#include <skein/train/checkpoint.hpp>
#include <skein/train/checkpoint_writer.hpp>
#include <skein/train/collective.hpp>
#include <skein/train/context.hpp>
#include <skein/train/elastic_place.hpp>
#include <skein/train/memory_plan.hpp>
#include <skein/train/run_config.hpp>
#include <skein/train/snapshot.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::train::detail {

/// How the save in flight stands; of several ranks the largest counts.
enum class save_word : std::uint8_t {
    none,   ///< none is in flight, or it has ended well
    writes, ///< it is being written
    owed,   ///< it was given up, and another one is to be made
    failed, ///< it has failed
};

/// Why saves hold training up, where they might not.
enum class save_obstacle : std::uint8_t { none, no_core, no_memory, no_control };

/// Compute threads, batches made ahead, the communicator, and a thread that writes: for each rank of
/// this host.
[[nodiscard]] inline bool has_spare_core(int cores, int ranks, const run_config& config,
                                         bool is_alone) {
    const int threads = std::max(config.scaling.threads, 1) +
                        (config.prefetch_batches > 0 ? 1 : 0) + (is_alone ? 0 : 1);
    return cores >= ranks * (threads + 1);
}

/// What the ranks of this host may take further.
[[nodiscard]] inline double free_memory(const run_config& config, int ranks) {
    const auto limit = find_memory_limit(static_cast<double>(config.memory_limit));
    if (limit.source.starts_with("MemAvailable")) return limit.bytes;
    return limit.bytes - proportional_set_size() * ranks;
}

class run_saves {
public:
    ///   where  a disk of its own, which outlives it; null: the files of this host
    run_saves(const context& ctx, const run_config& config, disk* where = nullptr)
        : ctx_(ctx), config_(config), disk_(where),
          leaving_(ctx.before_rebind([this] { writer_.wait(); })) {}
    /// Waits for the save in flight.
    ~run_saves() {
        writer_.wait();
        tell_warnings();
    }
    run_saves(const run_saves&) = delete;
    run_saves& operator=(const run_saves&) = delete;

    /// Collective; settle() or end_with_world() comes before it. Decides how saves are made.
    ///   like    gives what a save of this rank has
    ///   errors  exhausted, on all ranks: saves need a copy, and a rank has no memory for it
    template <class State>
    void open(std::string dir, checkpoint_options options, State like) {
        is_given_up_ = false;
        options.warn = [this](const std::string& line) { warn(line); };
        options.is_given_up = [this] { return is_given_up_.load(std::memory_order_relaxed); };
        saver_.emplace(disk_ != nullptr ? *disk_ : files_, std::move(dir), std::move(options),
                       make_checkpoint_world(ctx_));
        is_beside_ = false;
        notice_.clear();
        const auto first = like();
        bytes_ = snapshot::bytes_of(first, ctx_.rank(), ctx_.world_size());
        must_copy_ = snapshot::must_copy(first);
        const bool asked = config_.checkpoint.asynchronous.value_or(true);
        if (!asked && !must_copy_) return;
        // All look before any takes memory: those of one host would count what another has taken.
        std::array<double, 2> worst{
            static_cast<double>(asked ? obstacle_here() : save_obstacle::no_core),
            must_copy_ && !has_room() ? 1.0 : 0.0};
        all_reduce(ctx_, worst, dist::reduce_op::max);
        auto obstacle = static_cast<save_obstacle>(worst[0]);
        double lacks = worst[1];
        if (lacks == 0 && (must_copy_ || obstacle == save_obstacle::none)) {
            lacks = takes_room() ? 0 : 1;
            all_reduce(ctx_, std::span(&lacks, 1), dist::reduce_op::max);
        }
        if (lacks > 0 && must_copy_) throw no_memory_for_copies();
        if (lacks > 0) obstacle = save_obstacle::no_memory;
        is_beside_ = obstacle == save_obstacle::none;
        if (!is_beside_ && !must_copy_) copy_.release();
        if (asked) notice_ = text_of(obstacle);
    }
    [[nodiscard]] bool is_open() const noexcept { return saver_.has_value(); }
    /// Saves may be written beside training.
    [[nodiscard]] bool is_beside() const noexcept { return is_beside_; }
    /// How saves are made, for a person; empty where nobody asked and nothing is gained, and where
    /// a core is missing for saves that are short.
    [[nodiscard]] const std::string& notice() const noexcept { return notice_; }

    [[nodiscard]] std::optional<loaded_checkpoint> load_latest() { return saver_->load_latest(); }

    /// Collective. Nothing is in flight.
    ///   beside  it may be written while training goes on
    ///   result  the durable checkpoint; nothing when it is in flight
    std::optional<saved_checkpoint> save(const checkpoint_state& state, bool beside) {
        is_owed_ = false;
        std::optional<saved_checkpoint> saved;
        const bool in_flight = beside && is_beside_, copied = in_flight || must_copy_;
        if (copied) copy_.take(state, ctx_.rank(), ctx_.world_size());
        if (in_flight)
            writer_.begin([this] { return saver_->save(copy_.state()); });
        else
            saved = saver_->save(copied ? copy_.state() : state);
        is_due_ = false;
        return saved;
    }

    /// Waits for the save in flight.
    ///   result  what it came to; nothing when there was none
    ///   errors  what it failed with
    std::optional<saved_checkpoint> settle() {
        writer_.wait();
        return take();
    }
    /// The save that has ended and was not told yet, without waiting.
    ///   errors  what it failed with
    std::optional<saved_checkpoint> take() {
        if (!writer_.has_ended()) return std::nullopt;
        tell_warnings();
        auto made = writer_.take();
        is_owed_ = !made.has_value();
        return std::move(made).value();
    }
    /// The world is another one: what was in flight has ended or was given up.
    ///   result  the checkpoint, if it is durable
    std::optional<saved_checkpoint> end_with_world() {
        try {
            return settle();
        } catch (const error&) { // it is owed
            return std::nullopt;
        }
    }
    /// Some rank's save has failed: all ranks leave with the reason.
    [[noreturn]] void fail() {
        (void)settle();
        throw error(errc::aborted, "a checkpoint could not be saved on another rank");
    }

    /// How the save in flight stands on all ranks, by the row of the step that is committed.
    void hear(save_word all) noexcept {
        if (all == save_word::owed) is_due_ = true;
    }
    /// A save is to be made behind the step that is committed, as another one was given up.
    [[nodiscard]] bool is_due() const noexcept { return is_due_; }
    void set_due(bool is_due) noexcept { is_due_ = is_due; }

    /// How the save in flight stands on this rank.
    [[nodiscard]] save_word word() const {
        if (writer_.is_writing()) return save_word::writes;
        if (writer_.has_failed()) return save_word::failed;
        return is_owed_ ? save_word::owed : save_word::none;
    }

    /// Fails every exchange of the context. A save in flight may end first, as its ranks go on
    /// writing: training alone is over. It has the grace of a stop request.
    ///   hurries  others wait for this rank in another world: the save is given up
    void abort(const error& why, bool hurries) noexcept {
        if (writer_.is_writing() && !hurries) {
            if (ctx_.comm() != nullptr) ctx_.comm()->abort(why);
            (void)writer_.wait_for(std::min<duration>(config_.failure.stop_grace, longest_wait));
        }
        is_given_up_ = true;
        ctx_.abort(why);
        writer_.wait();
    }

private:
    static constexpr duration longest_wait = std::chrono::hours(1);
    /// Of a rank: what a disk takes a part of a second for. A save of less is not worth a line.
    static constexpr std::size_t felt_bytes = 64u << 20;

    /// Ranks of this host, at most.
    [[nodiscard]] int ranks_here() const {
        const auto* const place = ctx_.elastic();
        return place != nullptr ? place->job().most() : std::max(1, ctx_.local_size());
    }
    /// This host has memory for the copies of its ranks.
    [[nodiscard]] bool has_room() const {
        const auto more = bytes_ - std::min(bytes_, copy_.capacity());
        const int here = ranks_here();
        return more == 0 || static_cast<double>(more) * here <= free_memory(config_, here);
    }
    /// False: there was none for the copy.
    [[nodiscard]] bool takes_room() {
        try {
            copy_.reserve(bytes_);
        } catch (const error&) {
            return false;
        }
        return true;
    }
    /// Said before the first step: a run whose saves cannot be made would train for nothing.
    [[nodiscard]] error no_memory_for_copies() const {
        return error(errc::exhausted,
                     fmt::format("there is no memory of the host for a copy of {} per rank, "
                                 "through which saves of what is on a device go",
                                 report::human_bytes(static_cast<double>(bytes_))))
            .with_hint("train with fewer ranks on a host, or without checkpoints "
                       "(checkpoint.enabled = false)");
    }

    /// What stands against writing beside training on this rank.
    [[nodiscard]] save_obstacle obstacle_here() const {
        if (ctx_.world_size() > 1 && ctx_.control() == ctx_.comm())
            return save_obstacle::no_control;
        const bool is_alone = ctx_.world_size() == 1 && ctx_.elastic() == nullptr;
        if (!config_.checkpoint.asynchronous &&
            !has_spare_core(available_cores(), ranks_here(), config_, is_alone))
            return save_obstacle::no_core;
        return has_room() ? save_obstacle::none : save_obstacle::no_memory;
    }
    [[nodiscard]] std::string text_of(save_obstacle what) const {
        const auto copy = report::human_bytes(static_cast<double>(bytes_));
        switch (what) {
        case save_obstacle::none:
            return fmt::format("saves are written beside training, from a further copy of {} per "
                               "rank",
                               copy);
        case save_obstacle::no_memory:
            return fmt::format("saves hold training up: there is no memory for a copy of {} per "
                               "rank",
                               copy);
        case save_obstacle::no_control:
            return "saves hold training up: the ranks have one communicator, which trains";
        case save_obstacle::no_core:
            if (config_.checkpoint.every == 0 || bytes_ < felt_bytes) break;
            return fmt::format("saves hold training up, each for {} per rank: no core is free to "
                               "write them beside it (checkpoint.asynchronous = true does so all "
                               "the same, false ends this line)",
                               copy);
        }
        return {}; // as it was before anybody asked
    }

    /// On the writer's thread it waits for the training's.
    void warn(const std::string& line) {
        if (!writer_.is_writing()) return logging::warn("checkpoint", line);
        const std::lock_guard lock(mutex_);
        warnings_.push_back(line);
    }
    void tell_warnings() {
        const std::lock_guard lock(mutex_);
        for (const auto& line : warnings_) logging::warn("checkpoint", line);
        warnings_.clear();
    }

    const context& ctx_;
    const run_config& config_;
    posix_disk files_{link_policy::refuse};
    disk* const disk_;
    std::optional<checkpointer> saver_;
    snapshot copy_;
    std::size_t bytes_ = 0;  // of a copy
    bool must_copy_ = false; // the host cannot read what is saved: each save has a copy
    bool is_beside_ = false, is_owed_ = false, is_due_ = false;
    std::string notice_;
    std::atomic<bool> is_given_up_ = false;
    std::mutex mutex_;
    std::vector<std::string> warnings_;
    checkpoint_writer writer_;      // after all that a save works on
    std::shared_ptr<void> leaving_; // first to go
};

} // namespace skein::train::detail
