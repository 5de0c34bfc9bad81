// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/job_progress.hpp.

#include <skein/core/read_number.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

namespace skein::cluster {

namespace detail {

/// A report need not have all columns: so many rows are looked through for each.
inline constexpr std::size_t most_rows_back = 64;

[[nodiscard]] inline std::vector<std::string_view> cells_of(std::string_view line) {
    std::vector<std::string_view> out;
    for (;;) {
        const auto end = line.find(',');
        out.push_back(line.substr(0, end));
        if (end == line.npos) return out;
        line.remove_prefix(end + 1);
    }
}

/// By column: the last value.
[[nodiscard]] inline std::vector<std::optional<double>> last_values(std::string_view rows,
                                                                    std::size_t columns) {
    std::vector<std::optional<double>> out(columns);
    for (std::size_t back = 0; back < most_rows_back && !rows.empty(); ++back) {
        rows.remove_suffix(rows.back() == '\n' ? 1 : 0);
        const auto begin = rows.rfind('\n');
        const auto cells = cells_of(begin == rows.npos ? rows : rows.substr(begin + 1));
        for (std::size_t i = 0; i < std::min(cells.size(), columns); ++i) {
            const auto value = out[i] ? std::nullopt : read_double(cells[i]);
            if (value && std::isfinite(*value)) out[i] = value;
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
    const auto names = detail::cells_of(table.substr(0, end));
    const auto values = detail::last_values(table.substr(end + 1), names.size());
    std::optional<double> step_s;
    const auto take = [&](std::optional<double>& into, std::initializer_list<std::string_view> is) {
        for (const auto& name : is)
            for (std::size_t i = 0; i < names.size(); ++i)
                if (names[i] == name && values[i] && !into) into = values[i];
    };
    take(out.step, {"step"});
    take(out.epoch, {"epoch"});
    take(out.steps, {"steps", "total_steps", "max_steps"});
    take(out.loss, {"loss", "train_loss"});
    take(out.learning_rate, {"lr", "learning_rate"});
    take(out.samples_per_s, {"samples_per_s"});
    take(out.tokens_per_s, {"tokens_per_s"});
    take(out.steps_per_s, {"steps_per_s"});
    take(out.ranks, {"world_size", "workers", "ranks"});
    take(step_s, {"step_s", "step_seconds"});
    if (!out.steps_per_s && step_s && *step_s > 0) out.steps_per_s = 1 / *step_s;
    return out;
}

SKEIN_INLINE std::optional<double> time_left(const job_progress& now) {
    if (!now.step || !now.steps || !now.steps_per_s || *now.steps_per_s <= 0) return std::nullopt;
    return std::max(0.0, *now.steps - *now.step) / *now.steps_per_s;
}

} // namespace skein::cluster
