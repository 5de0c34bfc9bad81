// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/models/llama.hpp>.

#include <skein/core/error.hpp>
#include <skein/models/detail/folder_config.hpp>
#include <skein/wire/json.hpp>

#include <string>

#include <fmt/core.h>

namespace skein::models {

SKEIN_INLINE llama_options read_llama_config(disk& where, const std::string& folder) {
    const detail::folder_config config(where, folder, "Llama",
                                       "vocab_size, max_position_embeddings, hidden_size, "
                                       "intermediate_size, num_hidden_layers, num_attention_heads");
    config.require("model_type", "llama");
    config.require("hidden_act", "silu");
    config.require("attention_bias", false);
    config.require("mlp_bias", false);
    config.require("attention_dropout", 0.0);
    config.require("rope_scaling", nullptr);
    llama_options o{.vocabulary = config.size("vocab_size"),
                    .context = config.size("max_position_embeddings"),
                    .layers = config.size("num_hidden_layers"),
                    .heads = config.size("num_attention_heads"),
                    .dim = config.size("hidden_size"),
                    .mlp_dim = config.size("intermediate_size"),
                    .rotary_base = config.number("rope_theta", 10000),
                    .norm_epsilon = config.number("rms_norm_eps", 1e-6)};
    o.key_heads = config.size("num_key_value_heads", o.heads);
    o.head_dim = config.size("head_dim", o.dim / o.heads);
    if (config.has("rope_parameters")) { // of transformers 5
        const auto& rotary = config.values()["rope_parameters"];
        if (!rotary.is_object()) config.refuse("'rope_parameters' is not an object");
        config.require_in(rotary, "rope_type", "default");
        if (const auto base = json_double(rotary, "rope_theta")) o.rotary_base = *base;
    }
    if (config.has("tie_word_embeddings")) {
        const auto& tied = config.values()["tie_word_embeddings"];
        if (!tied.is_boolean()) config.refuse("'tie_word_embeddings' is neither true nor false");
        o.tied = tied.get<bool>();
    }
    if (o.heads % o.key_heads != 0 || o.head_dim % 2 != 0)
        config.refuse(
            fmt::format("{} heads of {} numbers over {} heads of keys: use a multiple, and "
                        "an even number",
                        o.heads, o.head_dim, o.key_heads));
    return o;
}

SKEIN_INLINE std::string llama_config(const llama_options& o) {
    const json config{
        {"model_type", "llama"},
        {"architectures", {"LlamaForCausalLM"}},
        {"hidden_act", "silu"},
        {"vocab_size", o.vocabulary},
        {"max_position_embeddings", o.context},
        {"hidden_size", o.dim},
        {"intermediate_size", o.mlp_dim},
        {"num_hidden_layers", o.layers},
        {"num_attention_heads", o.heads},
        {"num_key_value_heads", o.key_heads},
        {"head_dim", o.head_dim},
        {"rope_theta", o.rotary_base}, // of transformers 4
        {"rope_parameters", {{"rope_theta", o.rotary_base}, {"rope_type", "default"}}},
        {"rms_norm_eps", o.norm_epsilon},
        {"attention_bias", false},
        {"mlp_bias", false},
        {"attention_dropout", 0.0},
        {"tie_word_embeddings", o.tied}};
    return dump_json(config, 2) + "\n";
}

SKEIN_INLINE const llama_options& LlamaImpl::checked(const llama_options& o) {
    if (o.key_heads >= 1 && o.heads % o.key_heads == 0 && o.head_dim % 2 == 0) return o;
    throw error(errc::usage, fmt::format("a Llama of {} heads of {} numbers over {} heads of keys",
                                         o.heads, o.head_dim, o.key_heads))
        .with_hint("let heads be a multiple of key_heads, and head_dim even");
}

} // namespace skein::models
