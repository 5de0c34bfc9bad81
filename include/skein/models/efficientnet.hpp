// SPDX-License-Identifier: Apache-2.0
#pragma once
// EfficientNet over images: B0 and B7, with torchvision's names and settings.
//
//     namespace models = skein::models;
//     models::EfficientNet net(models::efficientnet_b7());        // 66,347,960 parameters
//     skein::train::load_weights(*net, "b7.safetensors");         // torchvision's state_dict()
//     auto logits_NK = net(images_NCHW);
//
// Plain LibTorch; the blocks are marked with skein::unit: skein::FSDP<skein::auto_wrap<
// models::MBConv>>.
//   source: Tan, Le 2019, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks",
//           arXiv:1905.11946; names and settings as in torchvision 0.29's models/efficientnet.py

#include <skein/torch/torch.hpp>
#include <skein/train/build.hpp>
#include <skein/train/unit.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace skein::models {

// N samples, C channels, H height, W width, K classes

/// Sizes of an EfficientNet; the defaults are those of B0.
struct efficientnet_options {
    double width = 1.0; ///< of all channels, as a factor
    double depth = 1.0; ///< of the blocks of each stage, as a factor
    double dropout = 0.2;
    double stochastic_depth = 0.2; ///< the chance that the last block is left out of a step
    double norm_epsilon = 1e-5;
    double norm_momentum = 0.1;
    std::int64_t image = 224; ///< height and width in pixels it is trained with; others are taken
    std::int64_t classes = 1000;
};

[[nodiscard]] inline efficientnet_options efficientnet_b0() { return {}; }
[[nodiscard]] inline efficientnet_options efficientnet_b7() {
    return {.width = 2.0,
            .depth = 3.1,
            .dropout = 0.5,
            .norm_epsilon = 1e-3,
            .norm_momentum = 0.01,
            .image = 600};
}

namespace detail {

/// The multiple of 8 that is nearest, and not 10 per cent less.
///   source: torchvision, models/_utils.py, _make_divisible
[[nodiscard]] inline std::int64_t whole_channels(double channels) {
    auto made = std::max<std::int64_t>(8, static_cast<std::int64_t>(channels + 4) / 8 * 8);
    return static_cast<double>(made) < 0.9 * channels ? made + 8 : made;
}

/// A block: a wider 1x1 layer, one over each channel, weights of channels, and a narrow 1x1 layer.
struct mbconv_options {
    std::int64_t from = 0, wide = 0, to = 0, kernel = 3, stride = 1;
    double drop = 0.0; ///< the chance that it is left out
    double norm_epsilon = 1e-5, norm_momentum = 0.1;

    [[nodiscard]] std::int64_t squeezed() const { return std::max<std::int64_t>(1, from / 4); }
    [[nodiscard]] bool adds_input() const { return stride == 1 && from == to; }
};

/// The blocks of each stage in order.
///   source: Tan, Le 2019, table 1
[[nodiscard]] inline std::vector<std::vector<mbconv_options>> efficientnet_stages(
    const efficientnet_options& o) {
    struct row {
        double expand;
        std::int64_t kernel, stride, from, to, layers;
    };
    static constexpr row table[] = {
        {1, 3, 1, 32, 16, 1},  {6, 3, 2, 16, 24, 2},   {6, 5, 2, 24, 40, 2},  {6, 3, 2, 40, 80, 3},
        {6, 5, 1, 80, 112, 3}, {6, 5, 2, 112, 192, 4}, {6, 3, 1, 192, 320, 1}};
    const auto layers_of = [&](const row& r) {
        return static_cast<std::int64_t>(std::ceil(static_cast<double>(r.layers) * o.depth));
    };
    std::int64_t total = 0, number = 0; // of all blocks
    for (const auto& r : table) total += layers_of(r);
    std::vector<std::vector<mbconv_options>> stages;
    for (const auto& r : table) {
        auto& stage = stages.emplace_back();
        auto from = whole_channels(static_cast<double>(r.from) * o.width);
        const auto to = whole_channels(static_cast<double>(r.to) * o.width);
        for (std::int64_t i = 0; i < layers_of(r); ++i, ++number) {
            stage.push_back({.from = from,
                             .wide = whole_channels(static_cast<double>(from) * r.expand),
                             .to = to,
                             .kernel = r.kernel,
                             .stride = i == 0 ? r.stride : 1,
                             .drop = o.stochastic_depth * static_cast<double>(number) /
                                     static_cast<double>(total),
                             .norm_epsilon = o.norm_epsilon,
                             .norm_momentum = o.norm_momentum});
            from = to;
        }
    }
    return stages;
}

/// Visits every layer that multiplies: visit(elements of its weight, its stride, what else is trained
/// in it, and whether it sees each pixel or each image once).
template <class Visit>
void for_each_efficientnet_layer(const efficientnet_options& o, const Visit& visit) {
    const auto stages = efficientnet_stages(o);
    const auto first = stages.front().front().from, last = stages.back().back().to;
    visit(3 * first * 9, 2, 2 * first, true);
    for (const auto& stage : stages)
        for (const auto& b : stage) {
            if (b.wide != b.from) visit(b.from * b.wide, 1, 2 * b.wide, true);
            visit(b.wide * b.kernel * b.kernel, b.stride, 2 * b.wide, true);
            visit(b.wide * b.squeezed(), 1, b.squeezed(), false);
            visit(b.wide * b.squeezed(), 1, b.wide, false);
            visit(b.wide * b.to, 1, 2 * b.to, true);
        }
    const auto features = 4 * last;
    visit(last * features, 1, 2 * features, true);
    visit(features * o.classes, 1, o.classes, false);
}

} // namespace detail

/// Numbers that are trained.
[[nodiscard]] inline std::int64_t parameter_count(const efficientnet_options& o) {
    std::int64_t count = 0;
    detail::for_each_efficientnet_layer(o,
                                        [&](std::int64_t weights, std::int64_t, std::int64_t others,
                                            bool) { count += weights + others; });
    return count;
}

/// Operations of floating point that a training step of one sample of options.image pixels takes,
/// forward and backward: three times those of its layers, an addition and a multiplication each.
[[nodiscard]] inline double flops_per_sample(const efficientnet_options& o) {
    double sums = 0;
    auto side = o.image;
    detail::for_each_efficientnet_layer(
        o, [&](std::int64_t weights, std::int64_t stride, std::int64_t, bool each_pixel) {
            side = (side + stride - 1) / stride;
            sums += static_cast<double>(weights * (each_pixel ? side * side : 1));
        });
    return 6 * sums;
}

/// A convolution, its norm, and a SiLU unless told otherwise.
struct ConvNormImpl : torch::nn::Module {
    struct options_type {
        std::int64_t from = 0, to = 0, kernel = 1, stride = 1, groups = 1;
        bool activates = true;
        double norm_epsilon = 1e-5, norm_momentum = 0.1;
    };
    explicit ConvNormImpl(const options_type& o)
        : activates(o.activates), conv(torch::nn::Conv2dOptions(o.from, o.to, o.kernel)
                                           .stride(o.stride)
                                           .padding(o.kernel / 2)
                                           .groups(o.groups)
                                           .bias(false)),
          norm(torch::nn::BatchNorm2dOptions(o.to).eps(o.norm_epsilon).momentum(o.norm_momentum)) {
        register_module("0", conv);
        register_module("1", norm);
    }
    torch::Tensor forward(const torch::Tensor& x_NCHW) {
        const auto out = norm(conv(x_NCHW));
        return activates ? torch::silu(out) : out;
    }

    bool activates;
    torch::nn::Conv2d conv;
    torch::nn::BatchNorm2d norm;
};
TORCH_MODULE(ConvNorm);

/// Each channel is weighted by what all channels are in the mean.
///   source: Hu et al. 2017, "Squeeze-and-Excitation Networks", arXiv:1709.01507
struct SqueezeExcitationImpl : torch::nn::Module {
    SqueezeExcitationImpl(std::int64_t channels, std::int64_t squeezed)
        : fc1(torch::nn::Conv2dOptions(channels, squeezed, 1)),
          fc2(torch::nn::Conv2dOptions(squeezed, channels, 1)) {
        register_module("fc1", fc1);
        register_module("fc2", fc2);
    }
    torch::Tensor forward(const torch::Tensor& x_NCHW) {
        const auto mean_NC11 = torch::adaptive_avg_pool2d(x_NCHW, {1, 1});
        return torch::sigmoid(fc2(torch::silu(fc1(mean_NC11)))) * x_NCHW;
    }

    torch::nn::Conv2d fc1, fc2;
};
TORCH_MODULE(SqueezeExcitation);

/// A mobile inverted bottleneck; some samples of a training step leave it out.
///   source: Sandler et al. 2018, arXiv:1801.04381; Huang et al. 2016, "Deep Networks with Stochastic
///           Depth", arXiv:1603.09382
struct MBConvImpl : torch::nn::Module {
    explicit MBConvImpl(const detail::mbconv_options& o) : options(o) {
        const auto layer = [&](std::int64_t from, std::int64_t to) {
            return ConvNormImpl::options_type{.from = from,
                                              .to = to,
                                              .norm_epsilon = o.norm_epsilon,
                                              .norm_momentum = o.norm_momentum};
        };
        if (o.wide != o.from) block->push_back(ConvNorm(layer(o.from, o.wide)));
        auto each = layer(o.wide, o.wide);
        each.kernel = o.kernel;
        each.stride = o.stride;
        each.groups = o.wide;
        block->push_back(ConvNorm(each));
        block->push_back(SqueezeExcitation(o.wide, o.squeezed()));
        auto narrow = layer(o.wide, o.to);
        narrow.activates = false;
        block->push_back(ConvNorm(narrow));
        register_module("block", block);
    }
    torch::Tensor forward(const torch::Tensor& x_NCHW) {
        auto out = block->forward(x_NCHW);
        if (!options.adds_input()) return out;
        if (is_training() && options.drop > 0) {
            const auto kept = 1 - options.drop;
            out = out *
                  torch::empty({out.size(0), 1, 1, 1}, out.options()).bernoulli_(kept).div_(kept);
        }
        return out + x_NCHW;
    }

    detail::mbconv_options options;
    torch::nn::Sequential block;
};
TORCH_MODULE_IMPL(MBConv, skein::unit<MBConvImpl>);

/// All layers but the last: a convolution, the stages, a convolution.
struct EfficientNetFeaturesImpl : torch::nn::Module {
    explicit EfficientNetFeaturesImpl(const efficientnet_options& o) {
        const auto all = detail::efficientnet_stages(o);
        const auto layer = [&](std::int64_t from, std::int64_t to, std::int64_t kernel) {
            return ConvNorm(ConvNormImpl::options_type{.from = from,
                                                       .to = to,
                                                       .kernel = kernel,
                                                       .stride = kernel == 3 ? 2 : 1,
                                                       .norm_epsilon = o.norm_epsilon,
                                                       .norm_momentum = o.norm_momentum});
        };
        first = register_module("0", layer(3, all.front().front().from, 3));
        for (const auto& blocks : all) {
            torch::nn::Sequential stage;
            for (const auto& block : blocks) stage->push_back(MBConv(block));
            stages.push_back(register_module(std::to_string(stages.size() + 1), stage));
        }
        channels = 4 * all.back().back().to;
        last = register_module(std::to_string(stages.size() + 1), layer(channels / 4, channels, 1));
    }
    torch::Tensor forward(const torch::Tensor& images_NCHW) {
        auto x_NCHW = first(images_NCHW);
        for (auto& stage : stages) x_NCHW = stage->forward(x_NCHW);
        return last(x_NCHW);
    }

    std::int64_t channels = 0; // of what comes out
    ConvNorm first{nullptr}, last{nullptr};
    std::vector<torch::nn::Sequential> stages;
};
TORCH_MODULE(EfficientNetFeatures);

/// Images to the logits of their classes.
struct EfficientNetImpl : torch::nn::Module {
    explicit EfficientNetImpl(const efficientnet_options& o)
        : options(o), features(o), classifier(torch::nn::Dropout(o.dropout),
                                              torch::nn::Linear(features->channels, o.classes)) {
        register_module("features", features);
        register_module("classifier", classifier);
        draw_weights();
    }

    torch::Tensor forward(const torch::Tensor& images_NCHW) {
        return classifier->forward(
            torch::adaptive_avg_pool2d(features(images_NCHW), {1, 1}).flatten(1)); // NK
    }

    /// Convolutions by what they give on to, biases 0, the last layer even around 0.
    void draw_weights() {
        torch::NoGradGuard no_grad;
        const double range = 1 / std::sqrt(static_cast<double>(options.classes));
        const auto draw = [&](const std::string& name, torch::Tensor& p) {
            if (p.dim() == 4)
                torch::nn::init::kaiming_normal_(p, 0, torch::kFanOut);
            else if (p.dim() == 2)
                torch::nn::init::uniform_(p, -range, range);
            else if (name.ends_with(".bias"))
                torch::nn::init::zeros_(p);
        };
        train::for_each_parameter(*this, draw);
    }

    efficientnet_options options;
    EfficientNetFeatures features;
    torch::nn::Sequential classifier;
};
TORCH_MODULE(EfficientNet);

} // namespace skein::models
