// SPDX-License-Identifier: Apache-2.0
// Training in one file: data, a model, a loss, and as many workers as you like.
//
//     100_train --workers 2
//
// The same program under torchrun, srun or mpirun joins their world instead of starting its own.

// [data]
#include <skein/train.hpp>

#include <fmt/core.h>

#include <cmath>

// Samples by number: the trainer decides which rank gets which. Here: points of a curve.
struct curve {
    struct points {
        torch::Tensor x_B1, y_B1;
    };
    std::uint64_t size() const { return 4096; }
    points batch(std::span<const std::uint64_t> ids) const {
        auto x_B1 = torch::empty({static_cast<std::int64_t>(ids.size()), 1});
        for (std::size_t i = 0; i < ids.size(); ++i)
            x_B1.data_ptr<float>()[i] = 6.2832f * static_cast<float>(ids[i]) / 4096.0f;
        return {x_B1, torch::sin(x_B1)};
    }
};
// [/data]

// [model]
// The model is plain LibTorch; nothing in it knows about workers.
using Net = torch::nn::Sequential;
Net make_net(std::uint64_t seed) {
    torch::manual_seed(seed);
    return Net(torch::nn::Linear(1, 64), torch::nn::GELU(), torch::nn::Linear(64, 64),
               torch::nn::GELU(), torch::nn::Linear(64, 1));
}
// [/model]

// [main]
int main(int argc, char** argv) {
    skein::run_config run{.name = "sine", .max_steps = 400, .global_batch = 64};
    if (argc == 3 && std::string_view(argv[1]) == "--workers") {
        run.scaling.workers = std::atoi(argv[2]); // a word is 0 workers, which launch() refuses
    } else if (argc != 1) {
        fmt::print(stderr, "usage: 100_train [--workers N]\n");
        return 2;
    }
    run.checkpoint.every = 100;

    return skein::train::launch(run, [&](skein::train::context& ctx) { // on every rank
        // [fit]
        auto net = make_net(run.seed);
        const auto loss = [](Net& model, const curve::points& b) {
            return torch::mse_loss(model->forward(b.x_B1), b.y_B1);
        };
        const skein::train::warmup_cosine schedule{.peak = 3e-3, .warmup = 20, .total = 400};

        skein::Trainer<skein::DDP<>> trainer(ctx, run);
        const auto result = trainer.fit(net, skein::AdamW{}, schedule, loss, curve{}, curve{});
        // [/fit]

        if (!ctx.is_first()) return;
        auto trained = make_net(0); // as in another program: the weights come from the run's folder
        skein::train::load_weights(*trained, run.runs_dir + "/" + result.run_name);
        trained->eval();
        const auto at = torch::tensor({{1.0f}});
        fmt::print("sin(1) = {:.2f}, the model says {:.2f}\n", std::sin(1.0),
                   trained->forward(at).item<float>());
    });
}
// [/main]
