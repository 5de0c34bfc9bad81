// SPDX-License-Identifier: Apache-2.0
#pragma once
// ResNet-18 and ResNet-50, with torchvision's names of parameters.
//   source: He et al., "Deep Residual Learning" (2015); torchvision/models/resnet.py, where the
//           stride of a bottleneck is on its 3x3 convolution

#include <skein/torch/torch.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace resnet {

namespace nn = torch::nn;

struct options {
    int layers = 18;         ///< 18 or 50
    std::int64_t width = 64; ///< channels behind the first convolution; 64 is the published one
    std::int64_t classes = 1000;
};

inline nn::Conv2d conv(std::int64_t from, std::int64_t to, std::int64_t kernel,
                       std::int64_t stride = 1) {
    nn::Conv2d made(
        nn::Conv2dOptions(from, to, kernel).stride(stride).padding(kernel / 2).bias(false));
    nn::init::kaiming_normal_(made->weight, 0, torch::kFanOut, torch::kReLU);
    return made;
}

/// Two 3x3 convolutions, or 1x1, 3x3 and 1x1 with four times as many channels at their end; beside
/// them the input, through a 1x1 convolution where its shape changes.
struct BlockImpl : nn::Module {
    BlockImpl(std::int64_t from, std::int64_t channels, std::int64_t stride, bool is_bottleneck) {
        const auto to = is_bottleneck ? 4 * channels : channels;
        if (is_bottleneck) {
            conv1 = register_module("conv1", conv(from, channels, 1));
            conv2 = register_module("conv2", conv(channels, channels, 3, stride));
            conv3 = register_module("conv3", conv(channels, to, 1));
            bn3 = register_module("bn3", nn::BatchNorm2d(to));
        } else {
            conv1 = register_module("conv1", conv(from, channels, 3, stride));
            conv2 = register_module("conv2", conv(channels, channels, 3));
        }
        bn1 = register_module("bn1", nn::BatchNorm2d(channels));
        bn2 = register_module("bn2", nn::BatchNorm2d(channels));
        if (stride != 1 || from != to)
            downsample = register_module(
                "downsample", nn::Sequential(conv(from, to, 1, stride), nn::BatchNorm2d(to)));
    }
    torch::Tensor forward(const torch::Tensor& x_BCHW) {
        auto y = bn2(conv2(torch::relu(bn1(conv1(x_BCHW)))));
        if (conv3) y = bn3(conv3(torch::relu(y)));
        return torch::relu(y + (downsample ? downsample->forward(x_BCHW) : x_BCHW));
    }
    nn::Conv2d conv1{nullptr}, conv2{nullptr}, conv3{nullptr};
    nn::BatchNorm2d bn1{nullptr}, bn2{nullptr}, bn3{nullptr};
    nn::Sequential downsample{nullptr};
};
TORCH_MODULE(Block);

struct ModelImpl : nn::Module {
    explicit ModelImpl(const options& o) {
        const bool is_bottleneck = o.layers == 50;
        conv1 = register_module("conv1", conv(3, o.width, 7, 2));
        bn1 = register_module("bn1", nn::BatchNorm2d(o.width));
        const std::array<int, 4> blocks =
            is_bottleneck ? std::array{3, 4, 6, 3} : std::array{2, 2, 2, 2};
        auto from = o.width;
        for (std::size_t group = 0; group < 4; ++group) {
            const auto channels = o.width << group;
            nn::Sequential made;
            for (int i = 0; i < blocks[group]; ++i) {
                made->push_back(Block(from, channels, i == 0 && group > 0 ? 2 : 1, is_bottleneck));
                from = is_bottleneck ? 4 * channels : channels;
            }
            groups[group] = register_module("layer" + std::to_string(group + 1), made);
        }
        fc = register_module("fc", nn::Linear(from, o.classes));
    }
    /// Images to logits [B, classes].
    torch::Tensor forward(const torch::Tensor& x_BCHW) {
        auto x = torch::max_pool2d(torch::relu(bn1(conv1(x_BCHW))), 3, 2, 1);
        for (auto& group : groups) x = group->forward(x);
        return fc(x.mean({2, 3}));
    }

    nn::Conv2d conv1{nullptr};
    nn::BatchNorm2d bn1{nullptr};
    std::array<nn::Sequential, 4> groups{nn::Sequential{nullptr}, nn::Sequential{nullptr},
                                         nn::Sequential{nullptr}, nn::Sequential{nullptr}};
    nn::Linear fc{nullptr};
};
TORCH_MODULE(Model);

} // namespace resnet
