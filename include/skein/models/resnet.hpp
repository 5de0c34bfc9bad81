// SPDX-License-Identifier: Apache-2.0
#pragma once
// Residual networks over images: ResNet-18 and ResNet-50, with torchvision's names and settings.
//
//     namespace models = skein::models;
//     models::ResNet net(models::resnet50());                 // 25,557,032 parameters
//     skein::train::load_weights(*net, "resnet50.safetensors");   // torchvision's state_dict()
//     auto logits_NK = net(images_NCHW);
//
// Plain LibTorch; the blocks are marked with skein::unit: skein::FSDP<skein::auto_wrap<
// models::ResNetBlock>>. The stride of a block of three layers is that of the 3x3 one, which is
// called ResNet V1.5.
//   source: He et al. 2015, "Deep Residual Learning for Image Recognition", arXiv:1512.03385; names
//           and settings as in torchvision 0.29's models/resnet.py

#include <skein/torch/torch.hpp>
#include <skein/train/build.hpp>
#include <skein/train/unit.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace skein::models {

// N samples, C channels, H height, W width, K classes

/// Sizes of a residual network; the defaults are those of ResNet-18.
struct resnet_options {
    std::vector<std::int64_t> blocks{2, 2, 2, 2}; ///< of each stage
    bool bottleneck = false; ///< blocks of three layers, the outer ones 1x1; else of two 3x3
    std::int64_t width = 64; ///< channels behind the first convolution; each stage doubles them
    std::int64_t classes = 1000;
    /// The last norm of each block begins as 0, so that the block does nothing at first.
    ///   source: Goyal et al. 2017, arXiv:1706.02677, 5.1
    bool zero_init_residual = false;
};

[[nodiscard]] inline resnet_options resnet18() { return {}; }
[[nodiscard]] inline resnet_options resnet50() {
    return {.blocks = {3, 4, 6, 3}, .bottleneck = true};
}

namespace detail {

/// One convolution of a residual network, which has no bias.
struct resnet_layer {
    std::int64_t from = 0, to = 0, kernel = 1, stride = 1;
};
/// Those of a block.
struct resnet_block {
    std::vector<resnet_layer> layers{};
    bool has_shortcut = false; ///< a 1x1 layer where shapes change: from the first's `from`
    std::int64_t from = 0, to = 0, stride = 1;
};

/// The blocks of each stage in order: what module, count and cost are made from.
[[nodiscard]] inline std::vector<std::vector<resnet_block>> resnet_stages(const resnet_options& o) {
    std::vector<std::vector<resnet_block>> stages;
    std::int64_t from = o.width, width = o.width;
    for (std::size_t s = 0; s < o.blocks.size(); ++s, width *= 2) {
        auto& stage = stages.emplace_back();
        for (std::int64_t b = 0; b < o.blocks[s]; ++b) {
            const auto stride = b == 0 && s > 0 ? 2 : 1;
            const auto to = o.bottleneck ? 4 * width : width;
            resnet_block block{.from = from, .to = to, .stride = stride};
            if (o.bottleneck)
                block.layers = {{from, width, 1, 1}, {width, width, 3, stride}, {width, to, 1, 1}};
            else
                block.layers = {{from, width, 3, stride}, {width, to, 3, 1}};
            block.has_shortcut = stride != 1 || from != to;
            stage.push_back(std::move(block));
            from = to;
        }
    }
    return stages;
}

/// Channels of the last stage.
[[nodiscard]] inline std::int64_t resnet_features(const resnet_options& o) {
    auto width = o.width << (o.blocks.empty() ? 0 : o.blocks.size() - 1);
    return o.bottleneck ? 4 * width : width;
}

[[nodiscard]] inline torch::nn::Conv2d conv_of(const resnet_layer& l) {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(l.from, l.to, l.kernel)
                                 .stride(l.stride)
                                 .padding(l.kernel / 2)
                                 .bias(false));
}

} // namespace detail

/// Numbers that are trained.
[[nodiscard]] inline std::int64_t parameter_count(const resnet_options& o) {
    const auto layer = [](const detail::resnet_layer& l) { // and its norm
        return l.from * l.to * l.kernel * l.kernel + 2 * l.to;
    };
    auto count = layer({3, o.width, 7, 2}) + (detail::resnet_features(o) + 1) * o.classes;
    for (const auto& stage : detail::resnet_stages(o))
        for (const auto& block : stage) {
            for (const auto& l : block.layers) count += layer(l);
            if (block.has_shortcut) count += layer({block.from, block.to, 1, block.stride});
        }
    return count;
}

/// Operations of floating point that a training step of one sample takes, forward and backward:
/// three times those of the convolutions and the last layer, an addition and a multiplication each.
///   image  height and width in pixels
[[nodiscard]] inline double flops_per_sample(const resnet_options& o, std::int64_t image = 224) {
    double sums = 0; // a multiplication and an addition
    auto side = (image + 1) / 2;
    const auto add = [&](const detail::resnet_layer& l) {
        side = (side + l.stride - 1) / l.stride;
        sums += static_cast<double>(l.from * l.to * l.kernel * l.kernel * side * side);
    };
    add({3, o.width, 7, 1}); // side is that of its output
    side = (side + 1) / 2;
    for (const auto& stage : detail::resnet_stages(o))
        for (const auto& block : stage) {
            const auto before = side;
            for (const auto& l : block.layers) add(l);
            if (!block.has_shortcut) continue;
            side = before;
            add({block.from, block.to, 1, block.stride});
        }
    sums += static_cast<double>(detail::resnet_features(o) * o.classes);
    return 6 * sums;
}

/// Two or three convolutions with their norms, and what came in is added to what they give.
struct ResNetBlockImpl : torch::nn::Module {
    explicit ResNetBlockImpl(const detail::resnet_block& o)
        : conv1(detail::conv_of(o.layers[0])), bn1(o.layers[0].to),
          conv2(detail::conv_of(o.layers[1])), bn2(o.layers[1].to) {
        register_module("conv1", conv1);
        register_module("bn1", bn1);
        register_module("conv2", conv2);
        register_module("bn2", bn2);
        if (o.layers.size() > 2) {
            conv3 = register_module("conv3", detail::conv_of(o.layers[2]));
            bn3 = register_module("bn3", torch::nn::BatchNorm2d(o.layers[2].to));
        }
        if (o.has_shortcut)
            downsample = register_module(
                "downsample", torch::nn::Sequential(detail::conv_of({o.from, o.to, 1, o.stride}),
                                                    torch::nn::BatchNorm2d(o.to)));
    }
    torch::Tensor forward(const torch::Tensor& x_NCHW) {
        auto out = bn2(conv2(bn1(conv1(x_NCHW)).relu_()));
        if (conv3) out = bn3(conv3(out.relu_()));
        return out.add_(downsample ? downsample->forward(x_NCHW) : x_NCHW).relu_();
    }

    torch::nn::Conv2d conv1;
    torch::nn::BatchNorm2d bn1;
    torch::nn::Conv2d conv2;
    torch::nn::BatchNorm2d bn2;
    torch::nn::Conv2d conv3{nullptr};
    torch::nn::BatchNorm2d bn3{nullptr};
    torch::nn::Sequential downsample{nullptr};
};
TORCH_MODULE_IMPL(ResNetBlock, skein::unit<ResNetBlockImpl>);

/// Images to the logits of their classes.
struct ResNetImpl : torch::nn::Module {
    explicit ResNetImpl(const resnet_options& o)
        : options(o), conv1(detail::conv_of({3, o.width, 7, 2})), bn1(o.width),
          fc(detail::resnet_features(o), o.classes) {
        register_module("conv1", conv1);
        register_module("bn1", bn1);
        for (const auto& stage : detail::resnet_stages(o)) {
            torch::nn::Sequential made;
            for (const auto& block : stage) made->push_back(ResNetBlock(block));
            layers.push_back(register_module("layer" + std::to_string(layers.size() + 1), made));
        }
        register_module("fc", fc);
        draw_weights();
    }

    torch::Tensor forward(const torch::Tensor& images_NCHW) {
        auto x_NCHW = bn1(conv1(images_NCHW)).relu_();
        x_NCHW = torch::max_pool2d(x_NCHW, 3, 2, 1);
        for (auto& layer : layers) x_NCHW = layer->forward(x_NCHW);
        return fc(torch::adaptive_avg_pool2d(x_NCHW, {1, 1}).flatten(1)); // NK
    }

    /// Convolutions for a ReLU that follows; norms are 1 and 0; the last layer is as it is made.
    ///   source: He et al. 2015, "Delving Deep into Rectifiers", arXiv:1502.01852, (14), of the
    ///           backward pass
    void draw_weights() {
        torch::NoGradGuard no_grad;
        const std::string last_norm = options.bottleneck ? ".bn3.weight" : ".bn2.weight";
        const auto draw = [&](const std::string& name, torch::Tensor& p) {
            if (p.dim() == 4)
                torch::nn::init::kaiming_normal_(p, 0, torch::kFanOut, torch::kReLU);
            else if (options.zero_init_residual && name.ends_with(last_norm))
                torch::nn::init::zeros_(p);
        };
        train::for_each_parameter(*this, draw);
    }

    resnet_options options;
    torch::nn::Conv2d conv1;
    torch::nn::BatchNorm2d bn1;
    std::vector<torch::nn::Sequential> layers;
    torch::nn::Linear fc;
};
TORCH_MODULE(ResNet);

} // namespace skein::models
