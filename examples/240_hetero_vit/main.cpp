// SPDX-License-Identifier: Apache-2.0
// A Vision Transformer fed by a pipeline whose rows are made by the rank's threads and by helpers.
//
//     240_hetero_vit --steps 20 --helpers 1
//
// Images are normal draws, blurred ten times; labels are the sample's number mod 1000. Helpers are
// child processes, or, with SKEIN_ADDRESS, actors on the nodes of a cluster. The numbers are the
// same with and without them: --digest prints a hash over all rows that were trained on.

#include <skein/core/sha256.hpp>
#include <skein/data/blur_operator.hpp>
#include <skein/data/pipeline.hpp>
#include <skein/models/vit.hpp>
#include <skein/program/run_options.hpp>
#include <skein/report/summary.hpp>
#include <skein/train/collective.hpp>
#include <skein/train/ddp.hpp>
#include <skein/train/feed.hpp>
#include <skein/train/launch.hpp>
#include <skein/train/reporter.hpp>
#include <skein/train/trainer.hpp>

#include <CLI/CLI.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

namespace {

namespace data = skein::data;
namespace models = skein::models;

// [rows]
// A row of the pipeline: a plain struct.
struct sample {
    data::image<float, 3> pixels;
    std::int64_t label = 0, id = 0;
};
/// What the loss gets: one tensor per field.
struct points {
    torch::Tensor pixels_BCHW, label_B, id_B;
};

/// Reads sample i: its number and the size of its image; what a helper needs travels with it.
struct numbers {
    std::uint64_t count = 0;
    std::int32_t image = 224;

    std::uint64_t size() const { return count; }
    sample read(std::uint64_t i) const {
        const auto number = static_cast<std::int64_t>(i);
        return {data::make_image<float, 3>(image, image), number % 1000, number};
    }
    std::string describe() const { return fmt::format("numbers({}, {})", count, image); }
};
// `random` is a function of (seed, epoch, sample, operator): every machine draws the same numbers.
sample draw(sample s, data::draws& random) {
    random.fill_normal(s.pixels.values());
    return s;
}
// [/rows]

struct program_options {
    models::vit_options model{.layers = 2, .heads = 4, .dim = 64};
    skein::run_config run;
    data::helpers helpers;
    std::int64_t samples = 100'000;
    int threads = 2;
    std::int64_t budget_mib = 512;
    bool as_written = false, digest = false;
    double lr = 0.01;
};

/// Over all rows that the ranks trained on, in any order: exclusive or of a hash per row.
struct digest {
    std::array<std::uint8_t, 32> sum{};
    void add(const points& b) {
        const auto ids = b.id_B.contiguous(), pixels = b.pixels_BCHW.contiguous();
        const auto bytes =
            static_cast<std::size_t>(pixels.numel() / std::max<std::int64_t>(1, pixels.size(0))) *
            sizeof(float);
        for (std::int64_t i = 0; i < ids.size(0); ++i) {
            skein::sha256 hash;
            hash.update(skein::as_bytes(std::span(ids.data_ptr<std::int64_t>() + i, 1)));
            hash.update({reinterpret_cast<const std::byte*>(pixels.data_ptr<float>()) +
                             std::size_t(i) * bytes,
                         bytes});
            const auto one = hash.finish(); // 32 bytes
            for (std::size_t k = 0; k < sum.size(); ++k)
                sum[k] ^= static_cast<std::uint8_t>(one[k]);
        }
    }
};

template <class Pipeline>
void train_on(skein::train::context& ctx, const program_options& o, Pipeline images) {
    skein::Trainer<skein::DDP<>> trainer(ctx, o.run);
    torch::manual_seed(o.run.seed);
    models::ViT model(o.model);
    // [feed]
    const skein::train::feed_options how{.threads = o.threads,
                                         .budget = static_cast<std::size_t>(o.budget_mib) << 20};
    auto [seen, held_out] = data::split(std::move(images), 0.998);
    auto batches = skein::train::feed<points>(ctx, o.run, std::move(seen) | data::shuffle(), how);
    auto test = skein::train::numbered<points>(ctx, o.run, std::move(held_out), how);
    // [/feed]
    digest rows;
    const auto loss = [&](models::ViT& net, const points& b) {
        if (o.digest && net->is_training()) rows.add(b);
        return torch::nn::functional::cross_entropy(net->forward(b.pixels_BCHW), b.label_B);
    };
    trainer.describe(
        {{"image", o.model.image}, {"dim", o.model.dim}, {"layers", o.model.layers}, {"lr", o.lr}});
    const auto result = trainer.fit(model, skein::SGD{.momentum = 0.9},
                                    skein::train::constant_rate{o.lr}, loss, batches, test);
    const auto all = skein::train::gather_bytes(ctx, std::as_bytes(std::span(rows.sum)));
    if (!ctx.is_first()) return;
    const bool say = o.run.output != skein::train::output_mode::quiet;
    if (say)
        fmt::print("{}", skein::report::summary_text(skein::train::summarize(ctx, o.run, result)));
    if (say) fmt::print("{}", batches.stats().text());
    if (o.digest) {
        digest whole;
        for (const auto& each : all)
            for (std::size_t k = 0; k < each.size(); ++k)
                whole.sum[k] ^= static_cast<std::uint8_t>(each[k]);
        fmt::print("rows {}\n", skein::to_hex(std::as_bytes(std::span(whole.sum))));
        fmt::print("loss {:.17g}\n", result.loss);
    }
}

void train(skein::train::context& ctx, const program_options& o) {
    // [plan]
    const numbers source{static_cast<std::uint64_t>(o.samples),
                         static_cast<std::int32_t>(o.model.image)};
    constexpr auto blur = data::blur<&sample::pixels>({.taps = 11, .least = 0.1f, .most = 2.0f});
    auto drawn = source | data::map<&draw>();
    if (o.as_written)
        train_on(ctx, o,
                 std::move(drawn) | data::repeat<10>(data::apart(blur)) | data::on(o.helpers));
    else
        train_on(ctx, o, std::move(drawn) | data::repeat<10>(blur) | data::on(o.helpers));
    // [/plan]
}

} // namespace

int main(int argc, char** argv) {
    skein::serve_if_worker(); // a helper is this program, too: it lives here, before any parsing
    program_options o;
    o.run.name = "hetero_vit";
    o.run.max_steps = 20;
    o.run.global_batch = 64;
    o.run.eval_every = 0;
    o.run.checkpoint.every = 0;
    bool resume = false, quiet = false, plain = false;
    CLI::App app("Trains a small Vision Transformer on images that threads and helpers make.");
    app.option_defaults()->always_capture_default();
    app.add_option("--workers", o.run.scaling.workers, "processes that train together");
    app.add_option("--steps", o.run.max_steps, "optimizer steps");
    app.add_option("--batch", o.run.global_batch, "images per step, over all workers");
    app.add_option("--accumulate", o.run.accumulation, "micro-batches per step and worker");
    app.add_option("--helpers", o.helpers.most, "helpers of each worker");
    app.add_option("--helper-cpus", o.helpers.cpus, "cores of each helper");
    app.add_option("--on", o.helpers.on, "only on nodes with these labels: role=cpu");
    app.add_option("--threads", o.threads, "threads of each worker that make images");
    app.add_option("--samples", o.samples, "images of an epoch");
    app.add_option("--image", o.model.image, "height and width");
    app.add_option("--dim", o.model.dim, "width of the model");
    app.add_option("--layers", o.model.layers, "transformer blocks");
    app.add_option("--lr", o.lr, "learning rate");
    app.add_option("--budget", o.budget_mib, "MiB of batches that are made ahead");
    app.add_option("--seed", o.run.seed, "of weights, order and images");
    app.add_option("--checkpoint-every", o.run.checkpoint.every, "steps between checkpoints");
    app.add_option("--run", o.run.name, "name of the run's folder");
    app.add_option("--runs", o.run.runs_dir, "folder that holds the runs");
    app.add_flag("--as-written", o.as_written,
                 "ten blurs one after the other, not folded into one");
    app.add_flag("--digest", o.digest, "print a hash over all rows that were trained on");
    app.add_flag("--resume", resume, "go on from the run's newest checkpoint");
    app.add_flag("--plain", plain, "plain lines, no live line");
    app.add_flag("--quiet", quiet, "only errors");
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& stop) {
        return app.exit(stop) == 0 ? 0 : 2;
    }
    if (plain) o.run.output = skein::train::output_mode::plain;
    if (quiet) o.run.output = skein::train::output_mode::quiet;
    if (resume) o.run.resume = skein::train::resume_mode::latest;
    o.run.command = skein::train::command_line();
    o.model.mlp_dim = 4 * o.model.dim;
    if (o.model.image < 16 || o.model.image % o.model.patch != 0 || o.samples < 1) {
        fmt::print(
            stderr,
            "error: images of {0} x {0}, {1} of them; use a multiple of {2}, and at least one\n",
            o.model.image, o.samples, o.model.patch);
        return 2;
    }
    if (o.model.dim < 1 || o.model.dim % o.model.heads != 0 || o.model.layers < 1) {
        fmt::print(stderr,
                   "error: {} layers of width {} with {} heads; use one or more, and a multiple\n",
                   o.model.layers, o.model.dim, o.model.heads);
        return 2;
    }
    return skein::train::launch(o.run, [&](skein::train::context& ctx) { train(ctx, o); });
}
