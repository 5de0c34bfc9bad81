// SPDX-License-Identifier: Apache-2.0
#include <skein/core/error.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/models/gpt2.hpp>
#include <skein/train/training_state.hpp>
#include <skein/train/weights.hpp>

#include <tests/support/temporary_folder.hpp>

#include <tests/models/trains.hpp>

#include <catch2/catch_test_macros.hpp>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

using namespace skein;
using namespace skein::train;
using scratch = skein::test::temporary_folder;

namespace {

const models::gpt2_options tiny{
    .vocabulary = 17, .context = 8, .layers = 2, .heads = 2, .dim = 4, .dropout = 0};

/// The module's tensors as a file that transformers' GPT2LMHeadModel would have written.
void write_as_published(models::GPT2& net, const std::string& path, bool with_head) {
    torch::NoGradGuard no_grad;
    std::vector<std::pair<std::string, torch::Tensor>> all;
    for (const auto& p : net->named_parameters()) {
        const bool is_matrix = p.key().find(".attn.") != std::string::npos ||
                               p.key().find(".mlp.") != std::string::npos;
        const bool turned = is_matrix && p.value().dim() == 2;
        all.emplace_back("transformer." + p.key(),
                         (turned ? p.value().t() : p.value()).detach().contiguous());
    }
    if (with_head) all.emplace_back("lm_head.weight", net->wte->weight.detach() + 1);
    std::vector<tensor_view> views;
    for (const auto& [name, tensor] : all)
        views.push_back({name, "F32", tensor.sizes().vec(), bytes_of(tensor)});
    std::ofstream out(path, std::ios::binary);
    write_safetensors(plan_safetensors(views).value(), [&](byte_span part) {
        out << as_text(part);
        return result<void>();
    }).value();
}

} // namespace

TEST_CASE("GPT-2 small has its 124,439,808 parameters") {
    CHECK(models::parameter_count(models::gpt2_small()) == 124'439'808);
    CHECK(models::flops_per_sample(models::gpt2_small()) > 6.0 * 124'439'808 * 1024);
    models::GPT2 net(tiny);
    CHECK(models_test::count_of(*net) == models::parameter_count(tiny));
    CHECK(net(torch::zeros({2, 5}, torch::kLong)).sizes().vec() ==
          std::vector<std::int64_t>{2, 5, 17});
}

TEST_CASE("published weights fill it, turned round, and a tied head with other values is refused") {
    torch::manual_seed(1);
    scratch dir;
    models::GPT2 from(tiny), into(tiny);
    write_as_published(from, dir / "model.safetensors", false);
    load_weights(*into, "hf:" + dir.path, models::maps::gpt2());
    for (const auto& p : from->named_parameters()) {
        INFO(p.key());
        CHECK(torch::equal(into->named_parameters()[p.key()], p.value()));
    }

    write_as_published(from, dir / "model.safetensors", true);
    models::GPT2 other(tiny);
    const auto before = other->wpe->weight.detach().clone();
    try {
        load_weights(*other, "hf:" + dir.path, models::maps::gpt2());
        FAIL("it was loaded");
    } catch (const error& why) {
        CHECK(why.code() == errc::mismatch);
        CHECK(std::string(why.what()).find("lm_head.weight are one tensor") != std::string::npos);
    }
    CHECK(torch::equal(other->wpe->weight, before)); // nothing was written
}

TEST_CASE("the sizes come from config.json, and settings that this model has not are refused") {
    scratch dir;
    posix_disk disk;
    const auto config_says = [&](const std::string& more) {
        std::ofstream(dir / "config.json")
            << R"({"model_type": "gpt2", "vocab_size": 17, "n_positions": 8, "n_embd": 4, "n_layer": 2,
                   "n_head": 2, "resid_pdrop": 0.25, "n_inner": null)"
            << more << "}";
    };
    const auto refused = [&] {
        try {
            (void)models::read_gpt2_config(disk, dir.path);
        } catch (const error& why) {
            return std::string(why.what());
        }
        return std::string("it was taken");
    };
    config_says("");
    const auto o = models::read_gpt2_config(disk, dir.path);
    CHECK(models::parameter_count(o) == models::parameter_count(tiny));
    CHECK(o.dropout == 0.25);
    CHECK(o.norm_epsilon == 1e-5);
    std::ofstream(dir / "config.json") << models::gpt2_config(o); // what is written is read
    const auto again = models::read_gpt2_config(disk, dir.path);
    CHECK(models::parameter_count(again) == models::parameter_count(o));
    CHECK(again.heads == o.heads);
    CHECK(again.dropout == o.dropout);
    config_says(R"(, "activation_function": "relu")");
    CHECK(refused().find("not supported: a GPT-2 whose activation_function is \"relu\"") !=
          std::string::npos);
    config_says(R"(, "n_head": 3)"); // named twice
    CHECK(refused().find("twice") != std::string::npos);
    std::ofstream(dir / "config.json") << R"({"model_type": "gpt2", "vocab_size": -1})";
    CHECK(refused().find("'vocab_size' is missing or is not a size") != std::string::npos);
    std::filesystem::remove(dir / "config.json");
    CHECK(refused().find("config.json") != std::string::npos);
}
