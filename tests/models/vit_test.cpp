// SPDX-License-Identifier: Apache-2.0
#include <skein/models/vit.hpp>
#include <tests/models/trains.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cmath>
#include <cstdint>
#include <vector>

using namespace skein;

TEST_CASE("ViT-B/16 has its parameters and its cost") {
    CHECK(models::token_count(models::vit_b_16()) == 197);
    CHECK(models::parameter_count(models::vit_b_16()) == 86'567'656);
    // torchvision counts 17.56e9 multiplications with an addition, without those of the attention.
    const auto forward = models::flops_per_sample(models::vit_b_16()) / 6;
    CHECK((forward > 17.2e9 && forward < 18.2e9));
}

TEST_CASE("a Vision Transformer is made as its options say, with torchvision's names") {
    torch::manual_seed(1);
    const models::vit_options small{
        .image = 32, .patch = 8, .layers = 2, .heads = 4, .dim = 64, .mlp_dim = 96, .classes = 5};
    models::ViT net(small);
    CHECK(models_test::count_of(*net) == models::parameter_count(small));
    const auto parameters = net->named_parameters();
    CHECK(parameters["encoder.pos_embedding"].sizes().vec() ==
          std::vector<std::int64_t>{1, 17, 64});
    CHECK(parameters["encoder.layers.encoder_layer_1.mlp.3.weight"].sizes().vec() ==
          std::vector<std::int64_t>{64, 96});
    CHECK(parameters["heads.head.weight"].abs().max().item<float>() == 0);
    const auto& qkv = parameters["encoder.layers.encoder_layer_0.self_attention.in_proj_weight"];
    CHECK(std::fabs(qkv.abs().max().item<double>() - std::sqrt(6.0 / (3 * 64 + 64))) < 0.01);

    torch::nn::init::normal_(net->head->weight);
    models_test::check_trains(net, torch::randn({2, 3, 32, 32}), 5);
}
