// SPDX-License-Identifier: Apache-2.0
#include <skein/core/error.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/models/llama.hpp>

#include <tests/models/sharded.hpp>
#include <tests/models/trains.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/temporary_folder.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cmath>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace llama_test {

using namespace skein;

const models::llama_options small{.vocabulary = 19,
                                  .context = 8,
                                  .layers = 2,
                                  .heads = 4,
                                  .key_heads = 2,
                                  .dim = 12,
                                  .head_dim = 6,
                                  .mlp_dim = 20};

models::llama_options tied_one() {
    auto o = small;
    o.tied = true;
    return o;
}

torch::Tensor some_tokens() { return torch::arange(14).view({2, 7}).remainder(19); }

TEST_CASE("published Llamas have their parameters") {
    CHECK(models::parameter_count(models::llama_2_7b()) == 6'738'415'616);
    CHECK(models::parameter_count(models::llama_3_8b()) == 8'030'261'248);
    CHECK(models::parameter_count(models::tiny_llama()) == 1'100'048'384);
    // Six for each weight but those of the embedding, and the attention's 6 L D T for each token.
    const double of_a_token = models::flops_per_sample(models::llama_2_7b()) / 4096;
    CHECK(std::fabs(of_a_token / (6 * (6'738'415'616.0 - 32000 * 4096) + 6 * 32 * 4096.0 * 4096) -
                    1) < 1e-4);
}

TEST_CASE("a Llama is made as its options say, with transformers' names") {
    torch::manual_seed(1);
    models::Llama net(small), tied(tied_one());
    CHECK(models_test::count_of(*net) == models::parameter_count(small));
    CHECK(models_test::count_of(*tied) == models::parameter_count(tied_one()));
    const auto named = net->named_parameters();
    CHECK(named["layers.1.self_attn.k_proj.weight"].sizes().vec() ==
          std::vector<std::int64_t>{12, 12});
    CHECK(named["layers.1.self_attn.o_proj.weight"].sizes().vec() ==
          std::vector<std::int64_t>{12, 24});
    CHECK(named["layers.0.mlp.down_proj.weight"].sizes().vec() ==
          std::vector<std::int64_t>{12, 20});
    CHECK(named["layers.0.post_attention_layernorm.weight"].min().item<float>() == 1);
    CHECK(named.contains("lm_head.weight"));
    CHECK_FALSE(tied->named_parameters().contains("lm_head.weight"));
    CHECK(std::fabs(named["embed_tokens.weight"].std().item<double>() / 0.02 - 1) < 0.2);

    const torch::Tensor logits = net(some_tokens());
    CHECK(logits.sizes().vec() == std::vector<std::int64_t>{2, 7, 19});
    logits.sum().backward();
    for (const auto& p : net->parameters()) CHECK(p.grad().defined());
}

TEST_CASE("a token of a Llama sees those before it, and where they are") {
    torch::manual_seed(2);
    torch::NoGradGuard no_grad;
    models::Llama net(small);
    for (auto& p : net->parameters())
        if (p.dim() == 2) p.mul_(20); // else attention is nearly a mean
    const auto tokens = some_tokens().slice(0, 0, 1);
    const torch::Tensor whole = net(tokens);
    CHECK(torch::allclose(net(tokens.slice(1, 0, 4)), whole.slice(1, 0, 4), 1e-4, 1e-5));
    auto later = tokens.clone();
    later[0][6] = 3;
    CHECK(torch::allclose(net(later).slice(1, 0, 6), whole.slice(1, 0, 6), 1e-4, 1e-5));
    auto exchanged = tokens.clone(); // the same tokens in front of the last one, in another order
    exchanged[0][0] = tokens[0][1];
    exchanged[0][1] = tokens[0][0];
    CHECK_FALSE(torch::allclose(net(exchanged)[0][6], whole[0][6], 1e-3, 1e-4));
}

TEST_CASE("heads that cannot be grouped and odd ones are refused") {
    auto three = small;
    three.key_heads = 3;
    CHECK(test::error_of([&] { models::Llama net(three); }).code() == errc::usage);
    auto odd = small;
    odd.head_dim = 5;
    CHECK(std::string(test::error_of([&] { models::Llama net(odd); }).what())
              .find("4 heads of 5 numbers over 2") != std::string::npos);
}

TEST_CASE("what llama_config() writes is read again") {
    test::temporary_folder dir;
    posix_disk disk;
    auto wanted = tied_one();
    wanted.rotary_base = 500000;
    wanted.norm_epsilon = 1e-6;
    std::ofstream(dir / "config.json") << models::llama_config(wanted);
    const auto found = models::read_llama_config(disk, dir.path);
    CHECK(models::llama_config(found) == models::llama_config(wanted));
    CHECK(found.tied);
    CHECK(found.rotary_base == 500000);
    // As transformers 4 says it, without what has a default.
    std::ofstream(dir / "config.json")
        << R"({"model_type": "llama", "vocab_size": 19, "max_position_embeddings": 8, "hidden_size": 12,
               "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 2, "rope_theta": 77,
               "rope_scaling": null})";
    const auto old = models::read_llama_config(disk, dir.path);
    CHECK(old.rotary_base == 77);
    CHECK(old.key_heads == 2);
    CHECK(old.head_dim == 6);
    CHECK(old.norm_epsilon == 1e-6);
    CHECK_FALSE(old.tied);
}

TEST_CASE("blocks of a Llama are gathered and dropped under FSDP, with the same logits") {
    models_test::check_sharded<models::LlamaBlock>([] { return models::Llama(small); },
                                                   some_tokens(), 0.3, 1e-3);
}

} // namespace llama_test
