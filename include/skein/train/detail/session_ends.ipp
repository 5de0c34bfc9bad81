// SPDX-License-Identifier: Apache-2.0
#pragma once
// What becomes of a step whose evaluation failed: bodies of
// <skein/train/detail/session_between.ipp>.

#include <skein/core/error.hpp>
#include <skein/train/collective.hpp>
#include <skein/train/detail/session_between.ipp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>
#include <skein/wire/json.hpp>
#include <skein/wire/schema.hpp>

#include <exception>
#include <optional>
#include <string>
#include <utility>

#include <fmt/core.h>

namespace skein::train::detail {

/// What lies behind the step of a checkpoint whose evaluation had failed: it is made now.
SKEIN_INLINE void between_steps::adopt_end(const carried_state& from) {
    run_.epoch = from.epoch;
    run_.scheduled = from.scheduled;
    run_.left_out = from.left_out;
    run_.training->late() = {from.late, from.late_arrays};
    run_.result.metrics = from.metrics;
    run_.result.arrays = from.arrays;
    run_.result.val_loss = from.val_loss;
    run_.result.val_step = from.val_step;
    if (from.told_at.size() == told_at_.size()) told_at_ = from.told_at;
    newest_ = from.newest;
    run_.row = {from.row.values, from.row.arrays};
    events_ = from.row.decided;
}

/// An evaluation failed, which says nothing against what was trained: the step gets its
/// checkpoint, and whoever resumes makes the rest of it.
SKEIN_INLINE bool between_steps::keep_step(carried_state end) {
    if (!saves_.is_open()) return false;
    end.extra.clear(); // the checkpoint has it
    end_due_ = to_hex(wire::encode(end));
    try {
        save({});
    } catch (const error& why) { // the evaluation's error is the one to tell
        if (is_of_world(why)) throw;
        report_->note(fmt::format("step {} cannot be saved, either: {}", run_.step, why.what()));
        return false;
    }
    end_due_.clear();
    report_->note(
        fmt::format("step {} is saved without its evaluation, which has failed", run_.step));
    return true;
}

/// Who knows why throws it; the others wait for its word.
[[noreturn]] SKEIN_INLINE void between_steps::fail(const evaluation_failed& failure,
                                                   bool is_saved) {
    if (failure.why) {
        try {
            std::rethrow_exception(failure.why);
        } catch (const error& why) {
            if (!is_saved) throw;
            auto told = why;
            const std::string hint = "the step is saved: a resumed run makes its evaluation";
            throw std::move(told).with_hint(why.hint().empty() ? hint : why.hint() + "; " + hint);
        }
    }
    double none = 0.0;
    all_reduce(ctx_, std::span(&none, 1), dist::reduce_op::sum);
    throw error(errc::aborted, "an evaluation failed on another rank");
}

SKEIN_INLINE std::optional<carried_state> between_steps::saved_end(const json& extra,
                                                                   const std::string& where) {
    if (!extra.contains("end_due")) return std::nullopt;
    const auto& saved = extra.at("end_due");
    if (saved.value("schema", std::uint64_t{0}) != wire::schema_hash<carried_state>()) {
        notices_.push_back(fmt::format("the evaluation of step {} has failed and is left out: "
                                       "another version of this program has saved it",
                                       run_.step));
        return std::nullopt;
    }
    const auto text = saved.value("state", std::string());
    byte_buffer bytes(text.size() / 2);
    if (!from_hex(text, bytes))
        throw error(errc::malformed, "what a step still lacks is no hexadecimal text")
            .with_where(where);
    return wire::decode<carried_state>(bytes).value();
}

} // namespace skein::train::detail
