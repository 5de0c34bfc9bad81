// SPDX-License-Identifier: Apache-2.0
// The bodies of report_command.hpp.
#include "report_command.hpp"

#include <skein/core/bytes.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/disk.hpp>
#include <skein/core/error.hpp>
#include <skein/core/known_names.hpp>
#include <skein/core/notice.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/core/printable.hpp>
#include <skein/core/read_number.hpp>
#include <skein/report/cost.hpp>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace skein_program {
namespace {

namespace report = skein::report;

using skein::errc;
using skein::error;

/// Without slashes at its end, which a shell writes when it completes a name.
std::string plain_path(std::string path) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    return path;
}

/// A mistake of the command line.
error usage_of(const char* option, const error& why) {
    return error(errc::usage, fmt::format("{}: {}", option, why.text())).with_hint(why.hint());
}

std::vector<double> read_values(std::string_view text) {
    std::vector<double> values;
    for (bool more = true; more;) {
        const auto comma = text.find(',');
        more = comma != text.npos;
        const auto part = text.substr(0, comma);
        text.remove_prefix(more ? comma + 1 : text.size());
        const auto value = skein::read_double(part);
        if (!value || !std::isfinite(*value))
            throw error(errc::usage,
                        fmt::format("--values: '{}' is no number", skein::printable(part)))
                .with_hint("such as --values 0.9,0.95,0.985");
        values.push_back(*value);
    }
    return values;
}

/// The first that all runs have.
std::string common_metric(const std::vector<std::string>& runs) {
    auto names = report::metrics_of_rows(runs[0]);
    const auto of_first = names;
    for (const auto& run : runs) {
        const auto here = report::metrics_of_rows(run);
        std::erase_if(
            names, [&](const auto& name) { return std::ranges::find(here, name) == here.end(); });
    }
    if (!names.empty()) return names[0];
    throw error(errc::not_found, "the rows of these runs have no metric in common")
        .with_hint(
            fmt::format("of {} {}", skein::printable(runs[0]), skein::known_names(of_first)));
}

/// A price that nobody needs may be a kind that no worker was given.
void say_unused(const std::vector<report::run_costs>& runs, const report::cost_options& how) {
    for (std::size_t i = 1; i < how.prices.size(); ++i) {
        const bool any = std::ranges::any_of(runs, [&](const auto& run) {
            return run.rows.back().spent.by_kind.contains(how.prices[i].kind);
        });
        if (!any)
            skein::write_notice(fmt::format(
                "skein report: no run has workers of kind '{}'; a worker is of the kind "
                "that SKEIN_WORKER_KIND names, else it costs what '{}' does\n",
                how.prices[i].kind, how.prices[0].kind));
    }
}

void write_plot(const std::string& path, const std::string& svg) {
    skein::posix_disk here;
    here.replace(path, skein::as_bytes(std::string_view(svg))).value();
}

int tell_cost(const report_arguments& args) {
    report::cost_options how;
    if (!args.prices.empty()) {
        auto prices = report::parse_prices(args.prices);
        if (!prices) throw usage_of("--prices", prices.error());
        how.prices = std::move(*prices);
    }
    if (!args.values.empty()) how.values = read_values(args.values);
    std::vector<std::string> folders;
    for (const auto& run : args.runs) folders.push_back(plain_path(run));
    how.metric = args.metric.empty() ? common_metric(folders) : args.metric;
    how.order = args.lower    ? report::better::lower
                : args.higher ? report::better::higher
                              : report::metric_order_of(how.metric);
    std::vector<report::run_costs> runs;
    for (const auto& folder : folders) runs.push_back(report::read_costs(folder, how.metric));
    for (const auto& run : runs)
        if (run.is_cut_short)
            skein::write_notice(fmt::format("skein report: the last row of {} is not whole, and is "
                                            "left out\n",
                                            skein::printable(run.folder)));
    if (how.values.empty()) how.values = report::common_values(runs, how.order);
    say_unused(runs, how);
    const auto said =
        (args.json ? report::cost_json(runs, how) : report::cost_table(runs, how)).value();
    const auto money = report::money_svg(runs, how).value();
    skein::posix_disk here;
    here.make_dirs(args.plots).value();
    const auto seconds_file = skein::join_path(args.plots, "cost-seconds.svg");
    const auto money_file = skein::join_path(args.plots, "cost-money.svg");
    write_plot(seconds_file, report::seconds_svg(runs, how));
    write_plot(money_file, money);
    fmt::print("{}", said);
    if (!args.json)
        fmt::print("plots: {} and {}\n", skein::printable(seconds_file),
                   skein::printable(money_file));
    return skein::exit_code::done;
}

std::string refuse_empty(const std::string& path) { return path.empty() ? "it is empty" : ""; }

} // namespace

void declare_reports(CLI::App& app, report_arguments& args, std::function<int()>& chosen) {
    auto* const group = app.add_subcommand("report", "what trainings have come to");
    group->require_subcommand(1);
    auto* const cost = group->add_subcommand(
        "cost", "seconds, worker-seconds and money to values of a metric, and two plots of it");
    cost->callback([&chosen, &args] { chosen = [&args] { return tell_cost(args); }; });
    cost->add_option("runs", args.runs, "folders of runs, such as runs/mnist")
        ->required()
        ->expected(1, 100)
        ->check(refuse_empty);
    cost->add_option("--prices", args.prices,
                     "money per hour of one worker, by kind: trainer=0.90,spot=0.27; a worker "
                     "without a kind (SKEIN_WORKER_KIND) costs what the first does")
        ->check(refuse_empty);
    cost->add_option("--metric", args.metric,
                     "a number of the rows (default: an accuracy, else the loss of an evaluation, "
                     "that all have)")
        ->check(refuse_empty);
    cost->add_option("--values", args.values,
                     "of it: 0.9,0.95,0.985 (default: about five that all have come to)")
        ->check(refuse_empty);
    auto* const lower = cost->add_flag("--lower", args.lower,
                                       "lower values are better (default: by the metric's name)");
    cost->add_flag("--higher", args.higher, "higher ones are")->excludes(lower);
    cost->add_option("--plots", args.plots,
                     "the folder of cost-seconds.svg and cost-money.svg (default: this one)")
        ->check(refuse_empty);
    cost->add_flag("--json", args.json, "one JSON object");
}

} // namespace skein_program
