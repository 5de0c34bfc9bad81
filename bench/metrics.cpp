// SPDX-License-Identifier: Apache-2.0
// What metrics cost: 20 of them updated with a batch, and merged over two ranks and computed,
// against torchmetrics' MetricCollection on Gloo, and against a training step of the GPT example.
//
//     SKEIN_PYTHON=python metrics      one JSON line per figure; a Python with torch and torchmetrics
//
// The batch is that of the GPT example: 8 texts of 128 bytes, scores of 256 classes. Two ranks are
// two processes on either side, one thread each. SKEIN_BENCH_ROUNDS rounds in turns (default 5).

#include "bench.hpp"
#include "other_programs.hpp"

#include <skein/data/draws.hpp>
#include <skein/metrics/classification.hpp>
#include <skein/metrics/confusion_matrix.hpp>
#include <skein/metrics/curves.hpp>
#include <skein/metrics/metric_list.hpp>
#include <skein/metrics/perplexity.hpp>
#include <skein/program/run_options.hpp>
#include <skein/train/collective.hpp>
#include <skein/train/run.hpp>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/core.h>

namespace metrics_bench {

namespace metrics = skein::metrics;
using metrics::average;

constexpr std::size_t rows = 1024, classes = 256;

metrics::metric_list eighteen() {
    metrics::metric_list all;
    const auto add = [&]<class M>(const char* name, M made) { all.add(name, made); };
    for (const auto& [how, name] : {std::pair{average::micro, "micro"},
                                    {average::macro, "macro"},
                                    {average::weighted, "weighted"}}) {
        const std::string of = name;
        all.add("accuracy_" + of, metrics::accuracy{.classes = classes, .average = how});
        all.add("precision_" + of, metrics::precision{.classes = classes, .average = how});
        all.add("recall_" + of, metrics::recall{.classes = classes, .average = how});
        all.add("f1_" + of, metrics::f1{.classes = classes, .average = how});
    }
    add("top5", metrics::accuracy{.classes = classes, .top_k = 5});
    add("fbeta", metrics::fbeta{.beta = 2, .classes = classes, .average = average::macro});
    add("specificity", metrics::specificity{.classes = classes, .average = average::macro});
    add("jaccard", metrics::jaccard{.classes = classes, .average = average::macro});
    add("confusion", metrics::confusion_matrix{.classes = classes});
    add("perplexity", metrics::perplexity{});
    return all;
}
/// Areas under curves cost torchmetrics much more than all others, so they stand by themselves.
metrics::metric_list curves() {
    metrics::metric_list all;
    all.add("auroc", metrics::auroc{.classes = classes});
    all.add("average_precision", metrics::average_precision{.classes = classes});
    return all;
}

struct batch {
    std::vector<float> scores = std::vector<float>(rows * classes);
    std::vector<std::int64_t> labels = std::vector<std::int64_t>(rows);

    explicit batch(std::uint64_t seed) {
        skein::data::draws random(seed, 0, 0, 0);
        random.fill_normal(scores);
        for (auto& each : labels) each = static_cast<std::int64_t>(random.integer(classes));
    }
    [[nodiscard]] metrics::samples shown() const {
        return {.preds = {scores.data(), {rows, classes}},
                .target = {labels.data(), {rows}},
                .weight = {}};
    }
};

/// Milliseconds of one side's measurement.
struct times {
    double update = 0, curves = 0, merge = 0;
};

/// On each of two ranks.
times measure(skein::train::context& ctx) {
    auto mine = eighteen(), all = mine, mine_too = curves(), all_too = mine_too;
    const batch one(static_cast<std::uint64_t>(ctx.rank()));
    constexpr int updates = 20, merges = 10;
    const auto update = [&](metrics::metric_list& of) {
        of.update(one.shown());
        return 1e3 / updates * bench::seconds([&] {
                   for (int i = 0; i < updates; ++i) of.update(one.shown());
               });
    };
    times out{.update = update(mine), .curves = update(mine_too)};
    for (int i = 0; i < merges; ++i) {
        double here = 0; // both begin together
        skein::train::all_reduce(ctx, std::span(&here, 1), skein::dist::reduce_op::sum);
        out.merge += 1e3 / merges * bench::seconds([&] {
                         skein::train::merge(ctx, mine, all, "bench", true);
                         skein::train::merge(ctx, mine_too, all_too, "bench", true);
                         (void)all.compute();
                         (void)all_too.compute();
                     });
        mine.update(one.shown());
        mine_too.update(one.shown());
    }
    return out;
}

std::optional<times> python() {
    const char* const at = std::getenv("SKEIN_PYTHON");
    if (at == nullptr) return std::nullopt;
    skein::proc::process_options how;
    how.argv = {at, SKEIN_BENCH_SOURCE_DIR "/metrics_torchmetrics.py"};
    how.env = {{"OMP_NUM_THREADS", "1"}};
    std::istringstream said(bench::output_of(how).value_or(""));
    times found;
    for (std::string key, value; said >> key >> value;) {
        if (key == "update") found.update = std::strtod(value.c_str(), nullptr);
        if (key == "curves") found.curves = std::strtod(value.c_str(), nullptr);
        if (key == "merge") found.merge = std::strtod(value.c_str(), nullptr);
    }
    return found.update > 0 ? std::optional(found) : std::nullopt;
}

/// Milliseconds of a step of the GPT example with the same batch, by the benchmark beside this one.
std::optional<double> gpt_step() {
    const auto program =
        std::filesystem::read_symlink("/proc/self/exe").parent_path() / "torch_gpt";
    if (!std::filesystem::exists(program)) return std::nullopt;
    skein::proc::process_options how;
    how.argv = {program.string(), "--mode", "single", "--workers", "1", "--batch", "8"};
    const auto said = bench::output_of(how).value_or("");
    const auto at = said.find("\"tokens_per_s\":");
    if (at == said.npos) return std::nullopt;
    return 1e3 * rows / std::strtod(said.c_str() + at + 15, nullptr);
}

} // namespace metrics_bench

int main() {
    skein::serve_if_worker();
    using namespace metrics_bench;
    const char* const asked = std::getenv("SKEIN_BENCH_ROUNDS");
    const int rounds = asked != nullptr ? std::atoi(asked) : 5;
    skein::run_config config;
    config.scaling.workers = 2;
    config.output = skein::train::output_mode::quiet;
    std::vector<times> mine, theirs;
    std::vector<double> step;
    for (int i = 0; i < rounds; ++i) {
        const auto ours = skein::train::run<&measure>(config);
        if (!ours.ok()) {
            fmt::print(stderr, "error: {}\n", ours.error().what());
            return 1;
        }
        mine.push_back(ours.value());
        if (const auto other = python()) theirs.push_back(*other);
        if (const auto one = gpt_step()) step.push_back(*one);
    }
    const auto median = [](const std::vector<times>& of, double times::* what) {
        std::vector<double> values;
        for (const auto& each : of) values.push_back(each.*what);
        return bench::summary(values).median;
    };
    const auto print = [&](const char* name, double times::* what, double bar) {
        bench::figure line(name, median(mine, what), "ms");
        if (theirs.empty()) return line.print();
        return std::move(line)
            .against("torchmetrics on Gloo", median(theirs, what))
            .at_most(bar)
            .print();
    };
    print("metrics.update_18", &times::update, 1.0 / 3);
    print("metrics.update_2_curves", &times::curves, 1.0 / 3);
    print("metrics.merge_and_compute_20", &times::merge, 1.0 / 20);
    const double all = median(mine, &times::update) + median(mine, &times::curves);
    bench::figure share("metrics.20_of_a_gpt_step", all, "ms");
    if (step.empty()) return share.print() ? 0 : 1;
    (void)std::move(share)
        .against("a step of the 3.3M GPT", bench::summary(step).median)
        .at_most(0.01)
        .print();
}
