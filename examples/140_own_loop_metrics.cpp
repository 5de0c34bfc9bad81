// SPDX-License-Identifier: Apache-2.0
// Metrics in a training loop of your own, and the run's result in the caller's hands.
//
//     140_own_loop_metrics
//
// Two workers train to tell two noisy clouds of points apart. main() behind run<>() goes on in the caller
// alone, with what the loop returned and what it measured.

#include <skein/data/draws.hpp>
#include <skein/metrics/classification.hpp>
#include <skein/metrics/curves.hpp>
#include <skein/program/run_options.hpp>
#include <skein/train.hpp>
#include <skein/train/run.hpp>

#include <fmt/core.h>

namespace metrics = skein::metrics;

// Samples by number: points around (1, 1) and (-1, -1).
struct clouds {
    struct points {
        torch::Tensor x_B2, label_B;
    };
    std::uint64_t first = 0, count = 0;
    std::uint64_t size() const { return count; }
    points batch(std::span<const std::uint64_t> ids) const {
        points out{torch::empty({static_cast<std::int64_t>(ids.size()), 2}),
                   torch::empty({static_cast<std::int64_t>(ids.size())}, torch::kLong)};
        for (std::size_t i = 0; i < ids.size(); ++i) {
            skein::data::draws random(1, 0, first + ids[i], 0);
            const bool one = random.flip(0.5);
            for (int d = 0; d < 2; ++d)
                out.x_B2.data_ptr<float>()[2 * i + d] =
                    (one ? 1.0f : -1.0f) + 1.2f * random.normal();
            out.label_B.data_ptr<std::int64_t>()[i] = one;
        }
        return out;
    }
};

using Net = torch::nn::Sequential;

// [loop]
struct hyper {
    double lr = 0.0;
};
struct outcome {
    double accuracy = 0.0;
    std::uint64_t seen = 0;
};

outcome loop(skein::train::context& ctx, skein::run_config config, hyper how) {
    skein::Trainer<skein::DDP<>> trainer(ctx, config);
    trainer.measure({metrics::on("train", metrics::accuracy{}),
                     metrics::on("val", metrics::accuracy{}, metrics::auroc{})});
    torch::manual_seed(config.seed);
    Net net(torch::nn::Linear(2, 8), torch::nn::Tanh(), torch::nn::Linear(8, 1));
    const auto loss = [](Net& model, const clouds::points& b, skein::train::stage& stage) {
        const auto chance_B = model->forward(b.x_B2).sigmoid().squeeze(1);
        stage.update(chance_B, b.label_B);
        return torch::binary_cross_entropy(chance_B, b.label_B.to(torch::kFloat));
    };
    const clouds data{0, 1024}, held_out{1024, 256};
    auto session = trainer.open(net, skein::AdamW{}, skein::train::constant_rate{how.lr});
    session.evaluate_on(net, loss, held_out);
    outcome out;
    for (auto& step : session.steps(data)) {
        for (auto& micro : step) {
            session.backward(loss(net, micro, session.stage()));
            session.report(
                {{"seen", skein::report::sum(static_cast<double>(micro.label_B.numel()))}});
        }
    }
    const auto result = session.finish();
    out.accuracy = *skein::report::find_metric(result.metrics, "val_accuracy");
    out.seen = result.steps * static_cast<std::uint64_t>(config.global_batch);
    return out;
}
// [/loop]

int main() {
    // [run]
    skein::serve_if_worker(); // ranks of the run enter the loop here
    skein::run_config config{.name = "clouds", .epochs = 3, .global_batch = 64};
    config.output = skein::train::output_mode::quiet;
    config.scaling.workers = 2;
    config.checkpoint.keep_best = {.metric = "val_auroc",
                                   .order = skein::train::metric_order::highest};
    const auto result = skein::train::run<&loop>(config, hyper{.lr = 0.02});
    if (!result.ok()) {
        fmt::print(stderr, "error: {}\n", result.error().what());
        return 1;
    }
    fmt::print("{} points by {} workers\n", result.value().seen, result.world_size);
    fmt::print("accuracy {:.2f}, best {} {:.2f}\n", result.value().accuracy, result.best->name,
               result.best->value);
    // [/run]
    fmt::print("rows of train_accuracy: {}\n", result.history().at("train_accuracy").size());
}
