// SPDX-License-Identifier: Apache-2.0
// Models with weights of others, for tests/interop/models_test.py.
//
//     skein_models count                              # NAME PARAMETERS, a line for each
//     skein_models logits NAME WEIGHTS INPUT OUTPUT   # of INPUT's "input", in eval and train mode,
//                                                     # and the buffers that the latter leaves
//     skein_models make NAME FOLDER                   # one drawn here, exported
//
// WEIGHTS of a gpt2 or llama is a folder of Hugging Face's, whose config.json says the sizes.

#include <skein/core/error.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/models/conv_ctc.hpp>
#include <skein/models/efficientnet.hpp>
#include <skein/models/gpt2.hpp>
#include <skein/models/llama.hpp>
#include <skein/models/resnet.hpp>
#include <skein/models/vit.hpp>
#include <skein/train/export_weights.hpp>
#include <skein/train/training_state.hpp>
#include <skein/train/weights.hpp>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace {

using namespace skein;

/// In train mode nothing is drawn: no dropout, no block left out.
models::efficientnet_options without_chance(models::efficientnet_options o) {
    o.dropout = o.stochastic_depth = 0;
    return o;
}

models::vit_options small_vit() {
    return {
        .image = 32, .patch = 8, .layers = 3, .heads = 4, .dim = 64, .mlp_dim = 128, .classes = 10};
}

models::gpt2_options small_gpt2() {
    return {.vocabulary = 257, .context = 24, .layers = 3, .heads = 4, .dim = 32, .dropout = 0};
}
/// Heads whose sizes together are not that of the model.
models::llama_options small_llama(bool tied) {
    return {.vocabulary = 257,
            .context = 24,
            .layers = 3,
            .heads = 6,
            .key_heads = 2,
            .dim = 48,
            .head_dim = 10,
            .mlp_dim = 56,
            .rotary_base = 500,
            .tied = tied};
}

/// Calls use(model, how it is exported) with a new one of the name.
///   folder  that says the sizes of a language model; empty: small ones
void with_model(const std::string& name, const std::string& folder, const auto& use) {
    torch::manual_seed(5);
    posix_disk here;
    if (name == "resnet18") return use(models::ResNet(models::resnet18()), {});
    if (name == "resnet50") return use(models::ResNet(models::resnet50()), {});
    if (name == "vit_b_16") return use(models::ViT(models::vit_b_16()), {});
    if (name == "small_vit") return use(models::ViT(small_vit()), {});
    if (name == "efficientnet_b0")
        return use(models::EfficientNet(without_chance(models::efficientnet_b0())), {});
    if (name == "efficientnet_b7")
        return use(models::EfficientNet(without_chance(models::efficientnet_b7())), {});
    if (name == "wav2letter") {
        auto o = models::wav2letter();
        o.last_relu = true;
        return use(models::ConvCTC(o), {});
    }
    if (name == "wav2letter_of_spectra")
        return use(models::ConvCTC(models::wav2letter_of_spectra()), {});
    if (name == "gpt2") {
        const auto o = folder.empty() ? small_gpt2() : models::read_gpt2_config(here, folder);
        return use(models::GPT2(o),
                   {.map = models::maps::gpt2(), .config = models::gpt2_config(o)});
    }
    if (name == "llama" || name == "tied_llama") {
        const auto o = folder.empty() ? small_llama(name == "tied_llama")
                                      : models::read_llama_config(here, folder);
        return use(models::Llama(o),
                   {.map = models::maps::llama(o), .config = models::llama_config(o)});
    }
    throw error(errc::usage, fmt::format("there is no model {}", name));
}

torch::Tensor read_tensor(const std::string& path, const std::string& name) {
    posix_disk here;
    const auto from = train::open_weights(here, path);
    const auto& found = from->tensors().at(name);
    auto out = torch::empty(found.shape, found.dtype == "I64" ? torch::kLong : torch::kFloat);
    from->read(name, 0, found.shape[0], train::bytes_of(out));
    return out;
}

void write_tensors(const std::string& path,
                   const std::vector<std::pair<std::string, torch::Tensor>>& all) {
    std::vector<train::tensor_view> views;
    for (const auto& [name, tensor] : all)
        views.push_back({name, "F32", tensor.sizes().vec(), train::bytes_of(tensor)});
    std::ofstream out(path, std::ios::binary);
    train::write_safetensors(train::plan_safetensors(views).value(), [&](byte_span part) {
        out << as_text(part);
        return result<void>();
    }).value();
}

void count() {
    fmt::print("resnet18 {}\n", models::parameter_count(models::resnet18()));
    fmt::print("resnet50 {}\n", models::parameter_count(models::resnet50()));
    fmt::print("efficientnet_b0 {}\n", models::parameter_count(models::efficientnet_b0()));
    fmt::print("efficientnet_b7 {}\n", models::parameter_count(models::efficientnet_b7()));
    fmt::print("vit_b_16 {}\n", models::parameter_count(models::vit_b_16()));
    fmt::print("wav2letter {}\n", models::parameter_count(models::wav2letter()));
    fmt::print("wav2letter_of_spectra {}\n",
               models::parameter_count(models::wav2letter_of_spectra()));
    fmt::print("gpt2 {}\n", models::parameter_count(models::gpt2_small()));
    fmt::print("llama_2_7b {}\n", models::parameter_count(models::llama_2_7b()));
    fmt::print("llama_3_8b {}\n", models::parameter_count(models::llama_3_8b()));
    fmt::print("tiny_llama {}\n", models::parameter_count(models::tiny_llama()));
}

void logits(const std::string& name, const std::string& weights, const std::string& input,
            const std::string& output) {
    const auto given = read_tensor(input, "input");
    const bool is_folder = std::filesystem::is_directory(weights);
    const auto answer = [&](auto net, const train::export_options& how) {
        torch::NoGradGuard no_grad;
        train::load_weights(*net, (is_folder ? "hf:" : "") + weights, how.map);
        net->eval();
        std::vector<std::pair<std::string, torch::Tensor>> out;
        out.emplace_back("eval", net(given).contiguous());
        net->train();
        out.emplace_back("train", net(given).contiguous());
        for (const auto& b : net->named_buffers())
            if (b.value().is_floating_point())
                out.emplace_back("buffer." + b.key(), b.value().contiguous());
        write_tensors(output, out);
    };
    with_model(name, is_folder ? weights : "", answer);
}

void make(const std::string& name, const std::string& folder) {
    with_model(name, "", [&](auto net, const train::export_options& how) {
        train::export_safetensors(*net, folder, how);
    });
}

} // namespace

int main(int argc, char** argv) {
    const std::vector<std::string> words(argv + 1, argv + argc);
    try {
        if (words.size() == 1 && words[0] == "count")
            count();
        else if (words.size() == 5 && words[0] == "logits")
            logits(words[1], words[2], words[3], words[4]);
        else if (words.size() == 3 && words[0] == "make")
            make(words[1], words[2]);
        else
            throw error(errc::usage, "count, logits or make");
        return 0;
    } catch (const std::exception& why) {
        fmt::print(stderr, "error: {}\n", why.what());
        return 1;
    }
}
