// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/models/gpt2.hpp>.

#include <skein/core/error.hpp>
#include <skein/models/detail/folder_config.hpp>
#include <skein/wire/json.hpp>

#include <string>

#include <fmt/core.h>

namespace skein::models {

SKEIN_INLINE gpt2_options read_gpt2_config(disk& where, const std::string& folder) {
    const detail::folder_config config(where, folder, "GPT-2",
                                       "vocab_size, n_positions, n_embd, n_layer, n_head");
    config.require("model_type", "gpt2");
    config.require("activation_function", "gelu_new");
    config.require("n_inner", nullptr);
    config.require("scale_attn_weights", true);
    config.require("scale_attn_by_inverse_layer_idx", false);
    config.require("add_cross_attention", false);
    config.require("tie_word_embeddings", true);
    gpt2_options o{.vocabulary = config.size("vocab_size"),
                   .context = config.size("n_positions"),
                   .layers = config.size("n_layer"),
                   .heads = config.size("n_head"),
                   .dim = config.size("n_embd")};
    if (o.dim % o.heads != 0)
        config.refuse(fmt::format("n_embd {} cannot be cut into {} heads", o.dim, o.heads));
    o.dropout = config.number("resid_pdrop", o.dropout);
    o.norm_epsilon = config.number("layer_norm_epsilon", o.norm_epsilon);
    return o;
}

SKEIN_INLINE std::string gpt2_config(const gpt2_options& o) {
    const json config{{"model_type", "gpt2"},
                      {"architectures", {"GPT2LMHeadModel"}},
                      {"activation_function", "gelu_new"},
                      {"vocab_size", o.vocabulary},
                      {"n_positions", o.context},
                      {"n_embd", o.dim},
                      {"n_layer", o.layers},
                      {"n_head", o.heads},
                      {"n_inner", nullptr},
                      {"resid_pdrop", o.dropout},
                      {"embd_pdrop", o.dropout},
                      {"attn_pdrop", o.dropout},
                      {"layer_norm_epsilon", o.norm_epsilon},
                      {"tie_word_embeddings", true}};
    return dump_json(config, 2) + "\n";
}

} // namespace skein::models
