// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/report/cost.hpp>.

#include <skein/core/bytes.hpp>
#include <skein/core/disk.hpp>
#include <skein/core/error.hpp>
#include <skein/core/known_names.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/core/printable.hpp>
#include <skein/core/read_number.hpp>
#include <skein/report/metrics_table.hpp>
#include <skein/report/svg.hpp>
#include <skein/wire/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include <fmt/core.h>

namespace skein::report {

// ---- counting while a run is at work ------------------------------------------------------------

SKEIN_INLINE void worker_meter::begin(double now, worker_count workers, run_spending before) {
    counted_ = now;
    workers_ = std::move(workers);
    spent_ = std::move(before);
}

SKEIN_INLINE void worker_meter::change(double now, worker_count workers) {
    (void)count(now);
    workers_ = std::move(workers);
}

SKEIN_INLINE const run_spending& worker_meter::count(double now) {
    const double passed = std::max(0.0, now - std::exchange(counted_, now));
    spent_.seconds += passed;
    spent_.worker_seconds += passed * workers_.all;
    for (const auto& [kind, count] : workers_.by_kind) spent_.by_kind[kind] += passed * count;
    return spent_;
}

namespace detail {
/// Of a worker, in rows and prices.
[[nodiscard]] SKEIN_INLINE bool is_kind(std::string_view text) noexcept {
    return !text.empty() && text.size() <= 32 && std::ranges::all_of(text, [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '.' || c == '_' || c == '-';
    });
}
inline constexpr const char* kind_hint = "a kind has 1 to 32 letters, digits, '.', '_' and '-'";
/// Of a text that somebody typed, for one line.
[[nodiscard]] SKEIN_INLINE std::string shown(std::string_view text) {
    return printable(text.substr(0, 80)) + (text.size() > 80 ? "..." : "");
}
} // namespace detail

SKEIN_INLINE result<std::string> parse_worker_kind(std::string_view text) {
    if (text.empty() || detail::is_kind(text)) return std::string(text);
    return error(errc::invalid_argument,
                 fmt::format("SKEIN_WORKER_KIND is '{}'", detail::shown(text)))
        .with_hint(detail::kind_hint);
}

// ---- prices -------------------------------------------------------------------------------------

SKEIN_INLINE result<std::vector<worker_price>> parse_prices(std::string_view text) {
    constexpr std::size_t most = 64;
    const auto refuse = [](errc code, const std::string& what) {
        return error(code, what)
            .with_hint("prices are money per hour of one worker, by kind: "
                       "trainer=0.90,spot=0.27");
    };
    std::vector<worker_price> prices;
    for (bool more = true; more;) {
        const auto comma = text.find(',');
        more = comma != std::string_view::npos;
        const auto part = text.substr(0, comma);
        text.remove_prefix(more ? comma + 1 : text.size());
        const auto equals = part.find('=');
        const auto bad = [&](std::string_view why) {
            return refuse(errc::malformed,
                          fmt::format("the price '{}' {}", detail::shown(part), why));
        };
        if (equals == std::string_view::npos) return bad("has no '='");
        const auto kind = part.substr(0, equals), number = part.substr(equals + 1);
        if (!detail::is_kind(kind)) return bad(fmt::format("has no kind: {}", detail::kind_hint));
        const auto price = read_double(number);
        if (!price || !std::isfinite(*price)) return bad("is no number");
        if (std::signbit(*price) && *price != 0.0) return bad("is negative");
        for (const auto& before : prices)
            if (before.kind == kind) return bad("is the second of its kind");
        if (prices.size() == most)
            return refuse(errc::too_large, fmt::format("more than {} prices", most));
        prices.push_back({std::string(kind), std::abs(*price)});
    }
    return prices;
}

SKEIN_INLINE result<double> money_of(const run_spending& spent,
                                     std::span<const worker_price> prices) {
    if (prices.empty()) return error(errc::invalid_argument, "there are no prices");
    double money = 0.0, named = 0.0;
    for (const auto& [kind, seconds] : spent.by_kind) {
        const auto found = std::ranges::find(prices, kind, &worker_price::kind);
        if (found == prices.end()) {
            name_list list;
            for (const auto& price : prices) list.add(price.kind);
            return error(errc::not_found, fmt::format("workers of kind '{}' have no price", kind))
                .with_hint(list.text("there are none"));
        }
        money += seconds / 3600.0 * found->per_hour;
        named += seconds;
    }
    return money + std::max(0.0, spent.worker_seconds - named) / 3600.0 * prices[0].per_hour;
}

// ---- rows ---------------------------------------------------------------------------------------

namespace detail {

inline constexpr const char* rows_file = "metrics.jsonl";
/// Numbers of rows that are no goals.
inline constexpr std::array<std::string_view, 16> no_goals = {
    "step",   "lr",        "grad_norm",  "tokens_per_s", "samples_per_s", "step_seconds",
    "data_s", "forward_s", "backward_s", "exposed_s",    "optimizer_s",   "overlap",
    "world",  "run_s",     "worker_s",   "unix_s"};

/// A number that can be a time; nothing: it is another thing.
[[nodiscard]] SKEIN_INLINE std::optional<double> time_in(const json& row, const char* name) {
    const auto found = row.find(name);
    if (found == row.end() || !found->is_number()) return std::nullopt;
    const auto value = found->get<double>();
    return std::isfinite(value) && value >= 0 ? std::optional(value) : std::nullopt;
}

[[nodiscard]] SKEIN_INLINE result<json> parse_row(std::string_view line) {
    auto row = parse_json(line, {.max_bytes = 64u << 20, .max_depth = 16});
    if (row && !row->is_object()) return error(errc::malformed, "the row is no JSON object");
    return row;
}

[[nodiscard]] SKEIN_INLINE result<cost_row> cost_of_row(const json& row, std::string_view metric) {
    cost_row out;
    const auto step = json_uint(row, "step"), world = json_uint(row, "world");
    if (!step) return step.error();
    if (!row.contains("worker_s") || !row.contains("run_s"))
        return error(errc::not_found, fmt::format("the row of step {} has no times of workers "
                                                  "(run_s, worker_s)",
                                                  *step));
    if (!world) return world.error();
    const auto bad = [&](const char* name) {
        return error(errc::malformed, fmt::format("{} of step {} is no time", name, *step));
    };
    const auto seconds = time_in(row, "run_s"), workers = time_in(row, "worker_s");
    if (!seconds) return bad("run_s");
    if (!workers) return bad("worker_s");
    out.step = *step;
    out.workers = *world;
    out.spent.seconds = *seconds;
    out.spent.worker_seconds = *workers;
    out.spent.unix_seconds = time_in(row, "unix_s").value_or(0.0);
    if (const auto kinds = row.find("worker_kinds"); kinds != row.end()) {
        if (!kinds->is_object()) return bad("worker_kinds");
        for (const auto& [kind, ignored] : kinds->items()) {
            const auto time = time_in(*kinds, kind.c_str());
            if (!is_kind(kind) || !time) return bad("worker_kinds");
            out.spent.by_kind.emplace(kind, *time);
        }
    }
    if (const auto value = row.find(metric); value != row.end() && value->is_number())
        out.value = value->get<double>();
    return out;
}

/// Names of a row's numbers that can be a goal.
SKEIN_INLINE void add_goals(const json& row, std::vector<std::string>& to) {
    for (const auto& [name, value] : row.items())
        if (value.is_number() && std::ranges::find(no_goals, name) == no_goals.end() &&
            std::ranges::find(to, name) == to.end())
            to.push_back(name);
}

/// The rows' text and where it is from.
struct rows_text {
    std::string path, text;
};
[[nodiscard]] SKEIN_INLINE rows_text read_rows_of(const std::string& folder) {
    posix_disk disk(link_policy::refuse);
    rows_text out{.path = join_path(folder, rows_file), .text = {}};
    const auto bytes = disk.read_whole(out.path, std::uint64_t{8} << 30);
    if (!bytes && bytes.error().code() == errc::not_found)
        throw error(errc::not_found, fmt::format("{} is no folder of a run: it has no {}",
                                                 printable(folder), rows_file))
            .with_hint("give folders of runs, such as runs/mnist");
    out.text = skein::to_string(byte_span(bytes.value()));
    return out;
}

} // namespace detail

SKEIN_INLINE result<cost_row> parse_cost_row(std::string_view line, std::string_view metric) {
    const auto row = detail::parse_row(line);
    if (!row) return row.error();
    return detail::cost_of_row(*row, metric);
}

SKEIN_INLINE run_costs read_costs(const std::string& folder, const std::string& metric) {
    const auto file = detail::read_rows_of(folder);
    const auto& text = file.text;
    run_costs out{.folder = folder, .rows = {}};
    out.is_cut_short = !text.empty() && !text.ends_with('\n');
    const auto refuse = [&](const error& why, std::size_t line) {
        auto all = error(why.code(), std::string(why.text()))
                       .with_where(fmt::format("{} line {}", file.path, line));
        if (why.code() == errc::not_found)
            return all.with_hint("rows have them since skein counts workers: train the run anew");
        return all.with_hint("the file is damaged, or another program's; copy the run anew");
    };
    std::vector<std::string> goals;
    bool has_value = false;
    for (const auto line : detail::whole_lines(text)) {
        const auto number = out.rows.size() + 1;
        const auto row = detail::parse_row(line);
        if (!row) throw refuse(row.error(), number);
        auto cost = detail::cost_of_row(*row, metric);
        if (!cost) throw refuse(cost.error(), number);
        if (!out.rows.empty() &&
            (cost->spent.seconds < out.rows.back().spent.seconds ||
             cost->spent.worker_seconds < out.rows.back().spent.worker_seconds))
            throw refuse(error(errc::malformed,
                               fmt::format("the times of step {} are before those of step {}",
                                           cost->step, out.rows.back().step)),
                         number);
        has_value = has_value || cost->value.has_value();
        if (!has_value) detail::add_goals(*row, goals);
        out.rows.push_back(std::move(*cost));
    }
    if (out.rows.empty())
        throw error(errc::not_found, "the run has no rows yet").with_where(file.path);
    if (!has_value)
        throw error(errc::not_found, fmt::format("no row has a '{}'", printable(metric)))
            .with_where(file.path)
            .with_hint(known_names(goals));
    return out;
}

SKEIN_INLINE std::vector<std::string> metrics_of_rows(const std::string& folder) {
    const auto file = detail::read_rows_of(folder);
    std::vector<std::string> all;
    for (const auto line : detail::whole_lines(file.text))
        if (const auto row = detail::parse_row(line)) detail::add_goals(*row, all);
    const auto order = [](const std::string& name) {
        const bool trains = name == "loss" || name.starts_with("train_");
        return std::pair(trains                               ? 3
                         : name.find("accuracy") != name.npos ? 0
                         : name.ends_with("_loss")            ? 1
                                                              : 2,
                         name);
    };
    std::ranges::sort(all, {}, order);
    return all;
}

SKEIN_INLINE run_spending last_spending(const std::string& folder) {
    posix_disk disk(link_policy::refuse);
    const auto opened = disk.open(join_path(folder, detail::rows_file), open_mode::read);
    if (!opened) return {};
    const auto size = (*opened)->size();
    if (!size) return {};
    for (std::uint64_t tail = std::uint64_t{64} << 10;; tail *= 16) {
        const auto bytes = std::min(tail, *size);
        byte_buffer end(bytes);
        const auto got = (*opened)->read_at(*size - bytes, end);
        if (!got || *got != bytes) return {};
        auto text = as_text(end);
        text = text.substr(0, text.rfind('\n') + 1); // npos + 1 is 0
        if (!text.empty()) text.remove_suffix(1);
        const auto begin = text.rfind('\n');
        if (begin == text.npos && bytes < *size) continue; // a long row
        const auto row = parse_cost_row(text.substr(begin + 1), {});
        return row ? row->spent : run_spending{};
    }
}

// ---- the way to a value -------------------------------------------------------------------------

SKEIN_INLINE better metric_order_of(std::string_view metric) noexcept {
    for (const std::string_view part : {"loss", "error", "perplexity", "mse", "mae"})
        if (metric.find(part) != metric.npos) return better::lower;
    return better::higher;
}

namespace detail {
[[nodiscard]] SKEIN_INLINE bool has_come_to(double now, double value, better order) noexcept {
    return order == better::lower ? now <= value : now >= value;
}
} // namespace detail

SKEIN_INLINE std::vector<reached_value> costs_to(const run_costs& run,
                                                 std::span<const double> values, better order) {
    std::vector<reached_value> all;
    for (const double value : values) {
        const auto found = std::ranges::find_if(run.rows, [&](const cost_row& row) {
            return row.value && detail::has_come_to(*row.value, value, order);
        });
        all.push_back({value, found == run.rows.end() ? std::nullopt : std::optional(*found)});
    }
    return all;
}

SKEIN_INLINE double best_value_of(const run_costs& run, better order) {
    double best = std::numeric_limits<double>::quiet_NaN();
    for (const auto& row : run.rows)
        if (row.value && !std::isnan(*row.value) &&
            (std::isnan(best) || detail::has_come_to(*row.value, best, order)))
            best = *row.value;
    return best;
}

SKEIN_INLINE std::vector<double> common_values(std::span<const run_costs> runs, better order) {
    const bool down = order == better::lower;
    double from =
        down ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
    double to = -from;
    for (const auto& run : runs) {
        const auto first =
            std::ranges::find_if(run.rows, [](const cost_row& row) { return !!row.value; });
        if (first == run.rows.end()) continue;
        from = down ? std::min(from, *first->value) : std::max(from, *first->value);
        const double best = best_value_of(run, order);
        to = down ? std::max(to, best) : std::min(to, best);
    }
    auto values = round_ticks(std::min(from, to), std::max(from, to), 5);
    const bool any = detail::has_come_to(to, from, order);
    if (values.empty() || !any) return {to};
    if (down) std::ranges::reverse(values);
    return values;
}

// ---- the report ---------------------------------------------------------------------------------

namespace detail {

[[nodiscard]] SKEIN_INLINE std::string padded(const std::string& text, std::size_t width,
                                              bool left) {
    const auto fill = std::string(width - std::min(width, text.size()), ' ');
    return left ? text + fill : fill + text;
}

[[nodiscard]] SKEIN_INLINE std::string aligned(const std::vector<std::vector<std::string>>& rows) {
    std::vector<std::size_t> widths(rows[0].size());
    for (const auto& row : rows)
        for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    std::string out;
    for (const auto& row : rows) {
        std::string line;
        for (std::size_t i = 0; i < row.size(); ++i)
            line += (i == 0 ? "" : "  ") + padded(row[i], widths[i], i == 1);
        out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    }
    return out;
}

} // namespace detail

SKEIN_INLINE result<std::string> cost_table(std::span<const run_costs> runs,
                                            const cost_options& how) {
    std::vector<std::vector<std::string>> rows{
        {printable(how.metric), "run", "step", "seconds", "worker-seconds"}};
    if (!how.prices.empty()) rows[0].push_back("money");
    for (const double value : how.values)
        for (const auto& run : runs) {
            const auto at = costs_to(run, std::span(&value, 1), how.order)[0].at;
            auto& row =
                rows.emplace_back(std::vector{fmt::format("{:.6g}", value), printable(run.folder)});
            if (!at) {
                row.push_back(fmt::format("never: at best {:.6g}", best_value_of(run, how.order)));
                continue;
            }
            row.push_back(fmt::format("{}", at->step));
            row.push_back(fmt::format("{:.1f}", at->spent.seconds));
            row.push_back(fmt::format("{:.1f}", at->spent.worker_seconds));
            if (how.prices.empty()) continue;
            const auto money = money_of(at->spent, how.prices);
            if (!money) return error(money.error()).with_where(run.folder);
            row.push_back(fmt::format("{:.6f}", *money));
        }
    return detail::aligned(rows);
}

SKEIN_INLINE result<std::string> cost_json(std::span<const run_costs> runs,
                                           const cost_options& how) {
    ordered_json all{{"metric", how.metric},
                     {"better", how.order == better::lower ? "lower" : "higher"},
                     {"runs", ordered_json::array()}};
    for (const auto& run : runs) {
        ordered_json one{{"folder", run.folder},
                         {"best", best_value_of(run, how.order)},
                         {"is_cut_short", run.is_cut_short},
                         {"values", ordered_json::array()}};
        for (const auto& [value, at] : costs_to(run, how.values, how.order)) {
            ordered_json to{{"value", value}};
            if (at) {
                to["step"] = at->step;
                to["seconds"] = at->spent.seconds;
                to["worker_seconds"] = at->spent.worker_seconds;
                if (!how.prices.empty()) {
                    const auto money = money_of(at->spent, how.prices);
                    if (!money) return error(money.error()).with_where(run.folder);
                    to["money"] = *money;
                }
            }
            one["values"].push_back(std::move(to));
        }
        all["runs"].push_back(std::move(one));
    }
    return dump_json(all) + "\n";
}

namespace detail {
/// The metric of each run over a number of its rows.
template <class Cost>
[[nodiscard]] result<std::string> cost_svg(std::span<const run_costs> runs, const cost_options& how,
                                           const char* x, Cost cost) {
    std::vector<curve> curves;
    for (const auto& run : runs) {
        auto& line = curves.emplace_back(curve{.label = run.folder, .points = {}});
        for (const auto& row : run.rows) {
            if (!row.value) continue;
            const result<double> at = cost(row.spent);
            if (!at) return error(at.error()).with_where(run.folder);
            line.points.push_back({*at, *row.value});
        }
    }
    plot_options options;
    options.title = fmt::format("{} by {}", how.metric, x);
    options.x_label = x;
    options.y_label = how.metric;
    return plot_svg(options, curves);
}
} // namespace detail

SKEIN_INLINE std::string seconds_svg(std::span<const run_costs> runs, const cost_options& how) {
    return detail::cost_svg(runs, how, "seconds",
                            [](const run_spending& spent) { return result<double>(spent.seconds); })
        .value();
}

SKEIN_INLINE result<std::string> money_svg(std::span<const run_costs> runs,
                                           const cost_options& how) {
    if (how.prices.empty())
        return detail::cost_svg(runs, how, "worker-seconds", [](const run_spending& spent) {
            return result<double>(spent.worker_seconds);
        });
    return detail::cost_svg(runs, how, "money",
                            [&](const run_spending& spent) { return money_of(spent, how.prices); });
}

} // namespace skein::report
