// SPDX-License-Identifier: Apache-2.0
// Metrics over training, validation and test data: digits, a small network of convolutions, and
// accuracy, macro F1 and the confusion matrix of each, merged over batches and workers.
//
//     130_metrics_manager --workers 2
//     130_metrics_manager --workers 2 --strategy fsdp
//     130_metrics_manager --data DIR          MNIST's files instead of drawn digits
//     130_metrics_manager --rules             the rate, the batch and the end follow the metrics
//
// Run alone it starts its own workers; under srun, mpirun or torchrun it joins their world.

#include "digits.hpp"

#include <skein/metrics/classification.hpp>
#include <skein/metrics/confusion_matrix.hpp>
#include <skein/metrics/metrics_manager.hpp>
#include <skein/report/summary.hpp>
#include <skein/train/batch_growth.hpp>
#include <skein/train/ddp.hpp>
#include <skein/train/evaluation.hpp>
#include <skein/train/fsdp.hpp>
#include <skein/train/launch.hpp>
#include <skein/train/loss_spike.hpp>
#include <skein/train/reduce_on_plateau.hpp>
#include <skein/train/reporter.hpp>
#include <skein/train/stop_at.hpp>
#include <skein/train/trainer.hpp>
#include <skein/train/unit.hpp>

#include <CLI/CLI.hpp>

#include <fmt/core.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

namespace {

namespace metrics = skein::metrics;

// ---- the model ----------------------------------------------------------------------------------

struct BlockImpl : torch::nn::Module {
    BlockImpl(std::int64_t from, std::int64_t to)
        : conv(torch::nn::Conv2dOptions(from, to, 3).padding(1)),
          norm(torch::nn::GroupNormOptions(4, to)) {
        register_module("conv", conv);
        register_module("norm", norm);
    }
    torch::Tensor forward(torch::Tensor x_BCHW) {
        return torch::max_pool2d(torch::relu(norm(conv(x_BCHW))), 2);
    }
    torch::nn::Conv2d conv;
    torch::nn::GroupNorm norm;
};
TORCH_MODULE_IMPL(Block, skein::unit<BlockImpl>);

struct NetImpl : torch::nn::Module {
    explicit NetImpl(std::int64_t width)
        : first(1, width), second(width, 2 * width), third(2 * width, 4 * width),
          out(4 * width * 9, 10) {
        register_module("first", first);
        register_module("second", second);
        register_module("third", third);
        register_module("out", out);
    }
    /// pictures [B, 1, 28, 28]; scores [B, 10]
    torch::Tensor forward(const torch::Tensor& x_B1HW) {
        return out(third(second(first(x_B1HW))).flatten(1));
    }
    Block first, second, third;
    torch::nn::Linear out;
};
TORCH_MODULE(Net);

// ---- the run ------------------------------------------------------------------------------------

struct program_options {
    skein::run_config run;
    std::string data, predictions, strategy = "ddp";
    bool rules = false;
    std::uint64_t samples = 6000, val = 1000, test = 1000;
    std::int64_t width = 8;
    double lr = 0.05, goal = 0.99;
};

/// Appends what the model said of each picture, for comparing with other implementations.
class prediction_log {
public:
    prediction_log(const std::string& path, int rank)
        : file_(path.empty() ? nullptr : std::fopen(fmt::format("{}.{}", path, rank).c_str(), "w"),
                &std::fclose) {}
    void add(const std::string& stage, const digits::batch& b, const torch::Tensor& scores_BK) {
        if (!file_) return;
        const auto scores = scores_BK.detach().contiguous();
        const auto* score = static_cast<const float*>(scores.const_data_ptr());
        for (std::size_t i = 0; i < b.ids.size(); ++i) {
            fmt::print(file_.get(), "{} {} {}", stage, b.ids[i],
                       b.label_B[static_cast<std::int64_t>(i)].item<std::int64_t>());
            for (int k = 0; k < 10; ++k) fmt::print(file_.get(), " {:.9g}", *score++);
            fmt::print(file_.get(), "\n");
        }
    }

private:
    std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

// [metrics]
/// The same of training, validation and test data.
skein::metrics_manager digit_metrics() {
    const auto of = [](const char* stage) {
        return metrics::on(stage, metrics::accuracy{.classes = 10},
                           metrics::f1{.classes = 10, .average = metrics::average::macro},
                           metrics::confusion_matrix{.classes = 10});
    };
    return {of("train"), of("val"), of("test")};
}
// [/metrics]

void print_results(const skein::train::fit_result& result) {
    const auto value = [&](const std::string& name) {
        const auto* const found = skein::report::find_metric(result.metrics, name);
        return found != nullptr ? *found : std::numeric_limits<double>::quiet_NaN();
    };
    fmt::print("{:<12}{:>10}{:>10}{:>10}\n", "", "loss", "accuracy", "macro F1");
    fmt::print("{:<12}{:>10.4f}{:>10.4f}{:>10.4f}\n", "train", result.loss,
               value("train_epoch_accuracy"), value("train_epoch_f1"));
    for (const std::string set : {"val", "test"})
        fmt::print("{:<12}{:>10.4f}{:>10.4f}{:>10.4f}\n", set, value(set + "_loss"),
                   value(set + "_accuracy"), value(set + "_f1"));
    for (const auto& each : result.arrays) {
        if (each.name != "test_confusion_matrix") continue;
        fmt::print("test: a row for each digit, a column for each prediction\n");
        for (std::size_t row = 0; row < each.shape[0]; ++row) {
            for (std::size_t k = 0; k < each.shape[1]; ++k)
                fmt::print("{:>5.0f}", each.values[row * each.shape[1] + k]);
            fmt::print("\n");
        }
    }
}

template <class Strategy, class... Rules>
void train(skein::train::context& ctx, const program_options& o, Rules... rules) {
    const auto all = std::make_shared<const digits::collection>(
        o.data.empty() ? digits::draw(o.samples + o.val + o.test, o.run.seed)
                       : digits::read(o.data));
    const std::uint64_t there = all->labels.size();
    if (there <= o.val + o.test)
        throw skein::error(skein::errc::usage, fmt::format("{} digits, {} of them for validation "
                                                           "and test",
                                                           there, o.val + o.test))
            .with_hint("give fewer by --val and --test");
    const auto count = there - o.val - o.test;
    const digits::part data{all, 0, count}, val{all, count, o.val},
        test{all, count + o.val, o.test}; // the last ones

    // [run]
    prediction_log said(o.predictions, ctx.rank());
    const auto loss = [&](Net& net, const digits::batch& b, skein::train::stage& stage) {
        const auto scores_BK = net->forward(b.pictures_B1HW);
        stage.update(scores_BK, b.label_B);
        said.add(stage.name(), b, scores_BK);
        return torch::nn::functional::cross_entropy(scores_BK, b.label_B);
    };
    skein::Trainer<Strategy, Rules...> trainer(ctx, o.run, rules...);
    trainer.measure(digit_metrics());
    torch::manual_seed(o.run.seed);
    Net net(o.width);
    const auto steps = skein::train::total_steps(o.run, count);
    const skein::train::warmup_cosine rate{.peak = o.lr, .warmup = steps / 20, .total = steps};
    const auto result =
        trainer.fit(net, skein::SGD{.momentum = 0.9}, rate, loss, data,
                    skein::evaluation("val", val), skein::evaluation("test", test, {.every = 0}));
    // [/run]
    if (ctx.is_first() && o.run.output != skein::train::output_mode::quiet) {
        fmt::print("{}", skein::report::summary_text(skein::train::summarize(ctx, o.run, result)));
        print_results(result);
    }
}

// [rules]
/// A lower rate and a larger batch when validation has stopped improving, no step whose loss jumps,
/// and an end when it is good enough.
template <class Strategy>
void train_by_rules(skein::train::context& ctx, const program_options& o) {
    const skein::reduce_on_plateau rate({.metric = "val_loss", .factor = 0.5, .patience = 2});
    const skein::batch_growth batch({.every_epochs = 2, .max = 4 * o.run.global_batch});
    const skein::loss_spike spike({.factor = 3});
    const skein::stop_at goal({.metric = "val_accuracy", .value = o.goal});
    train<Strategy>(ctx, o, rate, batch, spike, goal);
}
// [/rules]

} // namespace

int main(int argc, char** argv) {
    program_options o;
    o.run.name = "digits";
    o.run.epochs = 3;
    o.run.last = skein::train::last_batch::shorten;
    o.run.global_batch = 64;
    o.run.eval_every = 50;
    o.run.eval_batch = 250;
    o.run.checkpoint.every = 100;
    o.run.checkpoint.keep_best = {
        .k = 1, .metric = "val_accuracy", .order = skein::train::metric_order::highest};
    bool resume = false, plain = false;
    CLI::App app("Trains a small network on digits and measures it.");
    app.option_defaults()->always_capture_default();
    app.add_option("--data", o.data, "folder with MNIST's files, unpacked; else digits are drawn");
    app.add_option("--samples", o.samples, "drawn digits to train on");
    app.add_option("--val", o.val, "digits for validation, before those of the test");
    app.add_option("--test", o.test, "digits for the test, the last ones");
    app.add_option("--workers", o.run.scaling.workers, "processes that train together");
    app.add_option("--strategy", o.strategy, "ddp or fsdp")->check(CLI::IsMember({"ddp", "fsdp"}));
    app.add_option("--epochs", o.run.epochs, "passes over the digits")->check(CLI::PositiveNumber);
    app.add_option("--batch", o.run.global_batch, "digits per step, over all workers");
    app.add_option("--width", o.width, "channels of the first block, a multiple of 4");
    app.add_option("--lr", o.lr, "peak of the learning rate");
    app.add_option("--seed", o.run.seed, "of weights, order and drawn digits");
    app.add_option("--eval-every", o.run.eval_every, "steps between evaluations; 0: at the end");
    app.add_option("--checkpoint-every", o.run.checkpoint.every, "steps between checkpoints");
    app.add_flag("--rules", o.rules, "let the rate, the batch and the end follow the metrics");
    app.add_option("--goal", o.goal, "with --rules: accuracy of validation that ends the run");
    app.add_option("--predictions", o.predictions, "write scores to FILE.RANK");
    app.add_option("--run", o.run.name, "name of the run's folder");
    app.add_option("--runs", o.run.runs_dir, "folder that holds the runs");
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
    // [strategies]
    using fsdp = skein::FSDP<skein::auto_wrap<Block>>;
    using ddp = skein::DDP<>;
    const auto plain_body = o.strategy == "fsdp" ? train<fsdp> : train<ddp>;
    const auto with_rules = o.strategy == "fsdp" ? train_by_rules<fsdp> : train_by_rules<ddp>;
    // [/strategies]
    return skein::train::launch(o.run, [&](skein::train::context& ctx) {
        o.rules ? with_rules(ctx, o) : plain_body(ctx, o);
    });
}
