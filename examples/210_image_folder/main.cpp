// SPDX-License-Identifier: Apache-2.0
// A ResNet on a folder of pictures: DIR/train/CLASS/*.jpg and DIR/val/CLASS/*.jpg, as ImageNet is laid
// out. Prints the accuracy on the pictures of val.
//
//     210_image_folder --data DIR
//     210_image_folder --make-data DIR      draws one with four shapes first, unless it is there
//
// Pictures are decoded, cropped and flipped by threads of each rank, and by helpers. A picture that
// cannot be decoded ends the run, or is left out with --skip N.

#include "shapes.hpp"

#include <skein/data/decode.hpp>
#include <skein/data/folder.hpp>
#include <skein/data/pipeline.hpp>
#include <skein/data/pixels.hpp>
#include <skein/data/resize.hpp>
#include <skein/models/resnet.hpp>
#include <skein/program/run_options.hpp>
#include <skein/report/summary.hpp>
#include <skein/train/callbacks.hpp>
#include <skein/train/ddp.hpp>
#include <skein/train/feed.hpp>
#include <skein/train/launch.hpp>
#include <skein/train/reporter.hpp>
#include <skein/train/trainer.hpp>

#include <CLI/CLI.hpp>

#include <fmt/core.h>

#include <cstdint>
#include <cstdio>
#include <string>

namespace {

namespace data = skein::data;
namespace models = skein::models;

// [rows]
struct sample {
    data::image<float, 3> pixels;
    std::int64_t label = 0;
};
struct points {
    torch::Tensor pixels_BCHW, label_B;
};

constexpr data::per_channel<3> mean{0.485f, 0.456f, 0.406f}, deviation{0.229f, 0.224f, 0.225f};

// Functions with fields: the fields travel to helpers.
struct augment {
    std::int32_t side = 224;
    sample operator()(const data::folder_file& f, data::draws& random) const {
        auto x = data::decode_image(f.content);
        x = data::random_resized_crop(x, side, side, random, {0.4f, 1.0f});
        if (random.uniform(0, 1) < 0.5f) x = data::flip_horizontal(x);
        return {data::to_float_normalized(x, mean, deviation), f.label};
    }
};
struct prepare {
    std::int32_t side = 224;
    sample operator()(const data::folder_file& f) const {
        const auto x = data::resize_short_side(data::decode_image(f.content), side * 8 / 7);
        return {data::to_float_normalized(data::center_crop(x, side, side), mean, deviation),
                f.label};
    }
};
// [/rows]

struct program_options {
    int layers = 18; // or 50
    std::int64_t width = 64;
    skein::run_config run;
    data::helpers helpers;
    std::string folder, make_data;
    std::int32_t image = 64;
    int threads = 0;
    int skip = 0;
    std::int64_t make_train = 2000, make_val = 400;
    double lr = 0.05;
};

/// Keeps the accuracy of the last evaluation.
struct accuracy_of {
    double* last;
    void on_eval(const skein::train::eval_info& e) const {
        for (const auto& each : *e.metrics)
            if (each.name == "val_accuracy") *last = each.value;
    }
};

void train(skein::train::context& ctx, program_options o) {
    // [plan]
    const data::image_folder seen(o.folder + "/train"), held_out(o.folder + "/val");
    if (seen.classes() != held_out.classes())
        throw skein::error(skein::errc::mismatch,
                           fmt::format("{0}/train has {1} classes, {0}/val has {2}, or others",
                                       o.folder, seen.classes().size(), held_out.classes().size()));
    const skein::train::feed_options how{.threads = o.threads, .bad_rows = o.skip};
    auto batches = skein::train::feed<points>(
        ctx, o.run, seen | data::map(augment{o.image}) | data::on(o.helpers) | data::shuffle(),
        how);
    auto test =
        skein::train::numbered<points>(ctx, o.run, held_out | data::map(prepare{o.image}), how);
    // [/plan]
    double accuracy = 0;
    skein::Trainer<skein::DDP<>, accuracy_of> trainer(ctx, o.run, accuracy_of{&accuracy});
    torch::manual_seed(o.run.seed);
    auto sizes = o.layers == 50 ? models::resnet50() : models::resnet18();
    sizes.width = o.width;
    sizes.classes = static_cast<std::int64_t>(seen.classes().size());
    models::ResNet model(sizes);
    const auto loss = [](models::ResNet& net, const points& b, skein::report::metric_set& metrics) {
        const auto logits_BK = net->forward(b.pixels_BCHW);
        if (!net->is_training())
            metrics.mean(
                "accuracy",
                logits_BK.argmax(1).eq(b.label_B).to(torch::kDouble).mean().item<double>());
        return torch::nn::functional::cross_entropy(logits_BK, b.label_B);
    };
    const auto steps = skein::train::total_steps(o.run, seen.size());
    const skein::train::warmup_cosine schedule{.peak = o.lr, .warmup = steps / 10, .total = steps};
    trainer.describe({{"layers", o.layers}, {"image", o.image}, {"lr", o.lr}});
    const auto result = trainer.fit(model, skein::SGD{.momentum = 0.9, .weight_decay = 1e-4},
                                    schedule, loss, batches, test);
    if (!ctx.is_first() || o.run.output == skein::train::output_mode::quiet) return;
    fmt::print("{}", skein::report::summary_text(skein::train::summarize(ctx, o.run, result)));
    fmt::print("{}", batches.stats().text());
    fmt::print("accuracy {:.1f} % of {} pictures\n", 100 * accuracy, held_out.size());
}

} // namespace

int main(int argc, char** argv) {
    skein::serve_if_worker(); // a helper is this program, too: it lives here, before any parsing
    program_options o;
    o.run.name = "image_folder";
    o.run.epochs = 5;
    o.run.global_batch = 64;
    o.run.eval_every = 0;
    o.run.checkpoint.every = 0;
    bool resume = false, plain = false;
    CLI::App app("Trains a ResNet on a folder of pictures.");
    app.option_defaults()->always_capture_default();
    auto* const given =
        app.add_option_group("pictures")->require_option(1); // one of the two, and only one
    given->add_option("--data", o.folder, "folder with train/CLASS and val/CLASS");
    given->add_option("--make-data", o.make_data,
                      "draw shapes of four classes there, unless it is there, and take it");
    app.add_option("--make-train", o.make_train, "pictures of train that --make-data draws");
    app.add_option("--make-val", o.make_val, "pictures of val that --make-data draws");
    app.add_option("--layers", o.layers, "18 or 50")->check(CLI::IsMember({18, 50}));
    app.add_option("--width", o.width, "channels behind the first convolution")
        ->check(CLI::Range(1, 1024));
    app.add_option("--image", o.image, "height and width")->check(CLI::Range(32, 4096));
    app.add_option("--workers", o.run.scaling.workers, "processes that train together");
    app.add_option("--epochs", o.run.epochs, "passes over the pictures")
        ->check(CLI::PositiveNumber);
    app.add_option("--batch", o.run.global_batch, "pictures per step, over all workers");
    app.add_option("--lr", o.lr, "peak of the learning rate");
    app.add_option("--helpers", o.helpers.most, "helpers of each worker");
    app.add_option("--on", o.helpers.on, "only on nodes with these labels: role=cpu");
    app.add_option("--threads", o.threads, "threads of each worker that make rows; 0: its cores");
    app.add_option("--skip", o.skip, "pictures that cannot be decoded and are left out");
    app.add_option("--seed", o.run.seed, "of weights, order and crops");
    app.add_option("--eval-every", o.run.eval_every, "steps between evaluations; 0: at the end");
    app.add_option("--checkpoint-every", o.run.checkpoint.every, "steps between checkpoints");
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
    if (!o.make_data.empty()) {
        o.folder = o.make_data;
        try {
            shapes::make(o.folder, o.make_train, o.make_val, 80);
        } catch (const skein::error& e) {
            fmt::print(stderr, "error: {}\n", e.what());
            return 1;
        }
    }
    return skein::train::launch(o.run, [&](skein::train::context& ctx) { train(ctx, o); });
}
