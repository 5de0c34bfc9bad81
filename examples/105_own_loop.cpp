// SPDX-License-Identifier: Apache-2.0
// A training loop of your own, and the same run by fit(): equal bit for bit.
//
//     105_own_loop
//
// A session takes care of ranks, clipping, rows, checkpoints and resume; what is between draw and agree is
// yours. Here one step is taken back and done again, which changes nothing.

#include <skein/train.hpp>

#include <fmt/core.h>

// Samples by number: points of a curve.
struct curve {
    struct points {
        torch::Tensor x_B1, y_B1;
    };
    std::uint64_t size() const { return 256; }
    points batch(std::span<const std::uint64_t> ids) const {
        auto x_B1 = torch::empty({static_cast<std::int64_t>(ids.size()), 1});
        for (std::size_t i = 0; i < ids.size(); ++i)
            x_B1.data_ptr<float>()[i] = static_cast<float>(ids[i]) / 256.0f;
        return {x_B1, torch::sin(6.2832f * x_B1)};
    }
};

using Net = torch::nn::Sequential;
Net make_net(std::uint64_t seed) {
    torch::manual_seed(seed);
    return Net(torch::nn::Linear(1, 32), torch::nn::Tanh(), torch::nn::Dropout(0.1),
               torch::nn::Linear(32, 1));
}

int main() {
    skein::run_config run{.epochs = 5, .global_batch = 32, .accumulation = 2};
    run.write_files = run.checkpoint.enabled = false;
    run.output = skein::train::output_mode::quiet;
    const auto loss = [](Net& net, const curve::points& b) {
        return torch::mse_loss(net->forward(b.x_B1), b.y_B1);
    };
    const curve data;
    const skein::train::constant_rate rate{1e-2};

    return skein::train::launch(run, [&](skein::train::context& ctx) {
        skein::Trainer<skein::Single> trainer(ctx, run);

        // [loop]
        auto by_hand = make_net(run.seed);
        auto session = trainer.open(by_hand, skein::AdamW{}, rate);
        bool taken_back = false;
        for (auto& step : session.steps(data)) {
            for (auto& micro : step) session.backward(loss(by_hand, micro));
            if (step.number() == 7 && !std::exchange(taken_back, true)) session.redo();
        }
        const auto own = session.finish();
        // [/loop]

        auto by_fit = make_net(run.seed);
        const auto same = trainer.fit(by_fit, skein::AdamW{}, rate, loss, data, curve{});

        bool equal = own.loss == same.loss;
        for (std::size_t i = 0; i < by_fit->parameters().size(); ++i)
            equal = equal && torch::equal(by_hand->parameters()[i], by_fit->parameters()[i]);
        fmt::print("{} steps by hand, {} by fit(): {}\n", own.steps, same.steps,
                   equal ? "the same bits" : "they differ");
    });
}
