// SPDX-License-Identifier: Apache-2.0
#pragma once
// A small decoder-only transformer over bytes. Plain LibTorch but for one line: the mark of a block, which
// lets FSDP gather and drop it and costs nothing elsewhere.

#include <skein/train/build.hpp>
#include <skein/train/unit.hpp>

#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <string>

namespace gpt {

// B samples, T tokens, D model dim, H heads, E dim of a head, V vocabulary

struct model_options {
    std::int64_t vocabulary = 256;
    std::int64_t context = 128;
    std::int64_t layers = 4;
    std::int64_t heads = 4;
    std::int64_t dim = 128;
};

/// Attention and MLP, each behind a layer norm, each added to the stream.
struct BlockImpl : torch::nn::Module {
    explicit BlockImpl(const model_options& o)
        : heads(o.heads), norm_1(torch::nn::LayerNormOptions({o.dim})), qkv(o.dim, 3 * o.dim),
          mix(o.dim, o.dim), norm_2(torch::nn::LayerNormOptions({o.dim})), up(o.dim, 4 * o.dim),
          down(4 * o.dim, o.dim) {
        register_module("norm_1", norm_1);
        register_module("qkv", qkv);
        register_module("mix", mix);
        register_module("norm_2", norm_2);
        register_module("up", up);
        register_module("down", down);
    }

    torch::Tensor forward(torch::Tensor x_BTD) {
        x_BTD = x_BTD + attend(norm_1(x_BTD));
        return x_BTD + linear(down, torch::gelu(linear(up, norm_2(x_BTD)), "tanh"));
    }

    torch::Tensor attend(const torch::Tensor& x_BTD) {
        const auto B = x_BTD.size(0), T = x_BTD.size(1), D = x_BTD.size(2);
        const auto parts_BHTE =
            linear(qkv, x_BTD).view({B, T, 3, heads, D / heads}).permute({2, 0, 3, 1, 4}).unbind(0);
        const auto out_BHTE = at::scaled_dot_product_attention(
            parts_BHTE[0], parts_BHTE[1], parts_BHTE[2], {}, 0.0, /*is_causal=*/true);
        return linear(mix, out_BHTE.transpose(1, 2).reshape({B, T, D}));
    }

    /// at::linear adds the bias inside the product; Linear::forward adds it in a pass of its own.
    static torch::Tensor linear(torch::nn::Linear& layer, const torch::Tensor& x) {
        return at::linear(x, layer->weight, layer->bias);
    }

    std::int64_t heads;
    torch::nn::LayerNorm norm_1;
    torch::nn::Linear qkv, mix;
    torch::nn::LayerNorm norm_2;
    torch::nn::Linear up, down;
};
// [unit]
TORCH_MODULE_IMPL(Block, skein::unit<BlockImpl>);
// [/unit]

/// Bytes to logits of the next byte. The output head is the transposed byte embedding.
struct GPTImpl : torch::nn::Module {
    explicit GPTImpl(const model_options& o)
        : options(o), bytes(o.vocabulary, o.dim), places(o.context, o.dim),
          norm(torch::nn::LayerNormOptions({o.dim})) {
        register_module("bytes", bytes);
        register_module("places", places);
        for (std::int64_t i = 0; i < o.layers; ++i) blocks->push_back(Block(o));
        register_module("blocks", blocks);
        register_module("norm", norm);
        initialize();
    }

    torch::Tensor forward(const torch::Tensor& ids_BT) {
        auto x_BTD = bytes(ids_BT) + places->weight.slice(0, 0, ids_BT.size(1));
        for (const auto& block : *blocks) x_BTD = block->as<Block>()->forward(x_BTD);
        return torch::nn::functional::linear(norm(x_BTD), bytes->weight); // BTV
    }

    /// Small normal weights; the two layers that write to the stream are scaled down by its depth.
    ///   source: Radford et al. 2019 (GPT-2), section 2.3
    void initialize() {
        torch::NoGradGuard no_grad;
        const double deep = 0.02 / std::sqrt(2.0 * static_cast<double>(options.layers));
        const auto draw = [&](const std::string& name, torch::Tensor& p) {
            const bool writes =
                name.find("mix.weight") != name.npos || name.find("down.weight") != name.npos;
            if (p.dim() >= 2)
                torch::nn::init::normal_(p, 0.0, writes ? deep : 0.02);
            else if (name.find("bias") != name.npos)
                torch::nn::init::zeros_(p);
        };
        skein::train::for_each_parameter(*this, draw);
    }

    model_options options;
    torch::nn::Embedding bytes, places;
    torch::nn::ModuleList blocks;
    torch::nn::LayerNorm norm;
};
TORCH_MODULE(GPT);

/// Mean cross entropy in nats per byte.
inline torch::Tensor next_byte_loss(GPT& model, const torch::Tensor& inputs_BT,
                                    const torch::Tensor& targets_BT) {
    const auto logits_BTV = model(inputs_BT).to(torch::kFloat);
    return torch::nn::functional::cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten());
}

/// Goes on from the prompt for `count` bytes, drawn at the given temperature.
inline std::string sample(GPT& model, std::string text, std::int64_t count, double temperature,
                          std::uint64_t seed) {
    torch::NoGradGuard no_grad;
    model->eval();
    auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    const auto context = static_cast<std::size_t>(model->options.context);
    for (std::int64_t i = 0; i < count; ++i) {
        const auto seen = text.size() > context ? text.substr(text.size() - context) : text;
        auto ids_BT = torch::empty({1, static_cast<std::int64_t>(seen.size())}, torch::kLong);
        for (std::size_t t = 0; t < seen.size(); ++t)
            ids_BT.mutable_data_ptr<std::int64_t>()[t] = static_cast<unsigned char>(seen[t]);
        const auto logits_V = model(ids_BT).select(1, -1).flatten() / temperature;
        const auto next = torch::multinomial(torch::softmax(logits_V, 0), 1, false, generator);
        text.push_back(static_cast<char>(next.item<std::int64_t>()));
    }
    model->train();
    return text;
}

} // namespace gpt
