// SPDX-License-Identifier: Apache-2.0
// A training that goes on while workers are lost, leave and join: a small network of convolutions
// on digits.
//
//     300_elastic_mnist --workers 1:4              between one and four; starts four
//     300_elastic_mnist --workers 1:4 --data DIR   MNIST's files instead of drawn digits
//     300_elastic_mnist --workers 1:4 --logical-shards 8   the same bits, whatever happened
//
// Kill any worker meanwhile (their process ids are in the lines of the run), with kill -9 too: the
// others keep their processes and redo the step, a new one starts and joins them. The last screen
// has the accuracy, and how many digits were learned from exactly once in the last pass.

#include "../130_metrics_manager/digits.hpp"
#include "net.hpp"

#include <skein/metrics/metrics_manager.hpp>
#include <skein/report/summary.hpp>
#include <skein/train.hpp>
#include <skein/train/evaluation.hpp>
#include <skein/train/reporter.hpp>

#include <CLI/CLI.hpp>

#include <fmt/core.h>

#include <cstdint>
#include <memory>
#include <string>

namespace {

namespace metrics = skein::metrics;

// ---- what is measured ---------------------------------------------------------------------------

// [once]
/// How many samples were learned from exactly once. A step that was taken back does not count.
struct seen_once {
    static constexpr std::string_view name = "seen_once";
    std::uint64_t samples = 0;
    metrics::summed times{}; // of each sample

    void begin() { times.resize(samples); }
    void update(const metrics::samples& shown) {
        for (std::size_t i = 0; i < shown.target.size(); ++i)
            times[static_cast<std::size_t>(shown.target[i])] += 1;
    }
    double compute() const {
        double once = 0;
        for (std::size_t i = 0; i < samples; ++i) once += times[i] == 1 ? 1 : 0;
        return once;
    }
};
// [/once]

struct program_options {
    skein::run_config run;
    std::string data;
    std::uint64_t samples = 4000, test = 1000;
    std::int64_t width = 8;
    double lr = 0.05;
};

void print_results(const skein::train::fit_result& result, std::uint64_t samples, bool counts) {
    const auto value = [&](const char* name) {
        const auto* const found = skein::report::find_metric(result.metrics, name);
        return found != nullptr ? *found : 0.0;
    };
    fmt::print("accuracy of test {:.4f} behind {} steps\n", value("test_accuracy"), result.steps);
    if (counts)
        fmt::print("{} of {} digits were learned from exactly once in the last pass\n",
                   value("train_epoch_seen_once"), samples);
}

// ---- the run ------------------------------------------------------------------------------------

void train(skein::train::context& ctx, const program_options& o) {
    const auto all = std::make_shared<const digits::collection>(
        o.data.empty() ? digits::draw(o.samples + o.test, o.run.seed) : digits::read(o.data));
    const std::uint64_t there = all->labels.size();
    if (there <= o.test)
        throw skein::error(skein::errc::usage,
                           fmt::format("{} digits, {} of them for the test", there, o.test))
            .with_hint("give fewer by --test");
    const digits::part data{all, 0, there - o.test}, test{all, there - o.test, o.test};

    // [run]
    // Metrics are summed by rank, so a run whose bits do not depend on ranks has none.
    const bool counts = o.run.scaling.logical_shards == 0;
    const auto loss = [&](Net& net, const digits::batch& b, skein::train::stage& stage) {
        const auto scores_BK = net->forward(b.pictures_B1HW);
        const auto right_B = scores_BK.argmax(1).eq(b.label_B);
        stage.mean("accuracy", right_B.to(torch::kDouble).mean().item<double>());
        if (counts && stage.is_training()) {
            const std::vector<std::int64_t> ids(b.ids.begin(), b.ids.end());
            stage.update("seen_once", torch::tensor(ids), torch::tensor(ids));
        }
        return torch::nn::functional::cross_entropy(scores_BK, b.label_B);
    };
    skein::Trainer<skein::Elastic<skein::DDP<>>> trainer(ctx, o.run);
    if (counts) trainer.measure({metrics::on("train", seen_once{.samples = data.count})});
    torch::manual_seed(o.run.seed);
    Net net(o.width);
    const auto steps = skein::train::total_steps(o.run, data.count);
    const skein::train::warmup_cosine rate{.peak = o.lr, .warmup = steps / 20, .total = steps};
    const auto result = trainer.fit(net, skein::SGD{.momentum = 0.9}, rate, loss, data,
                                    skein::evaluation("test", test));
    // [/run]
    if (!ctx.is_first() || o.run.output == skein::train::output_mode::quiet) return;
    fmt::print("{}", skein::report::summary_text(skein::train::summarize(ctx, o.run, result)));
    print_results(result, data.count, counts);
}

} // namespace

int main(int argc, char** argv) {
    program_options o;
    o.run.name = "elastic";
    o.run.epochs = 3;
    o.run.max_steps = 0;
    o.run.last = skein::train::last_batch::shorten;
    o.run.global_batch = 64;
    o.run.clip = 0;
    o.run.eval_every = 50;
    o.run.eval_batch = 250;
    o.run.checkpoint.keep_best.metric = "test_loss";
    bool resume = false, plain = false;
    CLI::App app("Trains a small network on digits while workers are lost, leave and join.");
    app.option_defaults()->always_capture_default();
    app.add_option("--data", o.data, "folder with MNIST's files, unpacked; else digits are drawn");
    app.add_option("--samples", o.samples, "drawn digits to train on");
    app.add_option("--test", o.test, "digits for the test, the last ones");
    app.add_option("--workers", o.run.scaling.workers,
                   "processes that train together: N, or MIN:MAX");
    app.add_option("--logical-shards", o.run.scaling.logical_shards,
                   "slices of the batch, for the same bits with any number of workers");
    app.add_option("--max-failures", o.run.failure.max_failures, "losses before the job gives up");
    app.add_option("--epochs", o.run.epochs, "passes over the digits")->check(CLI::PositiveNumber);
    app.add_option("--steps", o.run.max_steps, "so many steps in place of --epochs");
    app.add_option("--batch", o.run.global_batch, "digits per step, over all workers");
    app.add_option("--width", o.width, "channels of the first convolution")
        ->check(CLI::PositiveNumber);
    app.add_option("--lr", o.lr, "peak of the learning rate");
    app.add_option("--seed", o.run.seed, "of weights, order, dropout and drawn digits");
    app.add_option("--eval-every", o.run.eval_every, "steps between evaluations; 0: at the end");
    app.add_option("--checkpoint-every", o.run.checkpoint.every, "steps between checkpoints");
    app.add_option("--name", o.run.name, "of the run's folder");
    app.add_option("--runs-dir", o.run.runs_dir, "folder that holds the runs");
    app.add_flag("--resume", resume, "go on from the run's newest checkpoint");
    app.add_flag("--plain", plain, "plain lines, no live line");
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& stop) {
        return app.exit(stop) == 0 ? 0 : 2;
    }
    if (o.run.max_steps > 0) o.run.epochs = 0;
    if (plain) o.run.output = skein::train::output_mode::plain;
    if (resume) o.run.resume = skein::train::resume_mode::latest;
    o.run.command = skein::train::command_line();
    o.run.name_flag = "--name";
    return skein::train::launch(o.run, [&](skein::train::context& ctx) { train(ctx, o); });
}
