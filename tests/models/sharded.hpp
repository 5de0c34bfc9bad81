// SPDX-License-Identifier: Apache-2.0
#pragma once
// What every network whose blocks are units does.

#include <skein/torch/torch.hpp>
#include <skein/train/fsdp.hpp>

#include <tests/train/train_support.hpp>

#include <cstddef>

#include <catch2/catch_test_macros.hpp>

namespace models_test {

/// Under FSDP of two ranks, whose blocks are gathered and dropped, the outputs are those of the model
/// itself, and a backward pass ends.
///   scale   of the weights, which are not drawn: the ranks are threads, which have one generator
///   spread  the outputs' standard deviation is more than that
///   loss    of the outputs
template <class Block, class Make, class Loss>
void check_sharded(const Make& make, const torch::Tensor& input, double scale, double spread,
                   const Loss& loss) {
    const auto errors = train_test::try_world(2, [&](skein::train::context& ctx) {
        auto net = make();
        {
            torch::NoGradGuard no_grad;
            for (auto& p : net->parameters())
                p.copy_(torch::arange(1, p.numel() + 1).sin().mul_(scale).view_as(p));
        }
        const torch::Tensor wanted = net(input).detach().clone();
        skein::FSDP<skein::auto_wrap<Block>> strategy(ctx, *net);
        std::size_t blocks = 0;
        for (const auto& u : strategy.store().units()) blocks += u.name.empty() ? 0 : 1;
        skein::test::expect(blocks >= 2);
        strategy.begin_step();
        strategy.begin_micro(true);
        const torch::Tensor outputs = net(input);
        skein::test::expect(torch::equal(outputs, wanted));
        skein::test::expect(outputs.std().template item<double>() > spread);
        loss(outputs).backward();
        strategy.finish_backward();
        strategy.finish();
    });
    for (const auto& why : errors) {
        INFO((why ? why->what() : ""));
        CHECK_FALSE(why.has_value());
    }
}
template <class Block, class Make>
void check_sharded(const Make& make, const torch::Tensor& input, double scale, double spread) {
    check_sharded<Block>(make, input, scale, spread,
                         [](const torch::Tensor& outputs) { return outputs.sum(); });
}

} // namespace models_test
