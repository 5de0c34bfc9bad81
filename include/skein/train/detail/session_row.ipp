// SPDX-License-Identifier: Apache-2.0
#pragma once
// The one exchange at the end of what a step computes: its row, and what the ranks decide with it.
// Used by <skein/train/detail/session_core.ipp> alone.

#include <skein/core/error.hpp>
#include <skein/core/fnv.hpp>
#include <skein/dist/call_record.hpp>
#include <skein/report/metrics.hpp>
#include <skein/train/callbacks.hpp>
#include <skein/train/collective.hpp>
#include <skein/train/context.hpp>
#include <skein/train/detail/session_clock.ipp>
#include <skein/train/detail/session_saves.hpp>
#include <skein/train/detail/session_shards.ipp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::train::detail {

/// A hash over the calls of communicators that compare none, as numbers whose largest and least tell
/// whether all ranks have the same. Nothing where there are no such communicators.
SKEIN_INLINE void add_calls(const context& ctx, std::vector<double>& to) {
    const auto watched = ctx.watched_calls();
    if (watched.empty()) return;
    fnv1a all;
    for (const auto& record : watched) all.number(record->mark());
    for (const auto half : {all.value() >> 32, all.value() & 0xffffffffu}) {
        to.push_back(static_cast<double>(half));
        to.push_back(-static_cast<double>(half));
    }
}

/// The first call that was another one on some rank, by name. Collective. Nothing: all that is
/// kept is alike.
[[nodiscard]] SKEIN_INLINE std::optional<error> first_unlike(const context& ctx,
                                                             std::uint64_t step) {
    for (const auto& record : ctx.watched_calls()) {
        const auto mine = record->last();
        std::vector<std::vector<dist::detail::signature>> by_rank;
        for (const auto& theirs : gather_bytes(ctx, std::as_bytes(std::span(mine)))) {
            auto& calls = by_rank.emplace_back(theirs.size() / sizeof mine[0]);
            if (!calls.empty())
                std::memcpy(calls.data(), theirs.data(), calls.size() * sizeof mine[0]);
        }
        if (auto why = dist::unlike_calls(by_rank))
            return std::move(*why).with_where(
                fmt::format("before step {} is applied, over {}", step, record->name()));
    }
    return std::nullopt;
}

[[noreturn]] SKEIN_INLINE void calls_differ(const context& ctx, std::uint64_t step) {
    if (const auto why = first_unlike(ctx, step)) throw *why;
    throw error(errc::mismatch, fmt::format("ranks do not agree: before step {} they have called "
                                            "unlike collectives, which were too long ago to name",
                                            step))
        .with_hint("every rank must call the same collectives with the same counts and tags in the "
                   "same order");
}

/// A deadline may have passed because ranks called unlike things, some of which hang; the first whose
/// deadline it is ends the communicators of all. Then that is told, and thrown. They meet where rows
/// are exchanged; a rank that is elsewhere fails there.
template <class Tell>
void tell_unlike(const context& ctx, const error& why, std::uint64_t step, Tell tell) {
    const auto code = why.code();
    const bool may_be = code == errc::timeout || code == errc::peer_lost || code == errc::aborted;
    if (!may_be || ctx.world_size() == 1 || ctx.watched_calls().empty()) return;
    std::optional<error> named;
    try {
        named = first_unlike(ctx, step);
    } catch (const error&) { // it stays a deadline
    }
    if (!named) return;
    tell(*named);
    throw *named;
}

/// The row of the step, equal on all ranks. Nothing is changed by an exchange.
class row_exchange {
public:
    explicit row_exchange(const context& ctx) : ctx_(ctx) {}

    /// `now` gets the loss and the times of the slowest ranks.
    ///   own          the trainer's numbers, the loss first
    ///   reported     the user's, as this rank knows them
    ///   stop         0; 0.5: a callback wants it; 1, or the signal that asked for it
    ///   all_touched  every parameter had a gradient here
    ///   decided      a number of the decisions of this rank
    ///   shards       who has them by shard, in place of `reported`; or null
    ///   pauses       this rank wants a pause behind the step, for a change of the world
    ///   saves        how the save in flight stands here
    ///   parts        whose callbacks give the word of rank 0
    void exchange(report::metric_set own, const report::metric_set& reported, step_shards* shards,
                  double stop, bool all_touched, double decided, bool pauses, save_word saves,
                  session_parts& parts, step_info& now, step_clock& clock) {
        const auto& t = clock.time();
        std::vector<double> control{stop,
                                    all_touched ? 0.0 : 1.0,
                                    now.grad_norm,
                                    -now.grad_norm,
                                    t.data,
                                    t.forward,
                                    t.backward,
                                    t.exposed,
                                    t.optimizer,
                                    -clock.overlap(),
                                    decided,
                                    -decided,
                                    pauses ? 1.0 : 0.0,
                                    static_cast<double>(saves),
                                    t.early};
        const auto marks = control.size();
        add_calls(ctx_, control);
        parts.ask_word(ctx_.is_first(), word_);
        for (std::size_t i = 0; i < word_.size(); ++i)
            own.last(fmt::format("{}{}", word_prefix, i), word_[i]);
        values_.clear();
        clock.end_row(now);
        const double waited = clock.waiting([&] {
            values_ = shards != nullptr ? shards->merge(own, control)
                                        : names_.merge(ctx_, own, reported, control);
        });
        word_ = take_hidden(values_, word_prefix);
        now.word = word_;
        now.loss = values_[0].value;
        now.timing = {.data = control[4],
                      .forward = control[5],
                      .backward = control[6],
                      .early = control[14],
                      .exposed = control[7],
                      .optimizer = control[8],
                      .overlap = -control[9]};
        clock.begin_row(waited);
        stop_ = control[0];
        some_untouched_ = control[1] > 0.0;
        same_decisions_ = control[10] == -control[11];
        pauses_ = control[12] > 0.0;
        saves_ = static_cast<save_word>(control[13]);
        same_calls_ = true;
        for (auto i = marks; i < control.size(); i += 2)
            same_calls_ = same_calls_ && control[i] == -control[i + 1];
        most_ = control[2];
        least_ = -control[3];
    }

    [[nodiscard]] const std::vector<report::metric_value>& values() const noexcept {
        return values_;
    }
    [[nodiscard]] std::vector<report::metric_value>& values() noexcept { return values_; }
    /// What rank 0 has said, for all callbacks.
    [[nodiscard]] const std::vector<double>& word() const noexcept { return word_; }
    /// The gradient norms of all ranks: two numbers that are equal, or the ranks have come apart.
    [[nodiscard]] double least_norm() const noexcept { return least_; }
    [[nodiscard]] double most_norm() const noexcept { return most_; }
    /// All ranks have decided the same.
    [[nodiscard]] bool same_decisions() const noexcept { return same_decisions_; }
    /// All ranks have called the same, on communicators that do not compare their calls.
    [[nodiscard]] bool same_calls() const noexcept { return same_calls_; }
    [[nodiscard]] bool some_untouched() const noexcept { return some_untouched_; }
    /// All ranks pause behind this step.
    [[nodiscard]] bool pauses() const noexcept { return pauses_; }
    /// How the save in flight stands with the rank that is furthest from its end.
    [[nodiscard]] save_word saves() const noexcept { return saves_; }
    [[nodiscard]] bool stops() const noexcept { return stop_ > 0.0; }
    /// Somebody outside of the run has asked, and waits for it.
    [[nodiscard]] bool hurries() const noexcept { return stop_ >= 1.0; }
    /// The signal that asked for the stop on some rank; 0 when it was none.
    [[nodiscard]] int stop_signal() const noexcept {
        return stop_ > 1.0 ? static_cast<int>(stop_) : 0;
    }
    /// Collective, once the ranks stop: why, as the first rank says that knows.
    [[nodiscard]] std::string reason(const std::string& mine) const {
        for (const auto& each : gather_bytes(ctx_, as_bytes(mine)))
            if (!each.empty()) return std::string(as_text(each));
        return {};
    }
    /// The world is another one.
    void rebind() noexcept { names_.forget(); }

private:
    const context& ctx_;
    shared_names names_; // of what ranks report
    std::vector<report::metric_value> values_;
    std::vector<double> word_;
    double stop_ = 0.0, least_ = 0.0, most_ = 0.0;
    bool some_untouched_ = false, same_decisions_ = true, same_calls_ = true, pauses_ = false;
    save_word saves_ = save_word::none;
};

} // namespace skein::train::detail
