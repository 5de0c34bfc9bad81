// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/job_progress.hpp.

#include <skein/core/printable.hpp>
#include <skein/report/metrics_table.hpp>
#include <skein/wire/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>

namespace skein::cluster {

SKEIN_INLINE job_progress progress_of(std::string_view table) {
    namespace column = report::column;
    const report::last_values last(table);
    const auto finite = [&](std::span<const std::string_view> names) {
        const auto value = last.of(names);
        return value && std::isfinite(*value) ? value : std::nullopt;
    };
    job_progress out;
    out.loss = last.of(column::loss);
    out.learning_rate = last.of(column::learning_rate);
    out.step = finite(column::step);
    out.epoch = finite(column::epoch);
    out.steps = finite(column::steps);
    out.epochs = finite(column::epochs);
    out.samples_per_s = finite(column::samples_per_s);
    out.tokens_per_s = finite(column::tokens_per_s);
    out.steps_per_s = finite(column::steps_per_s);
    out.ranks = finite(column::ranks);
    const auto step_seconds = finite(column::step_seconds);
    if (!out.steps_per_s && step_seconds && *step_seconds > 0) out.steps_per_s = 1 / *step_seconds;
    return out;
}

SKEIN_INLINE void add_told(job_progress& to, std::string_view told) {
    const auto read = parse_json(told);
    if (!read || !read->is_object() || read->value("format", json()) != "skein-progress-1") return;
    const auto take = [&](std::optional<double>& into, const char* name) {
        if (!into && read->contains(name) && read->at(name).is_number())
            into = read->at(name).template get<double>();
    };
    const auto text = [&](const char* name) {
        const auto is_there = read->contains(name) && read->at(name).is_string();
        return is_there ? printable(read->at(name).template get<std::string>()) : std::string();
    };
    take(to.step, "step");
    take(to.steps, "steps");
    take(to.epoch, "epoch");
    take(to.epochs, "epochs");
    take(to.samples_per_s, "samples_per_s");
    take(to.tokens_per_s, "tokens_per_s");
    take(to.ranks, "workers");
    to.is_over = read->value("is_over", json()) == true;
    to.stopped_by = text("stopped_by");
    std::optional<double> worlds;
    take(worlds, "worlds");
    if (worlds && *worlds >= 1 && *worlds <= std::numeric_limits<std::uint32_t>::max())
        to.worlds = static_cast<std::uint32_t>(*worlds);
    to.last_change = text("last_change");
    to.range = text("range").substr(0, 64);
}

SKEIN_INLINE std::optional<double> time_left(const job_progress& now) {
    if (!now.step || !now.steps || !now.steps_per_s || *now.steps_per_s <= 0) return std::nullopt;
    return std::max(0.0, *now.steps - *now.step) / *now.steps_per_s;
}

} // namespace skein::cluster
