// SPDX-License-Identifier: Apache-2.0
// skein_hidden_device: DDP and FSDP on a device of CUDA that is none (support/hidden_device.hpp).
//
//   skein_hidden_device [--workers N]
//
// Prints how far 20 steps are from those on the CPU; exits with 77 where LibTorch has devices of its
// own.
#include <skein/train.hpp>
#include <skein/train/optimizer.hpp>

#include "support/hidden_device.hpp"
#include "support/residual_block.hpp"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <fmt/core.h>

namespace {

using namespace skein;
using hidden_device::device;
using test::Block;
using train::context;

// ---- the training -------------------------------------------------------------------------------

struct NetImpl : torch::nn::Module {
    NetImpl() : head(16, 4) {
        int number = 0;
        for (auto* each : {&first, &second, &third})
            *each = register_module("block" + std::to_string(number++), Block());
        register_module("head", head);
        steps = register_buffer("steps", torch::zeros({3}));
    }
    torch::Tensor forward(const torch::Tensor& x) { return head(third(second(first(x)))); }
    Block first{nullptr}, second{nullptr}, third{nullptr};
    torch::nn::Linear head;
    torch::Tensor steps;
};
TORCH_MODULE(Net);

struct small_buckets {
    static constexpr std::size_t first_bytes = 1 << 10, bytes = 1 << 12;
};

struct outcome {
    std::vector<float> weights;
    double loss = 0, norm = 0;
};

template <class Strategy>
outcome train_on(context& ctx, c10::Device where, const train::optimizer_options& how,
                 double clip_value) {
    torch::manual_seed(42);
    Net net;
    net->to(where);
    outcome out;
    {
        Strategy strategy(ctx, *net);
        train::flat_optimizer optimizer(how, strategy.store());
        for (int step = 0; step < 20; ++step) {
            strategy.begin_step();
            torch::Tensor loss;
            for (int micro = 0; micro < 2; ++micro) {
                strategy.begin_micro(micro == 1);
                const auto x = torch::sin(torch::arange(8 * 16, torch::kFloat).view({8, 16}) * 0.1 +
                                          (step * 3 + micro * 5 + ctx.rank() * 7));
                const auto y = torch::cos(torch::arange(8 * 4, torch::kFloat).view({8, 4}) + step);
                loss = torch::mse_loss(net->forward(x.to(where)), y.to(where)) / 4;
                loss.backward();
            }
            strategy.finish_backward();
            double row[] = {loss.item<double>(), 0};
            train::all_reduce(ctx, row, dist::reduce_op::sum);
            out.loss = row[0];
            out.norm = std::sqrt(strategy.squared_norm(strategy.store().own_squared_norm()));
            optimizer.step(1e-2, 1.0, {}, clip_value);
            strategy.publish();
        }
        strategy.finish();
    }
    for (const auto& p : net->parameters()) {
        const auto flat = p.detach().cpu().contiguous();
        const auto* const from = flat.const_data_ptr<float>();
        out.weights.insert(out.weights.end(), from, from + flat.numel());
    }
    return out;
}

template <class Strategy>
void compare(context& ctx, const std::string& name, const train::optimizer_options& how = AdamW{},
             double clip_value = 0.0) {
    const auto here = train_on<Strategy>(ctx, c10::kCPU, how, clip_value);
    const auto there = train_on<Strategy>(ctx, device, how, clip_value);
    double worst = here.weights.size() == there.weights.size() ? 0.0 : 1e30;
    for (std::size_t i = 0; i < here.weights.size() && worst < 1e30; ++i)
        worst = std::max(worst, std::abs(static_cast<double>(here.weights[i]) - there.weights[i]));
    const double norm = std::abs(here.norm - there.norm), loss = std::abs(here.loss - there.loss);
    if (ctx.is_first())
        fmt::print("{}: {} weights {:g}, loss {:g}, norm {:g} apart; loss {:g}\n", name,
                   here.weights.size(), worst, loss, norm, there.loss);
    std::fflush(stdout);
    if (!(worst <= 1e-5) || !(loss <= 1e-5) || !(norm <= 1e-5 * here.norm))
        throw error(errc::mismatch, fmt::format("{} on a device trains another model", name));
}

/// What reads the host's memory is refused before it does.
void refuse_lion(context& ctx) {
    try {
        (void)train_on<Single>(ctx, device, Lion{}, 0.0);
    } catch (const error& why) {
        if (why.code() != errc::not_supported) throw;
        fmt::print("{}\n", why.what());
        return;
    }
    throw error(errc::internal, "Lion was taken on a device");
}

} // namespace

int main(int argc, char** argv) {
    if (!hidden_device::make()) {
        fmt::print("skipped: this LibTorch has devices of its own\n");
        return 77;
    }
    run_config config;
    config.output = train::output_mode::quiet;
    config.communicator = "hidden";
    config.scaling.workers =
        argc == 3 && std::string(argv[1]) == "--workers" ? std::atoi(argv[2]) : 2;
    return train::launch(config, [&](context& ctx) {
        if (ctx.world_size() == 1) {
            compare<Single>(ctx, "Single");
            compare<Single>(ctx, "Adam", Adam{}, 0.01);
            compare<Single>(ctx, "SGD", SGD{.momentum = 0.9});
            refuse_lion(ctx);
        }
        compare<DDP<small_buckets>>(ctx, "DDP");
        compare<FSDP<auto_wrap<Block>>>(ctx, "FSDP");
    });
}
