// SPDX-License-Identifier: Apache-2.0
#pragma once
// A small Vision Transformer: patches, transformer blocks, a mean, a linear head.
//   source: Dosovitskiy et al., "An image is worth 16x16 words" (2020), with a mean in place of the
//           class token

#include <skein/torch/torch.hpp>

#include <cstdint>

namespace vit {

struct options {
    std::int64_t image = 224, patch = 16, dim = 64, heads = 4, layers = 2, classes = 1000;
};

/// Normalises before each part: x + attention(norm(x)), then x + mlp(norm(x)).
struct BlockImpl : torch::nn::Module {
    BlockImpl(std::int64_t dim, std::int64_t heads) : heads_(heads) {
        namespace nn = torch::nn;
        norm1 = register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({dim})));
        norm2 = register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({dim})));
        qkv = register_module("qkv", nn::Linear(dim, 3 * dim));
        out = register_module("out", nn::Linear(dim, dim));
        up = register_module("up", nn::Linear(dim, 4 * dim));
        down = register_module("down", nn::Linear(4 * dim, dim));
    }
    torch::Tensor forward(torch::Tensor x_BTD) {
        const auto B = x_BTD.size(0), T = x_BTD.size(1), D = x_BTD.size(2);
        const auto parts =
            qkv(norm1(x_BTD)).view({B, T, 3, heads_, D / heads_}).permute({2, 0, 3, 1, 4});
        const auto seen_BHTK = torch::scaled_dot_product_attention(parts[0], parts[1], parts[2]);
        x_BTD = x_BTD + out(seen_BHTK.transpose(1, 2).reshape({B, T, D}));
        return x_BTD + down(torch::gelu(up(norm2(x_BTD))));
    }
    torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
    torch::nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
    std::int64_t heads_;
};
TORCH_MODULE(Block);

struct ModelImpl : torch::nn::Module {
    explicit ModelImpl(const options& o) {
        namespace nn = torch::nn;
        const auto tokens = (o.image / o.patch) * (o.image / o.patch);
        patches = register_module("patches",
                                  nn::Conv2d(nn::Conv2dOptions(3, o.dim, o.patch).stride(o.patch)));
        positions_1TD = register_parameter("positions", torch::randn({1, tokens, o.dim}) * 0.02);
        blocks = register_module("blocks", nn::ModuleList());
        for (std::int64_t i = 0; i < o.layers; ++i) blocks->push_back(Block(o.dim, o.heads));
        norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({o.dim})));
        head = register_module("head", nn::Linear(o.dim, o.classes));
    }
    /// Images to logits [B, classes].
    torch::Tensor forward(const torch::Tensor& x_BCHW) {
        auto x_BTD = patches(x_BCHW).flatten(2).transpose(1, 2) + positions_1TD;
        for (auto& each : *blocks) x_BTD = each->as<BlockImpl>()->forward(x_BTD);
        return head(norm(x_BTD).mean(1));
    }
    torch::nn::Conv2d patches{nullptr};
    torch::Tensor positions_1TD;
    torch::nn::ModuleList blocks{nullptr};
    torch::nn::LayerNorm norm{nullptr};
    torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Model);

} // namespace vit
