// SPDX-License-Identifier: Apache-2.0
#pragma once
// Speech to letters by convolutions alone: Wav2Letter, trained by connectionist temporal
// classification, with torchaudio's names.
//
//     namespace models = skein::models;
//     models::ConvCTC net(models::wav2letter());                 // 26,211,290 parameters
//     skein::train::load_weights(*net, "speech.safetensors");    // torchaudio's state_dict()
//     auto scores_NKT = net(waves_N1L);                          // logarithms of probabilities
//     auto loss = models::ctc_loss(net->options, scores_NKT, lengths_N, letters_NS, counts_N);
//     auto letters = models::best_letters(scores_NKT);           // of each sample
//
// Plain LibTorch; the layers are marked with skein::unit: skein::FSDP<skein::auto_wrap<
// models::ConvReLU>>.
//   source: Collobert, Puhrsch, Synnaeve 2016, "Wav2Letter: an End-to-End ConvNet-based Speech
//           Recognition System", arXiv:1609.03193; names as in torchaudio's
//           models/wav2letter.py; Graves et al. 2006 of the loss

#include <skein/torch/torch.hpp>
#include <skein/train/unit.hpp>

#include <cstdint>
#include <memory>
#include <vector>

namespace skein::models {

// N samples, C channels, L places of the input, T frames of the output, K letters, S letters of a text

/// Sizes of the network; the defaults are those of waves of 16 kHz.
struct conv_ctc_options {
    bool waves = true;         ///< the input is a wave, which a layer of its own makes frames of
    std::int64_t features = 1; ///< channels of the input: 1 of a wave, 13 or 40 of spectra
    std::int64_t width = 250;  ///< channels of the layers
    std::int64_t wide = 2000;  ///< channels of the last two
    std::int64_t layers = 8;   ///< of `width`; the first one halves the frames
    /// A ReLU behind the last layer, too, as torchaudio has it: for weights that were trained so.
    /// From new weights a network with it hardly learns.
    bool last_relu = false;
    std::int64_t letters = 40; ///< what a frame can be; 0 is the blank between letters
};

[[nodiscard]] inline conv_ctc_options wav2letter() { return {}; }
/// Over spectra, 13 numbers of each frame.
[[nodiscard]] inline conv_ctc_options wav2letter_of_spectra() {
    return {.waves = false, .features = 13};
}

namespace detail {
/// A convolution over time.
struct ctc_layer {
    std::int64_t from = 0, to = 0, kernel = 1, stride = 1, padding = 0;
    bool activates = true;
};
/// All of them in order.
[[nodiscard]] std::vector<ctc_layer> ctc_layers(const conv_ctc_options& o);
} // namespace detail

/// Frames of the output for an input of so many places; 0 when it is too short for one.
[[nodiscard]] std::int64_t frame_count(const conv_ctc_options& o, std::int64_t places);
/// Numbers that are trained.
[[nodiscard]] std::int64_t parameter_count(const conv_ctc_options& o);
/// Operations of floating point that a training step of one sample takes, forward and backward:
/// three times those of the convolutions, an addition and a multiplication each.
///   places  of the input; 16000 is a second
[[nodiscard]] double flops_per_sample(const conv_ctc_options& o, std::int64_t places = 16000);

/// A convolution over time, and a ReLU unless told otherwise.
struct ConvReLUImpl : torch::nn::Conv1dImpl {
    explicit ConvReLUImpl(const detail::ctc_layer& l)
        : Conv1dImpl(
              torch::nn::Conv1dOptions(l.from, l.to, l.kernel).stride(l.stride).padding(l.padding)),
          activates(l.activates) {}
    torch::Tensor forward(const torch::Tensor& x_NCL) {
        const auto out = Conv1dImpl::forward(x_NCL);
        return activates ? out.relu() : out;
    }

    bool activates;
};
TORCH_MODULE_IMPL(ConvReLU, skein::unit<ConvReLUImpl>);

/// Waves or spectra to the logarithms of what each frame is. Weights begin as torch makes them.
struct ConvCTCImpl : torch::nn::Module {
    ///   errors  usage for a size below 1
    explicit ConvCTCImpl(const conv_ctc_options& o);

    ///   input_NCL  options.features channels
    ///   errors     usage when it is too short for one frame
    torch::Tensor forward(const torch::Tensor& input_NCL);

    conv_ctc_options options;
    std::vector<ConvReLU> layers;
    std::shared_ptr<torch::nn::Module> acoustic_model; // names the layers as torchaudio does
};
TORCH_MODULE(ConvCTC);

/// Minus the logarithm of the probability of each text over all ways to place its letters, over its
/// letters, in the mean. A text that does not fit into its frames counts as 0.
///   scores_NKT  of the network
///   lengths_N   int64: places of each input that are not padding
///   letters_NS  int64, from 1 on; what is behind a text's end does not count
///   counts_N    int64: letters of each text
[[nodiscard]] torch::Tensor ctc_loss(const conv_ctc_options& o, const torch::Tensor& scores_NKT,
                                     const torch::Tensor& lengths_N,
                                     const torch::Tensor& letters_NS,
                                     const torch::Tensor& counts_N);

/// The likeliest letter of each frame, runs as one and blanks left out.
[[nodiscard]] std::vector<std::vector<std::int64_t>> best_letters(const torch::Tensor& scores_NKT);

} // namespace skein::models

#if SKEIN_HEADER_ONLY
#include <skein/models/detail/conv_ctc.ipp>
#endif
