// SPDX-License-Identifier: Apache-2.0
#pragma once
// GPT-2: a decoder-only transformer over tokens, and how its published weights fill it.
//
//     namespace models = skein::models;
//     models::GPT2 net(models::gpt2_small());               // 124,439,808 parameters
//     skein::train::load_weights(*net, "hf:gpt2", models::maps::gpt2());
//     auto logits_BTV = net(ids_BT);
//
// Plain LibTorch; the blocks are marked with skein::unit, so that FSDP gathers and drops them one
// at a time: skein::FSDP<skein::auto_wrap<models::GPT2Block>>. Under trainer.build() each rank keeps
// the rows it owns, and load_weights() reads those rows alone.
//   source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"; names as in
//           transformers' GPT2LMHeadModel, whose matrices are stored turned round

#include <skein/core/disk.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/build.hpp>
#include <skein/train/unit.hpp>
#include <skein/train/weight_map.hpp>

#include <cmath>
#include <cstdint>
#include <string>

namespace skein::models {

// B samples, T tokens, D model dim, H heads, E dim of a head, V vocabulary

/// Sizes of a GPT-2; the defaults are those of the smallest one.
struct gpt2_options {
    std::int64_t vocabulary = 50257;
    std::int64_t context = 1024; ///< most tokens of a sample
    std::int64_t layers = 12;
    std::int64_t heads = 12;
    std::int64_t dim = 768;
    double dropout = 0.1;
    double norm_epsilon = 1e-5;
};

/// The smallest of the four that were published.
[[nodiscard]] inline gpt2_options gpt2_small() { return {}; }
/// Sizes of the published "gpt2-medium".
[[nodiscard]] inline gpt2_options gpt2_medium() { return {.layers = 24, .heads = 16, .dim = 1024}; }

/// The sizes that a folder's config.json says, dropout that of its residual stream.
///   errors  not_supported for a setting under which the numbers would be others, by name;
///           malformed or a disk error, with the file
[[nodiscard]] gpt2_options read_gpt2_config(disk& where, const std::string& folder);
/// The text of the config.json by which transformers makes the same model.
[[nodiscard]] std::string gpt2_config(const gpt2_options& options);

/// Numbers that are trained; the output head is the embedding of the tokens.
[[nodiscard]] inline std::int64_t parameter_count(const gpt2_options& o) {
    const auto block = 12 * o.dim * o.dim + 13 * o.dim;
    return (o.vocabulary + o.context) * o.dim + o.layers * block + 2 * o.dim;
}
/// Operations of floating point that a training step of one sample takes, forward and backward.
///   source: llm.c, 6 N + 6 L D T per token, where attention looks back alone
[[nodiscard]] inline double flops_per_sample(const gpt2_options& o) {
    const auto count = [](std::int64_t n) { return static_cast<double>(n); };
    const double per_token =
        6 * count(parameter_count(o)) + 6 * count(o.layers) * count(o.dim) * count(o.context);
    return per_token * count(o.context);
}

namespace detail {
/// at::linear adds the bias inside the product; Linear::forward adds it in a pass of its own.
inline torch::Tensor linear(const torch::nn::Linear& layer, const torch::Tensor& x) {
    return at::linear(x, layer->weight, layer->bias);
}
} // namespace detail

/// Causal attention of several heads.
struct GPT2AttentionImpl : torch::nn::Module {
    explicit GPT2AttentionImpl(const gpt2_options& o)
        : heads(o.heads), dropout(o.dropout), c_attn(o.dim, 3 * o.dim), c_proj(o.dim, o.dim) {
        register_module("c_attn", c_attn);
        register_module("c_proj", c_proj);
    }
    torch::Tensor forward(const torch::Tensor& x_BTD) {
        const auto samples = x_BTD.size(0), tokens = x_BTD.size(1), dim = x_BTD.size(2);
        const auto parts_BHTE = detail::linear(c_attn, x_BTD)
                                    .view({samples, tokens, 3, heads, dim / heads})
                                    .permute({2, 0, 3, 1, 4})
                                    .unbind(0);
        const auto mixed_BHTE =
            at::scaled_dot_product_attention(parts_BHTE[0], parts_BHTE[1], parts_BHTE[2], {},
                                             is_training() ? dropout : 0.0, /*is_causal=*/true);
        const auto out_BTD =
            detail::linear(c_proj, mixed_BHTE.transpose(1, 2).reshape({samples, tokens, dim}));
        return torch::dropout(out_BTD, dropout, is_training());
    }

    std::int64_t heads;
    double dropout;
    torch::nn::Linear c_attn, c_proj;
};
TORCH_MODULE(GPT2Attention);

/// Two layers and a GELU between them.
struct GPT2MlpImpl : torch::nn::Module {
    explicit GPT2MlpImpl(const gpt2_options& o)
        : dropout(o.dropout), c_fc(o.dim, 4 * o.dim), c_proj(4 * o.dim, o.dim) {
        register_module("c_fc", c_fc);
        register_module("c_proj", c_proj);
    }
    torch::Tensor forward(const torch::Tensor& x_BTD) {
        const auto out_BTD =
            detail::linear(c_proj, torch::gelu(detail::linear(c_fc, x_BTD), "tanh"));
        return torch::dropout(out_BTD, dropout, is_training());
    }

    double dropout;
    torch::nn::Linear c_fc, c_proj;
};
TORCH_MODULE(GPT2Mlp);

/// Attention and MLP, each behind a layer norm, each added to the stream.
struct GPT2BlockImpl : torch::nn::Module {
    explicit GPT2BlockImpl(const gpt2_options& o)
        : ln_1(torch::nn::LayerNormOptions({o.dim}).eps(o.norm_epsilon)), attn(o),
          ln_2(torch::nn::LayerNormOptions({o.dim}).eps(o.norm_epsilon)), mlp(o) {
        register_module("ln_1", ln_1);
        register_module("attn", attn);
        register_module("ln_2", ln_2);
        register_module("mlp", mlp);
    }
    torch::Tensor forward(torch::Tensor x_BTD) {
        x_BTD = x_BTD + attn(ln_1(x_BTD));
        return x_BTD + mlp(ln_2(x_BTD));
    }

    torch::nn::LayerNorm ln_1;
    GPT2Attention attn;
    torch::nn::LayerNorm ln_2;
    GPT2Mlp mlp;
};
TORCH_MODULE_IMPL(GPT2Block, skein::unit<GPT2BlockImpl>);

/// Tokens to logits of the next one.
struct GPT2Impl : torch::nn::Module {
    explicit GPT2Impl(const gpt2_options& o)
        : options(o), wte(o.vocabulary, o.dim), wpe(o.context, o.dim),
          ln_f(torch::nn::LayerNormOptions({o.dim}).eps(o.norm_epsilon)) {
        register_module("wte", wte);
        register_module("wpe", wpe);
        for (std::int64_t i = 0; i < o.layers; ++i) h->push_back(GPT2Block(o));
        register_module("h", h);
        register_module("ln_f", ln_f);
        draw_weights();
    }

    ///   ids_BT  int64, at most options.context of a sample
    torch::Tensor forward(const torch::Tensor& ids_BT) {
        auto x_BTD = wte(ids_BT) + wpe->weight.slice(0, 0, ids_BT.size(1));
        x_BTD = torch::dropout(x_BTD, options.dropout, is_training());
        for (const auto& block : *h) x_BTD = block->as<GPT2Block>()->forward(x_BTD);
        return at::linear(ln_f(x_BTD), wte->weight); // BTV
    }

    /// Small normal weights; the two layers that write to the stream are scaled down by its depth.
    ///   source: Radford et al. 2019, section 2.3
    void draw_weights() {
        torch::NoGradGuard no_grad;
        const double deep = 0.02 / std::sqrt(2.0 * static_cast<double>(options.layers));
        const auto draw = [&](const std::string& name, torch::Tensor& p) {
            const bool writes = name.ends_with("c_proj.weight");
            if (p.dim() >= 2)
                torch::nn::init::normal_(p, 0.0, writes ? deep : 0.02);
            else if (name.ends_with("bias"))
                torch::nn::init::zeros_(p);
            else
                torch::nn::init::ones_(p);
        };
        train::for_each_parameter(*this, draw);
    }

    gpt2_options options;
    torch::nn::Embedding wte, wpe;
    torch::nn::ModuleList h;
    torch::nn::LayerNorm ln_f;
};
TORCH_MODULE(GPT2);

namespace maps {
/// From what transformers' GPT2LMHeadModel or GPT2Model saves to skein::models::GPT2.
[[nodiscard]] inline train::weight_map gpt2() {
    train::weight_map map;
    const std::string theirs = "transformer.h.*.", ours = "h.*.";
    for (const std::string matrix : {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"})
        map.turned(theirs + matrix + ".weight", ours + matrix + ".weight");
    map.same(theirs + "*.*.bias", ours + "*.*.bias")
        .same(theirs + "*.weight", ours + "*.weight") // of the norms
        .same(theirs + "*.bias", ours + "*.bias")
        .same("transformer.wte.weight", "wte.weight")
        .same("transformer.wpe.weight", "wpe.weight")
        .same("transformer.ln_f.weight", "ln_f.weight")
        .same("transformer.ln_f.bias", "ln_f.bias")
        .tied("lm_head.weight", "transformer.wte.weight")
        .ignored("transformer.h.*.attn.bias") // the causal mask, in files of older versions
        .ignored("transformer.h.*.attn.masked_bias")
        .optional_prefix("transformer.");
    return map;
}
} // namespace maps

} // namespace skein::models

#if SKEIN_HEADER_ONLY
#include <skein/models/detail/gpt2.ipp>
#endif
