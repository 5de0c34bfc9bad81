// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a training has cost: seconds, worker-seconds and money up to each value of a metric, from
// the rows of metrics.jsonl.
//
// Every row has the cost of all starts of its run so far, what a restart threw away included:
//
//     {"step":40,"loss":0.3,...,"world":3,"run_s":61.2,"worker_s":140.4,
//      "worker_kinds":{"spot":79.2},"unix_s":1764355200.5}
//
// worker_s is the sum over the time of the number of workers; where the number changes, the time up
// to the first moment of the new world counts for the workers of the one before. A worker is of the
// kind that SKEIN_WORKER_KIND names in its environment; one without is in worker_s alone, and costs
// what the first kind of the prices does.
//
//     const auto prices = parse_prices("trainer=0.90,spot=0.27").value();    // money per hour
//     const auto run = read_costs("runs/mnist", "test_accuracy");
//     for (const auto& r : costs_to(run, {0.9, 0.95}, metric_order_of("test_accuracy")))
//         if (r.at) fmt::print("{}: {}\n", r.value, money_of(r.at->spent, prices).value());

#include <skein/core/config.hpp>
#include <skein/core/result.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace skein::report {

/// The cost of a run from its beginning up to some moment.
struct run_spending {
    double seconds = 0.0;                    ///< at work, over all its starts
    double worker_seconds = 0.0;             ///< the same times the workers of each moment
    std::map<std::string, double> by_kind{}; ///< of them, those of workers that have a kind
    double unix_seconds = 0.0;               ///< the moment, since 1970 by this host's clock

    friend bool operator==(const run_spending&, const run_spending&) = default;
};

/// The workers of one moment.
struct worker_count {
    int all = 0;
    std::map<std::string, int> by_kind{}; ///< without those that have no kind

    friend bool operator==(const worker_count&, const worker_count&) = default;
};

/// Adds up what a run costs while it is at work. One thread.
class worker_meter {
public:
    /// Goes on from what it had cost before.
    ///   now  seconds of a clock that never goes back
    void begin(double now, worker_count workers, run_spending before = {});
    /// From now on there are these; the time up to now was of those before.
    void change(double now, worker_count workers);
    /// Up to now. A clock that has gone back counts nothing.
    const run_spending& count(double now);
    [[nodiscard]] const worker_count& workers() const noexcept { return workers_; }

private:
    worker_count workers_;
    run_spending spent_;
    double counted_ = 0.0; // up to this moment
};

/// What SKEIN_WORKER_KIND says; empty: no kind.
///   errors  invalid_argument: another text than 1 to 32 letters, digits, '.', '_' and '-'
[[nodiscard]] result<std::string> parse_worker_kind(std::string_view text);

/// What a worker of a kind costs.
struct worker_price {
    std::string kind{};
    double per_hour = 0.0; ///< in any currency

    friend bool operator==(const worker_price&, const worker_price&) = default;
};

/// "trainer=0.90,spot=0.27", in that order.
///   errors  malformed, with the part that is wrong; too_large: more than 64 kinds
[[nodiscard]] result<std::vector<worker_price>> parse_prices(std::string_view text);

/// Workers without a kind are of the first.
///   errors  not_found: a kind has no price; invalid_argument: there are no prices
[[nodiscard]] result<double> money_of(const run_spending& spent,
                                      std::span<const worker_price> prices);

/// A row of metrics.jsonl, as far as costs want it.
struct cost_row {
    std::uint64_t step = 0, workers = 0;
    run_spending spent{};
    std::optional<double> value{}; ///< of the metric; nothing: it is not in this row

    friend bool operator==(const cost_row&, const cost_row&) = default;
};

/// One line. Errors: malformed; not_found: the row has no times of workers.
[[nodiscard]] result<cost_row> parse_cost_row(std::string_view line, std::string_view metric);

/// The rows of one run.
struct run_costs {
    std::string folder{};
    std::vector<cost_row> rows{};
    bool is_cut_short = false; ///< its last row is not whole, and left out
};

/// Reads <folder>/metrics.jsonl, also of a run that is at work.
///   errors  not_found: no folder of a run, no rows, rows without times of workers, or no row that
///           has the metric, with those that there are; malformed, with the line; a disk error
[[nodiscard]] run_costs read_costs(const std::string& folder, const std::string& metric);

/// Numbers in the rows of a run that can be a goal: accuracies first, then losses of evaluations,
/// other numbers, and those of training.
///   errors  not_found: no folder of a run; a disk error
[[nodiscard]] std::vector<std::string> metrics_of_rows(const std::string& folder);

/// Which values of a metric are better.
enum class better : bool { lower, higher };
/// Lower for a name with "loss", "error", "perplexity", "mse" or "mae" in it.
[[nodiscard]] better metric_order_of(std::string_view metric) noexcept;

/// The first row at which the metric has come to a value.
struct reached_value {
    double value = 0.0;
    std::optional<cost_row> at{}; ///< nothing: it never has
};
[[nodiscard]] std::vector<reached_value> costs_to(const run_costs& run,
                                                  std::span<const double> values, better order);
/// The best value that the run has come to; NaN for one without a number.
[[nodiscard]] double best_value_of(const run_costs& run, better order);
/// About five round values on the way that all of these runs have made.
[[nodiscard]] std::vector<double> common_values(std::span<const run_costs> runs, better order);

/// How the report of several runs is made.
struct cost_options {
    std::string metric{};
    std::vector<double> values{};
    better order = better::higher;
    std::vector<worker_price> prices{}; ///< none: no money
};

/// Lines for a terminal: for each value each run, with step, seconds, worker-seconds and money.
///   errors  of money_of()
[[nodiscard]] result<std::string> cost_table(std::span<const run_costs> runs,
                                             const cost_options& how);
/// The same as the text of one JSON object.
[[nodiscard]] result<std::string> cost_json(std::span<const run_costs> runs,
                                            const cost_options& how);
/// The metric of each run over its seconds; or over its money, or worker-seconds without prices.
[[nodiscard]] std::string seconds_svg(std::span<const run_costs> runs, const cost_options& how);
[[nodiscard]] result<std::string> money_svg(std::span<const run_costs> runs,
                                            const cost_options& how);

/// What the last whole row of <folder>/metrics.jsonl says; zeros where there is none, or one
/// without times.
[[nodiscard]] run_spending last_spending(const std::string& folder);

} // namespace skein::report

#if SKEIN_HEADER_ONLY
#include <skein/report/detail/cost.ipp>
#endif
