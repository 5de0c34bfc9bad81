// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/models/gpt2.hpp>.

#include <skein/core/error.hpp>
#include <skein/wire/json.hpp>

#include <string>
#include <utility>

#include <fmt/core.h>

namespace skein::models {

namespace detail {

/// Throws for a setting that this model has not, unless it is missing or what it does anyway.
SKEIN_INLINE void require_setting(const json& config, const char* key, const json& wanted,
                                  const std::string& path) {
    const auto found = config.find(key);
    if (found == config.end() || *found == wanted) return;
    throw error(errc::not_supported, fmt::format("not supported: a GPT-2 whose {} is {}; it has to "
                                                 "be {}",
                                                 key, dump_json(*found), dump_json(wanted)))
        .with_where(path);
}

SKEIN_INLINE std::int64_t size_in(const json& config, const char* key, const std::string& path) {
    const auto value = json_uint(config, key);
    if (!value || *value < 1 || *value > (1u << 30))
        throw error(errc::malformed, fmt::format("'{}' is missing or is not a size", key))
            .with_where(path)
            .with_hint(
                "config.json of a GPT-2 has vocab_size, n_positions, n_embd, n_layer, n_head");
    return static_cast<std::int64_t>(*value);
}

} // namespace detail

SKEIN_INLINE gpt2_options read_gpt2_config(disk& where, const std::string& folder) {
    const auto path = join_path(folder, "config.json");
    const auto text = where.read_whole(path, 1u << 20);
    if (!text) throw text.error();
    const auto config = parse_json(*text);
    if (!config || !config->is_object())
        throw error(errc::malformed,
                    config ? "it is not an object" : std::string(config.error().text()))
            .with_where(path);
    detail::require_setting(*config, "model_type", "gpt2", path);
    detail::require_setting(*config, "activation_function", "gelu_new", path);
    detail::require_setting(*config, "n_inner", nullptr, path);
    detail::require_setting(*config, "scale_attn_weights", true, path);
    detail::require_setting(*config, "scale_attn_by_inverse_layer_idx", false, path);
    detail::require_setting(*config, "add_cross_attention", false, path);
    detail::require_setting(*config, "tie_word_embeddings", true, path);
    gpt2_options o{.vocabulary = detail::size_in(*config, "vocab_size", path),
                   .context = detail::size_in(*config, "n_positions", path),
                   .layers = detail::size_in(*config, "n_layer", path),
                   .heads = detail::size_in(*config, "n_head", path),
                   .dim = detail::size_in(*config, "n_embd", path)};
    if (o.dim % o.heads != 0)
        throw error(errc::malformed,
                    fmt::format("n_embd {} cannot be cut into {} heads", o.dim, o.heads))
            .with_where(path);
    if (const auto said = json_double(*config, "resid_pdrop")) o.dropout = *said;
    if (const auto said = json_double(*config, "layer_norm_epsilon")) o.norm_epsilon = *said;
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
