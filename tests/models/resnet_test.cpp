// SPDX-License-Identifier: Apache-2.0
#include <skein/models/efficientnet.hpp>
#include <skein/models/resnet.hpp>
#include <skein/models/vit.hpp>
#include <skein/train/fsdp.hpp>

#include <tests/models/trains.hpp>
#include <tests/train/train_support.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

using namespace skein;

namespace {

std::int64_t count_of(torch::nn::Module& module) {
    std::int64_t count = 0;
    for (const auto& p : module.parameters()) count += p.numel();
    return count;
}

/// Under FSDP, whose blocks are gathered and dropped, the logits are those of the model itself.
template <class Block, class Make>
void check_sharded(const Make& make, std::int64_t pixels) {
    const auto errors = train_test::try_world(2, [&](train::context& ctx) {
        auto net = make();
        { // not drawn: the ranks are threads, which have one generator
            torch::NoGradGuard no_grad;
            for (auto& p : net->parameters())
                p.copy_(torch::arange(1, p.numel() + 1).sin().mul_(0.1).view_as(p));
        }
        const auto count = 6 * pixels * pixels;
        const auto images = torch::arange(count).cos().view({2, 3, pixels, pixels});
        const auto wanted = net(images).detach().clone();
        FSDP<auto_wrap<Block>> strategy(ctx, *net);
        std::size_t blocks = 0;
        for (const auto& u : strategy.store().units()) blocks += u.name.empty() ? 0 : 1;
        skein::test::expect(blocks >= 2);
        strategy.begin_step();
        strategy.begin_micro(true);
        const torch::Tensor logits = net(images);
        skein::test::expect(torch::equal(logits, wanted));
        skein::test::expect(logits.std().item<double>() > 1e-4);
        logits.sum().backward();
        strategy.finish_backward();
        strategy.finish();
    });
    for (const auto& why : errors) {
        INFO((why ? why->what() : ""));
        CHECK_FALSE(why.has_value());
    }
}

} // namespace

TEST_CASE("ResNet-18 and ResNet-50 have their parameters and their cost") {
    CHECK(models::parameter_count(models::resnet18()) == 11'689'512);
    CHECK(models::parameter_count(models::resnet50()) == 25'557'032);
    // torchvision counts a multiplication and an addition as one: 1.814e9 and 4.089e9 forward.
    CHECK(std::fabs(models::flops_per_sample(models::resnet18()) / (6 * 1.814e9) - 1) < 1e-3);
    CHECK(std::fabs(models::flops_per_sample(models::resnet50()) / (6 * 4.089e9) - 1) < 1e-3);
}

TEST_CASE("a residual network is made as its options say, with torchvision's names") {
    torch::manual_seed(1);
    const models::resnet_options small{
        .blocks = {1, 2}, .bottleneck = true, .classes = 5, .zero_init_residual = true};
    models::ResNet net(small);
    CHECK(count_of(*net) == models::parameter_count(small));
    const auto parameters = net->named_parameters();
    CHECK(parameters["layer2.0.downsample.0.weight"].sizes().vec() ==
          std::vector<std::int64_t>{512, 256, 1, 1});
    CHECK(parameters["layer1.0.bn3.weight"].abs().max().item<float>() == 0);
    CHECK(parameters["layer1.0.bn2.weight"].min().item<float>() == 1);
    CHECK(net->named_buffers().contains("layer2.1.bn2.num_batches_tracked"));
    // Variance 2 / (channels out x 9).
    const auto& w = parameters["layer1.0.conv2.weight"];
    CHECK(std::fabs(w.std().item<double>() / std::sqrt(2.0 / (64 * 9)) - 1) < 0.02);

    models_test::check_trains(net, torch::randn({2, 3, 33, 47}), 5);
}

TEST_CASE("blocks of two layers have a shortcut where the shape changes alone") {
    const models::resnet_options small{.blocks = {2, 1}, .width = 8, .classes = 3};
    models::ResNet net(small);
    CHECK(count_of(*net) == models::parameter_count(small));
    CHECK(net->conv1->weight.size(0) == 8);
    CHECK(net->fc->weight.size(1) == 16);
    CHECK(models::flops_per_sample(small) < models::flops_per_sample({.blocks = {2, 1}}) / 30);
    CHECK_FALSE(net->named_parameters().contains("layer1.0.downsample.0.weight"));
    CHECK(net->named_parameters().contains("layer2.0.downsample.1.bias"));
    CHECK_FALSE(net->named_parameters().contains("layer1.0.conv3.weight"));
}

TEST_CASE("blocks of image models are gathered and dropped under FSDP, with the same logits") {
    check_sharded<models::ResNetBlock>(
        [] {
            return models::ResNet(
                models::resnet_options{.blocks = {1, 1}, .bottleneck = true, .classes = 5});
        },
        32);
    check_sharded<models::MBConv>(
        [] {
            return models::EfficientNet(models::efficientnet_options{
                .width = 0.25, .depth = 0.5, .dropout = 0, .stochastic_depth = 0, .classes = 5});
        },
        32);
    check_sharded<models::ViTBlock>(
        [] {
            return models::ViT(models::vit_options{.image = 32,
                                                   .patch = 8,
                                                   .layers = 2,
                                                   .heads = 2,
                                                   .dim = 16,
                                                   .mlp_dim = 32,
                                                   .classes = 5});
        },
        32);
}
