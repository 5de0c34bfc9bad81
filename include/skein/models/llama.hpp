// SPDX-License-Identifier: Apache-2.0
#pragma once
// Llama: a decoder-only transformer with RMS norms, rotary places, grouped queries and SwiGLU, and
// how its published weights fill it.
//
//     namespace models = skein::models;
//     const auto sizes = models::read_llama_config(disk, "folder");    // of save_pretrained()
//     models::Llama net(sizes);
//     skein::train::load_weights(*net, "hf:folder", models::maps::llama(sizes));
//     auto logits_BTV = net(ids_BT);
//
// Plain LibTorch; the blocks are marked with skein::unit: skein::FSDP<skein::auto_wrap<
// models::LlamaBlock>>.
//   source: Touvron et al. 2023, arXiv:2302.13971 and 2307.09288; names as in transformers'
//           LlamaForCausalLM

#include <skein/core/disk.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/build.hpp>
#include <skein/train/unit.hpp>
#include <skein/train/weight_map.hpp>

#include <cmath>
#include <cstdint>
#include <string>

namespace skein::models {

// B samples, T tokens, D model dim, H heads, G heads of keys, E dim of a head, V vocabulary

/// Sizes of a Llama; the defaults are those of Llama 2 7B.
struct llama_options {
    std::int64_t vocabulary = 32000;
    std::int64_t context = 4096; ///< tokens of a sample that it is trained with; others are taken
    std::int64_t layers = 32;
    std::int64_t heads = 32;
    std::int64_t key_heads = 32; ///< of keys and values: `heads` is a multiple of it
    std::int64_t dim = 4096;
    std::int64_t head_dim = 128; ///< even
    std::int64_t mlp_dim = 11008;
    double rotary_base = 10000;
    double norm_epsilon = 1e-5;
    bool tied = false; ///< the output head is the embedding of the tokens
};

[[nodiscard]] inline llama_options llama_2_7b() { return {}; }
[[nodiscard]] inline llama_options llama_3_8b() {
    return {.vocabulary = 128256,
            .context = 8192,
            .key_heads = 8,
            .mlp_dim = 14336,
            .rotary_base = 500000};
}
/// Sizes of the published "TinyLlama-1.1B".
[[nodiscard]] inline llama_options tiny_llama() {
    return {.context = 2048,
            .layers = 22,
            .key_heads = 4,
            .dim = 2048,
            .head_dim = 64,
            .mlp_dim = 5632};
}

/// The sizes that a folder's config.json says.
///   errors  not_supported for a setting under which the numbers would be others, by name (rotary
///           places that are scaled, biases, dropout); malformed or a disk error, with the file
[[nodiscard]] llama_options read_llama_config(disk& where, const std::string& folder);
/// The text of the config.json by which transformers makes the same model.
[[nodiscard]] std::string llama_config(const llama_options& options);

namespace detail {
/// Elements of the matrices of a block.
[[nodiscard]] inline std::int64_t llama_block_matrices(const llama_options& o) {
    return o.dim * o.head_dim * 2 * (o.heads + o.key_heads) + 3 * o.dim * o.mlp_dim;
}
} // namespace detail

/// Numbers that are trained.
[[nodiscard]] inline std::int64_t parameter_count(const llama_options& o) {
    return (o.tied ? 1 : 2) * o.vocabulary * o.dim +
           o.layers * (detail::llama_block_matrices(o) + 2 * o.dim) + o.dim;
}
/// Operations of floating point that a training step of one sample of options.context tokens takes,
/// forward and backward: six for each element of a matrix and token, and those of the attention.
///   source: as of GPT-2, 6 L D T per token, where attention looks back alone
[[nodiscard]] inline double flops_per_sample(const llama_options& o) {
    const auto count = [](std::int64_t n) { return static_cast<double>(n); };
    const double matrices =
        count(o.layers) * count(detail::llama_block_matrices(o)) + count(o.vocabulary * o.dim);
    const double attention = count(o.layers) * count(o.heads * o.head_dim) * count(o.context);
    return 6 * (matrices + attention) * count(o.context);
}

/// Each vector by the square root of the mean of its squares, times a weight for each place.
///   source: Zhang, Sennrich 2019, "Root Mean Square Layer Normalization", arXiv:1910.07467
struct RMSNormImpl : torch::nn::Module {
    RMSNormImpl(std::int64_t dim, double epsilon_)
        : epsilon(epsilon_), weight(register_parameter("weight", torch::ones({dim}))) {}
    torch::Tensor forward(const torch::Tensor& x_BTD) {
        return at::rms_norm(x_BTD, {x_BTD.size(-1)}, weight, epsilon);
    }

    double epsilon;
    torch::Tensor weight;
};
TORCH_MODULE(RMSNorm);

/// Causal attention whose queries share keys and values in groups, with places turned into them.
///   source: Ainslie et al. 2023 (grouped queries), arXiv:2305.13245; Su et al. 2021 (rotary
///           places), arXiv:2104.09864
struct LlamaAttentionImpl : torch::nn::Module {
    explicit LlamaAttentionImpl(const llama_options& o)
        : head_dim(o.head_dim), q_proj(without_bias(o.dim, o.heads * o.head_dim)),
          k_proj(without_bias(o.dim, o.key_heads * o.head_dim)),
          v_proj(without_bias(o.dim, o.key_heads * o.head_dim)),
          o_proj(without_bias(o.heads * o.head_dim, o.dim)) {
        register_module("q_proj", q_proj);
        register_module("k_proj", k_proj);
        register_module("v_proj", v_proj);
        register_module("o_proj", o_proj);
    }
    static torch::nn::Linear without_bias(std::int64_t from, std::int64_t to) {
        return torch::nn::Linear(torch::nn::LinearOptions(from, to).bias(false));
    }

    ///   turns_2TE  cosines and sines of each place
    torch::Tensor forward(const torch::Tensor& x_BTD, const torch::Tensor& turns_2TE) {
        const auto samples = x_BTD.size(0), tokens = x_BTD.size(1);
        const auto heads_of = [&](torch::nn::Linear& layer) { // BHTE
            return layer(x_BTD).view({samples, tokens, -1, head_dim}).transpose(1, 2);
        };
        const auto turned = [&](const torch::Tensor& x_BHTE) { // the halves of a head are pairs
            const auto halves = x_BHTE.chunk(2, -1);
            return x_BHTE * turns_2TE[0] + torch::cat({-halves[1], halves[0]}, -1) * turns_2TE[1];
        };
        const auto q_BHTE = turned(heads_of(q_proj)), k_BGTE = turned(heads_of(k_proj));
        const auto mixed_BHTE = at::scaled_dot_product_attention(
            q_BHTE, k_BGTE, heads_of(v_proj), {}, 0.0, /*is_causal=*/true, {},
            /*enable_gqa=*/q_BHTE.size(1) != k_BGTE.size(1));
        return o_proj(mixed_BHTE.transpose(1, 2).reshape({samples, tokens, -1}));
    }

    std::int64_t head_dim;
    torch::nn::Linear q_proj, k_proj, v_proj, o_proj;
};
TORCH_MODULE(LlamaAttention);

/// Two layers side by side, one as the gate of the other, and a third.
///   source: Shazeer 2020, "GLU Variants Improve Transformer", arXiv:2002.05202 (SwiGLU)
struct LlamaMlpImpl : torch::nn::Module {
    explicit LlamaMlpImpl(const llama_options& o)
        : gate_proj(LlamaAttentionImpl::without_bias(o.dim, o.mlp_dim)),
          up_proj(LlamaAttentionImpl::without_bias(o.dim, o.mlp_dim)),
          down_proj(LlamaAttentionImpl::without_bias(o.mlp_dim, o.dim)) {
        register_module("gate_proj", gate_proj);
        register_module("up_proj", up_proj);
        register_module("down_proj", down_proj);
    }
    torch::Tensor forward(const torch::Tensor& x_BTD) {
        return down_proj(torch::silu(gate_proj(x_BTD)) * up_proj(x_BTD));
    }

    torch::nn::Linear gate_proj, up_proj, down_proj;
};
TORCH_MODULE(LlamaMlp);

/// Attention and MLP, each behind a norm, each added to the stream.
struct LlamaBlockImpl : torch::nn::Module {
    explicit LlamaBlockImpl(const llama_options& o)
        : input_layernorm(o.dim, o.norm_epsilon), self_attn(o),
          post_attention_layernorm(o.dim, o.norm_epsilon), mlp(o) {
        register_module("input_layernorm", input_layernorm);
        register_module("self_attn", self_attn);
        register_module("post_attention_layernorm", post_attention_layernorm);
        register_module("mlp", mlp);
    }
    torch::Tensor forward(torch::Tensor x_BTD, torch::Tensor turns_2TE) {
        x_BTD = x_BTD + self_attn(input_layernorm(x_BTD), turns_2TE);
        return x_BTD + mlp(post_attention_layernorm(x_BTD));
    }

    RMSNorm input_layernorm;
    LlamaAttention self_attn;
    RMSNorm post_attention_layernorm;
    LlamaMlp mlp;
};
TORCH_MODULE_IMPL(LlamaBlock, skein::unit<LlamaBlockImpl>);

/// Tokens to logits of the next one.
struct LlamaImpl : torch::nn::Module {
    ///   errors  usage when the heads cannot be grouped, or a head's dim is odd
    explicit LlamaImpl(const llama_options& o)
        : options(checked(o)), embed_tokens(o.vocabulary, o.dim), norm(o.dim, o.norm_epsilon) {
        register_module("embed_tokens", embed_tokens);
        for (std::int64_t i = 0; i < o.layers; ++i) layers->push_back(LlamaBlock(o));
        register_module("layers", layers);
        register_module("norm", norm);
        if (!o.tied)
            lm_head =
                register_module("lm_head", LlamaAttentionImpl::without_bias(o.dim, o.vocabulary));
        draw_weights();
    }

    ///   ids_BT  int64
    torch::Tensor forward(const torch::Tensor& ids_BT) {
        auto x_BTD = embed_tokens(ids_BT);
        const auto turns_2TE = turns(ids_BT.size(1), x_BTD);
        for (const auto& block : *layers)
            x_BTD = block->as<LlamaBlock>()->forward(x_BTD, turns_2TE);
        return at::linear(norm(x_BTD), lm_head ? lm_head->weight : embed_tokens->weight); // BTV
    }

    /// Cosines and sines by which places are turned into queries and keys, as `like` is.
    [[nodiscard]] torch::Tensor turns(std::int64_t tokens, const torch::Tensor& like) const {
        const auto f32 = like.options().dtype(torch::kFloat).requires_grad(false);
        const auto part_E = torch::arange(0, options.head_dim, 2, f32) / double(options.head_dim);
        const auto speed_E = 1.0 / torch::pow(options.rotary_base, part_E);
        const auto half_TE = torch::outer(torch::arange(tokens, f32), speed_E);
        const auto angle_TE = torch::cat({half_TE, half_TE}, -1);
        return torch::stack({angle_TE.cos(), angle_TE.sin()}).to(like.dtype());
    }

    /// Small normal weights, as transformers draws them; norms are 1.
    void draw_weights() {
        torch::NoGradGuard no_grad;
        const auto draw = [](const std::string&, torch::Tensor& p) {
            if (p.dim() >= 2)
                torch::nn::init::normal_(p, 0.0, 0.02);
            else
                torch::nn::init::ones_(p);
        };
        train::for_each_parameter(*this, draw);
    }

    static const llama_options& checked(const llama_options& o);

    llama_options options;
    torch::nn::Embedding embed_tokens;
    torch::nn::ModuleList layers;
    RMSNorm norm;
    torch::nn::Linear lm_head{nullptr};
};
TORCH_MODULE(Llama);

namespace maps {
/// From what transformers' LlamaForCausalLM saves to skein::models::Llama, or, where the head is
/// tied, LlamaModel.
[[nodiscard]] inline train::weight_map llama(const llama_options& o) {
    train::weight_map map;
    map.same("model.layers.*.*.*.weight", "layers.*.*.*.weight")
        .same("model.layers.*.*.weight", "layers.*.*.weight") // of the norms
        .same("model.embed_tokens.weight", "embed_tokens.weight")
        .same("model.norm.weight", "norm.weight")
        .ignored("model.layers.*.self_attn.rotary_emb.inv_freq"); // in files of older versions
    if (o.tied) map.tied("lm_head.weight", "model.embed_tokens.weight").optional_prefix("model.");
    return map;
}
} // namespace maps

} // namespace skein::models

#if SKEIN_HEADER_ONLY
#include <skein/models/detail/llama.ipp>
#endif
