// SPDX-License-Identifier: Apache-2.0
#include <skein/train/loss.hpp>

#include <tests/train/train_support.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace train_test;

namespace {

/// A sample counts as often as its number says: 0 to 4 times.
at::Tensor counts_of(const sample_batch& b) {
    auto counts = torch::empty({static_cast<std::int64_t>(b.ids.size())});
    for (std::size_t i = 0; i < b.ids.size(); ++i)
        counts[static_cast<std::int64_t>(i)] = static_cast<double>(b.ids[i] % 5);
    return counts;
}

const auto weighted = [](auto& m, const sample_batch& b) -> sk::weighted_loss {
    const auto each = torch::nn::functional::cross_entropy(
        m->forward(b.x), b.y,
        torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone));
    const auto counts = counts_of(b);
    return {(each * counts).sum(), counts.sum()};
};

struct weighted_run {
    std::vector<float> weights;
    double loss = 0, val_loss = 0;
};

template <class Strategy>
weighted_run run_weighted(int world, int accumulation, double clip = 0.2) {
    weighted_run out;
    run_world(world, [&](context& ctx) {
        auto net = make_net();
        auto config = quiet_config("unused");
        config.max_steps = 8;
        config.accumulation = accumulation;
        config.clip = clip;
        sk::Trainer<Strategy> trainer(ctx, config);
        const auto result = trainer.fit(net, sk::SGD{.momentum = 0.9}, constant_rate{.peak = 0.1},
                                        weighted, numbers{}, numbers{.n = 11});
        if (ctx.is_first()) out = {weights(*net), result.loss, result.val_loss};
    });
    return out;
}

} // namespace

TEST_CASE(
    "a weighted loss is the mean over all weights, however samples fall on ranks and batches") {
    const auto whole = run_weighted<sk::Single>(1, 1);
    for (const auto& [world, accumulation] : {std::pair{1, 4}, {2, 1}, {3, 2}, {5, 1}}) {
        INFO(world << " ranks, accumulation " << accumulation);
        const auto got = run_weighted<sk::DDP<tiny_buckets>>(world, accumulation);
        CHECK(relative_error(got.weights, whole.weights) < 2e-6);
        CHECK(std::abs(got.loss / whole.loss - 1) < 1e-6);
        CHECK(std::abs(got.val_loss / whole.val_loss - 1) < 1e-6);
    }
}

TEST_CASE("a weighted loss steps and clips as torch does with the mean over the weights") {
    auto net = make_net();
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    sampler order({.samples = 64, .batch = 12, .seed = quiet_config("").seed}, 1);
    for (int step = 0; step < 8; ++step) {
        const auto b = numbers{}.batch(order.next(0, 1).ids);
        optimizer.zero_grad();
        const auto [sum, weight] = weighted(net, b);
        (sum / weight).backward();
        torch::nn::utils::clip_grad_norm_(net->parameters(), 0.2);
        optimizer.step();
    }
    CHECK(relative_error(run_weighted<sk::Single>(1, 1).weights, weights(*net)) < 2e-6);
}

TEST_CASE("weights that are all zero, negative or no numbers end the run with the reason") {
    for (const double weight : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
        const auto errors = try_world(2, [&](context& ctx) {
            auto net = make_net();
            sk::Trainer<sk::DDP<>> trainer(ctx, quiet_config("unused"));
            const auto loss = [&](Net& m, const sample_batch& b) -> sk::weighted_loss {
                return {m->forward(b.x).sum(), torch::full({}, weight)};
            };
            (void)trainer.fit(net, sk::SGD{}, constant_rate{.peak = 0.1}, loss, numbers{},
                              numbers{.n = 0});
        });
        for (const auto& e : errors) {
            REQUIRE(e);
            CHECK(std::string(e->what()).find("weight") != std::string::npos);
        }
    }
}
