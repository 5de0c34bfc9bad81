// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/job_progress.hpp.

#include <skein/core/printable.hpp>
#include <skein/core/read_number.hpp>
#include <skein/wire/csv.hpp>
#include <skein/wire/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

namespace skein::cluster {

namespace detail {

/// A report need not have all columns: so many rows are looked through for each.
inline constexpr std::size_t most_rows_back = 64;

/// By column: the last value.
[[nodiscard]] inline std::vector<std::optional<double>> last_values(std::string_view rows,
                                                                    std::size_t columns) {
    std::vector<std::optional<double>> out(columns);
    for (std::size_t back = 0; back < most_rows_back && !rows.empty(); ++back) {
        rows.remove_suffix(rows.back() == '\n' ? 1 : 0);
        const auto begin = rows.rfind('\n');
        const auto cells = split_csv(begin == rows.npos ? rows : rows.substr(begin + 1));
        for (std::size_t i = 0; i < std::min(cells.size(), columns); ++i) {
            if (!out[i]) out[i] = read_double(cells[i]);
        }
        rows = begin == rows.npos ? std::string_view() : rows.substr(0, begin + 1);
    }
    return out;
}

} // namespace detail

SKEIN_INLINE job_progress progress_of(std::string_view table) {
    job_progress out;
    const auto end = table.find('\n');
    if (end == table.npos) return out;
    const auto names = split_csv(table.substr(0, end));
    const auto values = detail::last_values(table.substr(end + 1), names.size());
    using columns = std::initializer_list<std::string_view>;
    const auto take = [&](std::optional<double>& into, columns is) {
        for (const auto& name : is)
            for (std::size_t i = 0; i < names.size(); ++i)
                if (names[i] == name && values[i] && !into) into = values[i];
    };
    const auto take_finite = [&](std::optional<double>& into, columns is) {
        take(into, is);
        if (into && !std::isfinite(*into)) into.reset();
    };
    take(out.loss, {"loss", "train_loss"});
    take(out.learning_rate, {"lr", "learning_rate"});
    std::optional<double> step_s;
    take_finite(out.step, {"step"});
    take_finite(out.epoch, {"epoch"});
    take_finite(out.steps, {"steps", "total_steps", "max_steps"});
    take_finite(out.epochs, {"epochs", "total_epochs", "max_epochs"});
    take_finite(out.samples_per_s, {"samples_per_s"});
    take_finite(out.tokens_per_s, {"tokens_per_s"});
    take_finite(out.steps_per_s, {"steps_per_s"});
    take_finite(out.ranks, {"world_size", "workers", "ranks"});
    take_finite(step_s, {"step_s", "step_seconds"});
    if (!out.steps_per_s && step_s && *step_s > 0) out.steps_per_s = 1 / *step_s;
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
}

SKEIN_INLINE std::optional<double> time_left(const job_progress& now) {
    if (!now.step || !now.steps || !now.steps_per_s || *now.steps_per_s <= 0) return std::nullopt;
    return std::max(0.0, *now.steps - *now.step) / *now.steps_per_s;
}

} // namespace skein::cluster
