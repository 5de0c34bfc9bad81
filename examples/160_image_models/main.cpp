// SPDX-License-Identifier: Apache-2.0
// Networks of skein::models on images that are drawn by number: nothing is fetched.
//
//     160_image_models --model resnet50 --workers 2
//     160_image_models --model vit --workers 2 --strategy fsdp      the same bits
//
// The published networks but for their last layer, which has --classes outputs.

#include "images.hpp"

#include <skein/core/error.hpp>
#include <skein/core/with_commas.hpp>
#include <skein/models.hpp>
#include <skein/report/summary.hpp>
#include <skein/train/ddp.hpp>
#include <skein/train/evaluation.hpp>
#include <skein/train/fsdp.hpp>
#include <skein/train/launch.hpp>
#include <skein/train/reporter.hpp>
#include <skein/train/trainer.hpp>

#include <CLI/CLI.hpp>

#include <fmt/core.h>

#include <cstdint>
#include <cstdio>
#include <string>

namespace {

namespace models = skein::models;

struct program_options {
    skein::run_config run;
    std::string model = "resnet18", strategy = "ddp";
    std::int64_t image = 64, classes = 10;
    std::uint64_t samples = 4096, held_out = 0;
    double lr = 0.01;
};

/// What the model takes and costs, by the functions that need no module.
template <class Sizes>
std::string describe(const program_options& o, const Sizes& sizes) {
    double flops = 0;
    if constexpr (requires { sizes.image; })
        flops = models::flops_per_sample(sizes);
    else
        flops = models::flops_per_sample(sizes, o.image);
    return fmt::format("{}: {} parameters, {:.2f} GFLOP to train on an image of {} x {}", o.model,
                       skein::with_commas(std::uint64_t(models::parameter_count(sizes))),
                       flops / 1e9, o.image, o.image);
}

// [train]
template <class Strategy, class Model, class Sizes>
void train(skein::train::context& ctx, const program_options& o, const Sizes& sizes) {
    skein::Trainer<Strategy> trainer(ctx, o.run);
    torch::manual_seed(o.run.seed);
    auto model = trainer.build([&] { return Model(sizes); }); // what a rank owns of it, under FSDP
    const auto loss = [](Model& net, const drawn::pictures& b, skein::report::metric_set& metrics) {
        const torch::Tensor logits_NK = net->forward(b.images_NCHW);
        metrics.mean("accuracy",
                     logits_NK.argmax(1).eq(b.labels_N).to(torch::kDouble).mean().item<double>());
        return torch::nn::functional::cross_entropy(logits_NK, b.labels_N);
    };
    const drawn::images seen(0, o.samples, o.image, o.classes, o.run.seed);
    const drawn::images held_out(o.samples, o.held_out, o.image, o.classes, o.run.seed);
    const auto steps = skein::train::total_steps(o.run, seen.size());
    const skein::train::warmup_cosine rate{.peak = o.lr, .warmup = steps / 10, .total = steps};
    const auto result = trainer.fit(model, skein::SGD{.momentum = 0.9, .weight_decay = 1e-4}, rate,
                                    loss, seen, held_out);
    // [/train]
    if (ctx.is_first() && o.run.output != skein::train::output_mode::quiet)
        fmt::print("{}\n{}", describe(o, sizes),
                   skein::report::summary_text(skein::train::summarize(ctx, o.run, result)));
}

// [models]
template <class Model, class Block, class Sizes>
void train_by(skein::train::context& ctx, const program_options& o, Sizes sizes) {
    sizes.classes = o.classes;
    if constexpr (requires { sizes.image; }) sizes.image = o.image;
    if (o.strategy == "fsdp")
        return train<skein::FSDP<skein::auto_wrap<Block>>, Model>(ctx, o, sizes);
    train<skein::DDP<>, Model>(ctx, o, sizes);
}

void train_model(skein::train::context& ctx, const program_options& o) {
    using models::EfficientNet, models::ResNet, models::ViT;
    using models::MBConv, models::ResNetBlock, models::ViTBlock;
    if (o.model == "resnet18") return train_by<ResNet, ResNetBlock>(ctx, o, models::resnet18());
    if (o.model == "resnet50") return train_by<ResNet, ResNetBlock>(ctx, o, models::resnet50());
    if (o.model == "vit") return train_by<ViT, ViTBlock>(ctx, o, models::vit_b_16());
    if (o.model == "efficientnet_b0")
        return train_by<EfficientNet, MBConv>(ctx, o, models::efficientnet_b0());
    train_by<EfficientNet, MBConv>(ctx, o, models::efficientnet_b7());
}
// [/models]

/// What the parser cannot see.
///   errors  usage
void check(const program_options& o) {
    const auto refuse = [](std::string what, std::string hint) {
        throw skein::error(skein::errc::usage, std::move(what)).with_hint(std::move(hint));
    };
    if (o.model == "vit") {
        const auto patch = models::vit_b_16().patch;
        if (o.image % patch != 0)
            refuse(
                fmt::format("images of {0} x {0} for vit, which cuts them into pieces of {1} x {1}",
                            o.image, patch),
                fmt::format("use a multiple of {}", patch));
        return;
    }
    if (o.image < 32)
        refuse(fmt::format("images of {0} x {0} for {1}, which halves them five times", o.image,
                           o.model),
               "use 32 or more");
    const auto workers = std::max(1, o.run.scaling.workers.most);
    if (o.image == 32 && o.run.global_batch < std::int64_t{2} * workers)
        refuse(
            fmt::format("a batch of {} over {} workers: one image of 32 x 32 is one value of each "
                        "channel in the end, and the norms of {} need two",
                        o.run.global_batch, workers, o.model),
            "use larger images, or two of them for each worker");
}

} // namespace

int main(int argc, char** argv) {
    program_options o;
    o.run.name = "image_models";
    o.run.max_steps = 100;
    o.run.global_batch = 16;
    o.run.eval_every = 0;
    o.run.checkpoint.every = 0;
    o.run.clip = 0; // the norm's last bit may follow the strategy
    bool resume = false, plain = false, no_checkpoints = false;
    CLI::App app(
        "Trains a ResNet, an EfficientNet or a Vision Transformer on images drawn by number.");
    app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    app.option_defaults()->always_capture_default();
    app.add_option("--model", o.model, "the network")
        ->check(
            CLI::IsMember({"resnet18", "resnet50", "efficientnet_b0", "efficientnet_b7", "vit"}));
    app.add_option("--strategy", o.strategy, "ddp or fsdp")->check(CLI::IsMember({"ddp", "fsdp"}));
    app.add_option("--workers", o.run.scaling.workers, "processes that train together");
    app.add_option("--threads", o.run.scaling.threads, "compute threads per worker (0: one)");
    app.add_option("--steps", o.run.max_steps, "optimizer steps");
    app.add_option("--batch", o.run.global_batch, "images per step, over all workers");
    app.add_option("--image", o.image, "height and width")->check(CLI::Range(1, 4096));
    app.add_option("--classes", o.classes, "directions of stripes")->check(CLI::Range(2, 1000));
    app.add_option("--samples", o.samples, "images of an epoch")->check(CLI::PositiveNumber);
    app.add_option("--held-out", o.held_out,
                   "images of an evaluation at the end; it means little before the norms' "
                   "running statistics have settled");
    app.add_option("--lr", o.lr, "peak of the learning rate");
    app.add_option("--seed", o.run.seed, "of weights, order and images");
    app.add_option("--checkpoint-every", o.run.checkpoint.every, "steps between checkpoints");
    app.add_flag("--no-checkpoints", no_checkpoints, "write none");
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
    o.run.checkpoint.enabled = !no_checkpoints;
    o.run.command = skein::train::command_line();
    try {
        check(o);
    } catch (const skein::error& mistake) {
        fmt::print(stderr, "error: {}\n", mistake.what());
        return skein::train::exit_code_of(mistake);
    }
    return skein::train::launch(o.run, [&](skein::train::context& ctx) { train_model(ctx, o); });
}
