// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/models/conv_ctc.hpp>.

#include <skein/core/error.hpp>

#include <cstddef>
#include <memory>
#include <string>

#include <fmt/core.h>

namespace skein::models {

namespace detail {

SKEIN_INLINE std::vector<ctc_layer> ctc_layers(const conv_ctc_options& o) {
    std::vector<ctc_layer> all;
    if (o.waves) all.push_back({o.features, o.width, 250, 160, 45});
    all.push_back({o.waves ? o.width : o.features, o.width, 48, 2, 23});
    for (std::int64_t i = 1; i < o.layers; ++i) all.push_back({o.width, o.width, 7, 1, 3});
    all.push_back({o.width, o.wide, 32, 1, 16});
    all.push_back({o.wide, o.wide, 1, 1, 0});
    all.push_back({o.wide, o.letters, 1, 1, 0, o.last_relu});
    return all;
}

/// Places behind a layer, none where its kernel does not fit.
[[nodiscard]] SKEIN_INLINE std::int64_t places_behind(const ctc_layer& l, std::int64_t places) {
    const auto there = places + 2 * l.padding - l.kernel;
    return places < 1 || there < 0 ? 0 : there / l.stride + 1;
}

} // namespace detail

SKEIN_INLINE std::int64_t frame_count(const conv_ctc_options& o, std::int64_t places) {
    for (const auto& l : detail::ctc_layers(o)) places = detail::places_behind(l, places);
    return places;
}

SKEIN_INLINE std::int64_t parameter_count(const conv_ctc_options& o) {
    std::int64_t count = 0;
    for (const auto& l : detail::ctc_layers(o)) count += (l.from * l.kernel + 1) * l.to;
    return count;
}

SKEIN_INLINE double flops_per_sample(const conv_ctc_options& o, std::int64_t places) {
    double sums = 0;
    for (const auto& l : detail::ctc_layers(o)) {
        places = detail::places_behind(l, places);
        sums += static_cast<double>(l.from * l.kernel * l.to * places);
    }
    return 6 * sums;
}

SKEIN_INLINE ConvCTCImpl::ConvCTCImpl(const conv_ctc_options& o) : options(o) {
    if (o.features < 1 || o.width < 1 || o.wide < 1 || o.layers < 1 || o.letters < 2)
        throw error(errc::usage,
                    fmt::format("features {}, width {}, wide {}, layers {}, letters {}", o.features,
                                o.width, o.wide, o.layers, o.letters))
            .with_hint("each must be at least 1, and letters 2: one is the blank");
    for (const auto& l : detail::ctc_layers(o)) layers.emplace_back(l);
    // torchaudio counts a convolution and its ReLU as two, and keeps that of waves apart.
    acoustic_model = register_module("acoustic_model", std::make_shared<torch::nn::Module>());
    auto into = acoustic_model;
    std::size_t number = 0;
    if (o.waves) {
        const auto waves = std::make_shared<torch::nn::Module>();
        acoustic_model->register_module("0", waves)->register_module("0", layers[number++]);
        into = acoustic_model->register_module("1", std::make_shared<torch::nn::Module>());
    }
    for (std::size_t name = 0; number < layers.size(); name += 2)
        into->register_module(std::to_string(name), layers[number++]);
}

SKEIN_INLINE torch::Tensor ConvCTCImpl::forward(const torch::Tensor& input_NCL) {
    const auto places = input_NCL.size(-1);
    if (frame_count(options, places) < 1)
        throw error(errc::usage,
                    fmt::format("speech of {} places is too short for a frame", places))
            .with_hint(options.waves ? "use at least 320, a fiftieth of a second"
                                     : "use at least 2 frames");
    auto x_NCL = input_NCL;
    for (auto& layer : layers) x_NCL = layer(x_NCL);
    return torch::log_softmax(x_NCL, 1); // NKT
}

SKEIN_INLINE torch::Tensor ctc_loss(const conv_ctc_options& o, const torch::Tensor& scores_NKT,
                                    const torch::Tensor& lengths_N, const torch::Tensor& letters_NS,
                                    const torch::Tensor& counts_N) {
    const auto lengths = lengths_N.contiguous();
    auto frames_N = torch::empty_like(lengths);
    for (std::int64_t n = 0; n < lengths.size(0); ++n)
        frames_N[n] = frame_count(o, lengths[n].item<std::int64_t>());
    return at::ctc_loss(scores_NKT.permute({2, 0, 1}), letters_NS, frames_N, counts_N, /*blank=*/0,
                        at::Reduction::Mean, /*zero_infinity=*/true);
}

SKEIN_INLINE std::vector<std::vector<std::int64_t>> best_letters(const torch::Tensor& scores_NKT) {
    const auto best_NT = scores_NKT.argmax(1).to(torch::kCPU).contiguous();
    const auto* letter = best_NT.const_data_ptr<std::int64_t>();
    std::vector<std::vector<std::int64_t>> texts(static_cast<std::size_t>(best_NT.size(0)));
    for (auto& text : texts) {
        std::int64_t before = 0;
        for (std::int64_t t = 0; t < best_NT.size(1); ++t, ++letter) {
            if (*letter != before && *letter != 0) text.push_back(*letter);
            before = *letter;
        }
    }
    return texts;
}

} // namespace skein::models
