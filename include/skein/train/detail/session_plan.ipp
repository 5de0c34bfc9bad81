// SPDX-License-Identifier: Apache-2.0
#pragma once
// The plan of a run in checkpoints, in events.jsonl and between the ranks. Used by
// <skein/train/detail/session_core.ipp> and what it includes alone.

#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/train/collective.hpp>
#include <skein/train/context.hpp>
#include <skein/train/reporter.hpp>
#include <skein/train/run_config.hpp>
#include <skein/train/session.hpp>
#include <skein/train/step_plan.hpp>
#include <skein/wire/json.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <fmt/core.h>

namespace skein::train::detail {

/// Collective: says which of the ranks has which plan.
[[noreturn]] SKEIN_INLINE void plans_differ(const context& ctx, const std::string& text,
                                            std::uint64_t step) {
    const auto all = gather_bytes(ctx, as_bytes(text));
    std::size_t other = 0;
    while (other + 1 < all.size() && all[other] == all[0]) ++other;
    throw error(errc::mismatch,
                fmt::format("the ranks have decided on different plans at step {}: rank 0 has {}, "
                            "rank {} has {}",
                            step, as_text(all[0]), other, as_text(all[other])))
        .with_hint("a callback decides by numbers that are merged over the ranks (those of the "
                   "row or of an evaluation), never by those of its own rank");
}

/// What a decision changes, one row each.
SKEIN_INLINE void add_events(std::vector<run_event>& to, const made_decision& made,
                             std::uint64_t step) {
    const auto add = [&](const char* what, const auto& from, const auto& now) {
        if (from == now) return;
        to.push_back(
            {step, made.rule, what, dump_json(json(from)), dump_json(json(now)), made.why});
    };
    add("global_batch", made.from.global_batch, made.to.global_batch);
    add("micro_batches", made.from.micro_batches, made.to.micro_batches);
    add("rate_factor", made.from.rate_factor, made.to.rate_factor);
    add("clip", made.from.clip, made.to.clip);
    if (made.stops) add("run", std::string("go_on"), std::string("stop"));
}

/// For a checkpoint; with what the run began with, so that a setting that no rule has touched can be
/// another one after a resume.
[[nodiscard]] SKEIN_INLINE json saved_plan(const step_plan& plan, const run_config& config,
                                           std::optional<std::uint64_t> units) {
    const auto first = plan_of(config);
    json out = {{"global_batch", plan.global_batch}, {"micro_batches", plan.micro_batches},
                {"rate_factor", plan.rate_factor},   {"clip", plan.clip},
                {"first_batch", first.global_batch}, {"first_micro_batches", first.micro_batches},
                {"first_clip", first.clip}};
    if (units) out["units"] = *units;
    return out;
}

struct loaded_plan {
    step_plan plan;
    std::optional<std::uint64_t> units; ///< as feeder::units() said
};

[[nodiscard]] SKEIN_INLINE loaded_plan restored_plan(const json& saved, const run_config& config,
                                                     const std::string& where) {
    const auto number = [&](const char* key) {
        const auto found = saved.find(key);
        if (found == saved.end() || !found->is_number())
            throw error(errc::malformed, fmt::format("the plan has no number '{}'", key))
                .with_where(where);
        return found->template get<double>();
    };
    const auto whole = [&](const char* key) {
        const double value = number(key);
        if (!(value >= 1 && value <= 9e15) || value != std::floor(value))
            throw error(errc::malformed, fmt::format("the plan has '{}': {}", key, value))
                .with_where(where);
        return static_cast<std::int64_t>(value);
    };
    loaded_plan out{plan_of(config), std::nullopt};
    out.plan.rate_factor = number("rate_factor");
    if (saved.contains("units")) {
        out.units = json_uint(saved, "units").value();
        out.plan.global_batch = whole("global_batch");
        if (whole("first_batch") != config.global_batch)
            throw error(errc::mismatch,
                        fmt::format("rules have changed the run's batch from {} to {} samples, now "
                                    "{} are asked for",
                                    whole("first_batch"), out.plan.global_batch,
                                    config.global_batch))
                .with_where(where)
                .with_hint("go on with the batch that the run was started with, or give it another "
                           "name");
    }
    if (whole("micro_batches") != whole("first_micro_batches"))
        out.plan.micro_batches = whole("micro_batches");
    if (number("clip") != number("first_clip")) out.plan.clip = number("clip");
    return out;
}

} // namespace skein::train::detail
