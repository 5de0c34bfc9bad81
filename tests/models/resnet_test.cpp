// SPDX-License-Identifier: Apache-2.0
#include <skein/models/efficientnet.hpp>
#include <skein/models/resnet.hpp>
#include <skein/models/vit.hpp>

#include <tests/models/sharded.hpp>
#include <tests/models/trains.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

using namespace skein;

namespace {

/// Of three colours and two samples.
torch::Tensor some_images(std::int64_t pixels) {
    return torch::arange(6 * pixels * pixels).cos().view({2, 3, pixels, pixels});
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
    CHECK(models_test::count_of(*net) == models::parameter_count(small));
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
    CHECK(models_test::count_of(*net) == models::parameter_count(small));
    CHECK(net->conv1->weight.size(0) == 8);
    CHECK(net->fc->weight.size(1) == 16);
    CHECK(models::flops_per_sample(small) < models::flops_per_sample({.blocks = {2, 1}}) / 30);
    CHECK_FALSE(net->named_parameters().contains("layer1.0.downsample.0.weight"));
    CHECK(net->named_parameters().contains("layer2.0.downsample.1.bias"));
    CHECK_FALSE(net->named_parameters().contains("layer1.0.conv3.weight"));
}

TEST_CASE("blocks of image models are gathered and dropped under FSDP, with the same logits") {
    models_test::check_sharded<models::ResNetBlock>(
        [] {
            return models::ResNet(
                models::resnet_options{.blocks = {1, 1}, .bottleneck = true, .classes = 5});
        },
        some_images(32), 0.1, 1e-4);
    models_test::check_sharded<models::MBConv>(
        [] {
            return models::EfficientNet(models::efficientnet_options{
                .width = 0.25, .depth = 0.5, .dropout = 0, .stochastic_depth = 0, .classes = 5});
        },
        some_images(32), 0.1, 1e-4);
    models_test::check_sharded<models::ViTBlock>(
        [] {
            return models::ViT(models::vit_options{.image = 32,
                                                   .patch = 8,
                                                   .layers = 2,
                                                   .heads = 2,
                                                   .dim = 16,
                                                   .mlp_dim = 32,
                                                   .classes = 5});
        },
        some_images(32), 0.1, 1e-4);
}
