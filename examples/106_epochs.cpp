// SPDX-License-Identifier: Apache-2.0
// A loop with epochs of its own, and sums over all ranks and an epoch's steps.
//
//     106_epochs            or srun -n 2, mpirun -n 2, torchrun --no-python --nproc-per-node 2
//
// A run that was interrupted goes on amid its epoch, and the sums with it.

#include <skein/train.hpp>

#include <fmt/core.h>

// Samples by number: points, and on which side of a curve they lie.
struct sides {
    struct points {
        torch::Tensor x_B2, label_B;
    };
    std::uint64_t size() const { return 512; }
    points batch(std::span<const std::uint64_t> ids) const {
        const auto many = static_cast<std::int64_t>(ids.size());
        points out{torch::empty({many, 2}), torch::empty({many}, torch::kLong)};
        for (std::int64_t i = 0; i < many; ++i) {
            const auto id = ids[static_cast<std::size_t>(i)];
            const float x = static_cast<float>(id % 32) / 16.0f - 1.0f;
            const float y = static_cast<float>(id / 32) / 8.0f - 1.0f;
            out.x_B2[i][0] = x;
            out.x_B2[i][1] = y;
            out.label_B[i] = y > x * x - 0.5f ? 1 : 0;
        }
        return out;
    }
};

int main() {
    skein::run_config run{.epochs = 3, .global_batch = 32};
    run.max_steps = 0;
    run.write_files = run.checkpoint.enabled = false;
    run.output = skein::train::output_mode::quiet;
    return skein::train::launch(run, [&](skein::train::context& ctx) {
        skein::Trainer<skein::DDP<>> trainer(ctx, run);
        torch::manual_seed(run.seed);
        torch::nn::Sequential net(torch::nn::Linear(2, 32), torch::nn::Tanh(),
                                  torch::nn::Linear(32, 2));
        const sides data;
        const skein::train::constant_rate rate{2e-2};

        // [epochs]
        auto session = trainer.open(net, skein::AdamW{}, rate);
        skein::train::accumulator a(session);
        for (auto& epoch : skein::train::remaining_epochs_until(session, 3, data)) {
            for (auto& step : epoch)
                for (auto& micro : step) {
                    const auto scores_BK = net->forward(micro.x_B2);
                    session.backward(torch::cross_entropy_loss(scores_BK, micro.label_B));
                    const auto right_B = scores_BK.argmax(1).eq(micro.label_B);
                    a["correct"] += right_B.sum().item<double>();
                    a["total"] += static_cast<double>(micro.label_B.size(0));
                }
            const auto sums = a.synchronized(); // over all ranks and the steps of this epoch
            if (ctx.is_first())
                fmt::print("epoch {}: {} points, more than half of them right: {}\n",
                           epoch.number(), sums["total"], 2 * sums["correct"] > sums["total"]);
        }
        (void)session.finish();
        // [/epochs]
    });
}
