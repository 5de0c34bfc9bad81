// SPDX-License-Identifier: Apache-2.0
#pragma once
// A Vision Transformer over square images: ViT-B/16, with torchvision's names and settings.
//
//     namespace models = skein::models;
//     models::ViT net(models::vit_b_16());                    // 86,567,656 parameters
//     skein::train::load_weights(*net, "vit_b_16.safetensors");   // torchvision's state_dict()
//     auto logits_NK = net(images_NCHW);                      // 224 x 224 pixels
//
// Plain LibTorch; the blocks are marked with skein::unit: skein::FSDP<skein::auto_wrap<
// models::ViTBlock>>.
//   source: Dosovitskiy et al. 2020, "An Image is Worth 16x16 Words", arXiv:2010.11929; names and
//           settings as in torchvision 0.29's models/vision_transformer.py

#include <skein/torch/torch.hpp>
#include <skein/train/build.hpp>
#include <skein/train/unit.hpp>

#include <cmath>
#include <cstdint>
#include <string>

namespace skein::models {

// N samples, C channels, T tokens, D model dim, H heads, E dim of a head, K classes

/// Sizes of a Vision Transformer; the defaults are those of ViT-B/16.
struct vit_options {
    std::int64_t image = 224; ///< height and width in pixels, a multiple of `patch`
    std::int64_t patch = 16;
    std::int64_t layers = 12;
    std::int64_t heads = 12;
    std::int64_t dim = 768;
    std::int64_t mlp_dim = 3072;
    double dropout = 0.0;
    double attention_dropout = 0.0;
    std::int64_t classes = 1000;
    double norm_epsilon = 1e-6;
};

[[nodiscard]] inline vit_options vit_b_16() { return {}; }

/// Patches of an image, and the token whose output is classified.
[[nodiscard]] inline std::int64_t token_count(const vit_options& o) {
    return (o.image / o.patch) * (o.image / o.patch) + 1;
}

namespace detail {
/// Elements of the matrices of a block, without biases and norms.
[[nodiscard]] inline std::int64_t vit_block_matrices(const vit_options& o) {
    return 4 * o.dim * o.dim + 2 * o.dim * o.mlp_dim;
}
[[nodiscard]] inline torch::nn::LayerNorm vit_norm(const vit_options& o) {
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.dim}).eps(o.norm_epsilon));
}
} // namespace detail

/// Numbers that are trained.
[[nodiscard]] inline std::int64_t parameter_count(const vit_options& o) {
    const auto block = detail::vit_block_matrices(o) + 9 * o.dim + o.mlp_dim;
    const auto patches = 3 * o.patch * o.patch * o.dim + o.dim;
    return patches + o.dim + token_count(o) * o.dim + o.layers * block + 2 * o.dim +
           (o.dim + 1) * o.classes;
}
/// Operations of floating point that a training step of one sample takes, forward and backward: six
/// for each element of a matrix and token, and those of the attention, where all look at all.
[[nodiscard]] inline double flops_per_sample(const vit_options& o) {
    const auto count = [](std::int64_t n) { return static_cast<double>(n); };
    const double tokens = count(token_count(o));
    const double blocks =
        count(o.layers) * (6 * count(detail::vit_block_matrices(o)) + 12 * tokens * count(o.dim));
    return tokens * blocks + 6 * (tokens - 1) * count(3 * o.patch * o.patch * o.dim) +
           6 * count(o.dim * o.classes);
}

/// Attention of several heads, each token to all.
struct ViTAttentionImpl : torch::nn::Module {
    explicit ViTAttentionImpl(const vit_options& o)
        : heads(o.heads), dropout(o.attention_dropout),
          in_proj_weight(register_parameter("in_proj_weight", torch::empty({3 * o.dim, o.dim}))),
          in_proj_bias(register_parameter("in_proj_bias", torch::zeros({3 * o.dim}))),
          out_proj(o.dim, o.dim) {
        register_module("out_proj", out_proj);
        torch::nn::init::xavier_uniform_(in_proj_weight);
        torch::nn::init::zeros_(out_proj->bias);
    }
    torch::Tensor forward(const torch::Tensor& x_NTD) {
        const auto samples = x_NTD.size(0), tokens = x_NTD.size(1), dim = x_NTD.size(2);
        const auto parts_NHTE = at::linear(x_NTD, in_proj_weight, in_proj_bias)
                                    .view({samples, tokens, 3, heads, dim / heads})
                                    .permute({2, 0, 3, 1, 4})
                                    .unbind(0);
        const auto mixed_NHTE = at::scaled_dot_product_attention(
            parts_NHTE[0], parts_NHTE[1], parts_NHTE[2], {}, is_training() ? dropout : 0.0);
        return out_proj(mixed_NHTE.transpose(1, 2).reshape({samples, tokens, dim}));
    }

    std::int64_t heads;
    double dropout;
    torch::Tensor in_proj_weight, in_proj_bias;
    torch::nn::Linear out_proj;
};
TORCH_MODULE(ViTAttention);

/// Attention and two layers with a GELU between them, each behind a norm, each added to the stream.
struct ViTBlockImpl : torch::nn::Module {
    explicit ViTBlockImpl(const vit_options& o)
        : dropout(o.dropout), ln_1(detail::vit_norm(o)), self_attention(o),
          ln_2(detail::vit_norm(o)),
          mlp(torch::nn::Linear(o.dim, o.mlp_dim), torch::nn::GELU(), torch::nn::Dropout(o.dropout),
              torch::nn::Linear(o.mlp_dim, o.dim), torch::nn::Dropout(o.dropout)) {
        register_module("ln_1", ln_1);
        register_module("self_attention", self_attention);
        register_module("ln_2", ln_2);
        register_module("mlp", mlp);
        for (auto& p : mlp->named_parameters()) {
            if (p.value().dim() == 2)
                torch::nn::init::xavier_uniform_(p.value());
            else
                torch::nn::init::normal_(p.value(), 0.0, 1e-6);
        }
    }
    torch::Tensor forward(torch::Tensor x_NTD) {
        x_NTD = x_NTD + torch::dropout(self_attention(ln_1(x_NTD)), dropout, is_training());
        return x_NTD + mlp->forward(ln_2(x_NTD));
    }

    double dropout;
    torch::nn::LayerNorm ln_1;
    ViTAttention self_attention;
    torch::nn::LayerNorm ln_2;
    torch::nn::Sequential mlp;
};
TORCH_MODULE_IMPL(ViTBlock, skein::unit<ViTBlockImpl>);

/// The blocks, with where each token stands before them and a norm behind them.
struct ViTEncoderImpl : torch::nn::Module {
    explicit ViTEncoderImpl(const vit_options& o)
        : dropout(o.dropout), pos_embedding(register_parameter(
                                  "pos_embedding", torch::empty({1, token_count(o), o.dim}))),
          ln(detail::vit_norm(o)) {
        torch::nn::init::normal_(pos_embedding, 0.0, 0.02);
        for (std::int64_t i = 0; i < o.layers; ++i)
            layers->push_back("encoder_layer_" + std::to_string(i), ViTBlock(o));
        register_module("layers", layers);
        register_module("ln", ln);
    }
    torch::Tensor forward(const torch::Tensor& x_NTD) {
        return ln(layers->forward(torch::dropout(x_NTD + pos_embedding, dropout, is_training())));
    }

    double dropout;
    torch::Tensor pos_embedding;
    torch::nn::Sequential layers;
    torch::nn::LayerNorm ln;
};
TORCH_MODULE(ViTEncoder);

/// Images to the logits of their classes.
struct ViTImpl : torch::nn::Module {
    explicit ViTImpl(const vit_options& o)
        : options(o), class_token(register_parameter("class_token", torch::zeros({1, 1, o.dim}))),
          conv_proj(torch::nn::Conv2dOptions(3, o.dim, o.patch).stride(o.patch)), encoder(o),
          head(o.dim, o.classes) {
        register_module("conv_proj", conv_proj);
        register_module("encoder", encoder);
        heads->push_back("head", head);
        register_module("heads", heads);
        // As the convolution of patches has it, cut off at 2, which is 55 deviations away.
        const auto inputs = static_cast<double>(3 * o.patch * o.patch);
        torch::nn::init::normal_(conv_proj->weight, 0.0, std::sqrt(1 / inputs));
        torch::nn::init::zeros_(conv_proj->bias);
        torch::nn::init::zeros_(head->weight);
        torch::nn::init::zeros_(head->bias);
    }

    ///   images_NCHW  of options.image pixels in both directions
    torch::Tensor forward(const torch::Tensor& images_NCHW) {
        const auto patches_NTD = conv_proj(images_NCHW).flatten(2).transpose(1, 2);
        const auto first = class_token.expand({images_NCHW.size(0), 1, options.dim});
        const auto x_NTD = encoder(torch::cat({first, patches_NTD}, 1));
        return head(x_NTD.select(1, 0)); // NK
    }

    vit_options options;
    torch::Tensor class_token;
    torch::nn::Conv2d conv_proj;
    ViTEncoder encoder;
    torch::nn::Sequential heads; // names its one layer as torchvision does
    torch::nn::Linear head;
};
TORCH_MODULE(ViT);

} // namespace skein::models
