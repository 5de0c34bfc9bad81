// SPDX-License-Identifier: Apache-2.0
// A training whose batch follows its gradients: the network of 300_elastic_mnist on digits.
//
//     320_adaptive_mnist --workers 2                    the batch grows from 64 as it pays
//     320_adaptive_mnist --workers 2 --fixed            the same run with 64 all through
//     320_adaptive_mnist --workers 1:4 --data DIR       MNIST's files, between one and four workers
//     320_adaptive_mnist --workers 2 --replay F --name again   with the decisions of a run's events.jsonl
//
// The run is over when it has come as far as --epochs of the first batch would, not when it has seen
// as many samples: `epoch` goes by progress. Each decision is a line with its numbers.

#include "../130_metrics_manager/digits.hpp"
#include "../300_elastic_mnist/net.hpp"

#include <skein/report/summary.hpp>
#include <skein/train.hpp>
#include <skein/train/adaptive_batch.hpp>
#include <skein/train/evaluation.hpp>
#include <skein/train/reporter.hpp>

#include <CLI/CLI.hpp>

#include <fmt/core.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace {

struct program_options {
    skein::run_config run;
    skein::adaptive_batch_options batch;
    bool fixed = false, adam = false;
    std::string data;
    std::uint64_t samples = 4000, test = 1000;
    std::int64_t width = 8;
    double lr = 0.05;
};

template <class Trainer>
skein::train::fit_result fit(Trainer& trainer, const program_options& o, const digits::part& data,
                             const digits::part& test) {
    const auto loss = [](Net& net, const digits::batch& b, skein::train::stage& stage) {
        const auto scores_BK = net->forward(b.pictures_B1HW);
        const auto right_B = scores_BK.argmax(1).eq(b.label_B);
        stage.mean("accuracy", right_B.to(torch::kDouble).mean().template item<double>());
        return torch::nn::functional::cross_entropy(scores_BK, b.label_B);
    };
    torch::manual_seed(o.run.seed);
    Net net(o.width);
    const auto steps = skein::train::total_steps(o.run, data.count);
    const skein::train::warmup_cosine rate{.peak = o.lr, .warmup = steps / 20, .total = steps};
    if (o.adam)
        return trainer.fit(net, skein::AdamW{}, rate, loss, data, skein::evaluation("test", test));
    return trainer.fit(net, skein::SGD{.momentum = 0.9}, rate, loss, data,
                       skein::evaluation("test", test));
}

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
    using strategy = skein::Elastic<skein::DDP<>>;
    const auto result = [&] {
        if (o.fixed) {
            skein::Trainer<strategy> trainer(ctx, o.run);
            return fit(trainer, o, data, test);
        }
        skein::Trainer<strategy, skein::adaptive_batch> trainer(ctx, o.run,
                                                                skein::adaptive_batch(o.batch));
        return fit(trainer, o, data, test);
    }();
    // [/run]
    if (!ctx.is_first() || o.run.output == skein::train::output_mode::quiet) return;
    fmt::print("{}", skein::report::summary_text(skein::train::summarize(ctx, o.run, result)));
    const auto* const accuracy = skein::report::find_metric(result.metrics, "test_accuracy");
    fmt::print("accuracy of test {:.4f} behind {} steps\n", accuracy != nullptr ? *accuracy : 0.0,
               result.steps);
}

} // namespace

int main(int argc, char** argv) {
    program_options o;
    o.run.name = "adaptive";
    o.run.epochs = 3;
    o.run.max_steps = 0;
    o.run.last = skein::train::last_batch::shorten;
    o.run.global_batch = 64;
    o.run.clip = 0;
    o.run.eval_every = 50;
    o.run.eval_batch = 250;
    o.run.checkpoint.keep_best.metric = "test_loss";
    o.batch.max = 1024;
    o.batch.every_seconds = 1.0;
    bool resume = false, plain = false;
    using goodput = skein::goodput::rate_rule;
    const std::map<std::string, goodput> rules{
        {"same", goodput::same},           {"adascale", goodput::adascale},
        {"adamscale", goodput::adamscale}, {"linear", goodput::linear},
        {"sqrt", goodput::sqrt},           {"legw", goodput::legw}};
    CLI::App app("Trains a small network on digits with a batch that follows its gradients.");
    app.option_defaults()->always_capture_default();
    app.add_option("--data", o.data, "folder with MNIST's files, unpacked; else digits are drawn");
    app.add_option("--samples", o.samples, "drawn digits to train on");
    app.add_option("--test", o.test, "digits for the test, the last ones");
    app.add_option("--workers", o.run.scaling.workers,
                   "processes that train together: N, or MIN:MAX");
    app.add_option("--logical-shards", o.run.scaling.logical_shards,
                   "slices of the batch, for the same bits with any number of workers");
    app.add_option("--max-failures", o.run.failure.max_failures, "losses before the job gives up");
    app.add_option("--epochs", o.run.epochs, "passes over the digits, as the first batch has them")
        ->check(CLI::PositiveNumber);
    app.add_option("--batch", o.run.global_batch, "digits of the first step, over all workers");
    app.add_option("--max", o.batch.max, "digits per step at most");
    app.add_option("--lo", o.batch.lo, "digits that a worker computes at once: at least");
    app.add_option("--hi", o.batch.hi, "and at most; 0: --max");
    app.add_flag("--accumulation", o.batch.accumulation, "several micro-batches per worker");
    app.add_option("--rule", o.batch.rate, "how the rate goes with the batch")
        ->transform(CLI::CheckedTransformer(rules));
    app.add_option("--decide-every", o.batch.every_seconds, "seconds between decisions");
    app.add_option("--decide-steps", o.batch.every_steps, "and steps");
    app.add_option("--smoothing", o.batch.smoothing, "of the averages of the noise, by step");
    app.add_option("--replay", o.batch.replay, "events.jsonl of a run: its decisions again");
    app.add_flag("--fixed", o.fixed, "the first batch all through");
    app.add_flag("--adam", o.adam, "AdamW in place of SGD with momentum");
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
    if (plain) o.run.output = skein::train::output_mode::plain;
    if (resume) o.run.resume = skein::train::resume_mode::latest;
    o.run.command = skein::train::command_line();
    o.run.name_flag = "--name";
    return skein::train::launch(o.run, [&](skein::train::context& ctx) { train(ctx, o); });
}
