// SPDX-License-Identifier: Apache-2.0
#include <skein/models/efficientnet.hpp>
#include <tests/models/trains.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cmath>
#include <cstdint>

using namespace skein;

TEST_CASE("EfficientNet-B0 and B7 have their parameters and their cost") {
    CHECK(models::parameter_count(models::efficientnet_b0()) == 5'288'548);
    CHECK(models::parameter_count(models::efficientnet_b7()) == 66'347'960);
    // torchvision counts a multiplication and an addition as one: 0.386e9 and 37.746e9 forward.
    CHECK(std::fabs(models::flops_per_sample(models::efficientnet_b0()) / (6 * 0.386e9) - 1) <
          5e-3);
    CHECK(std::fabs(models::flops_per_sample(models::efficientnet_b7()) / (6 * 37.746e9) - 1) <
          5e-3);
}

TEST_CASE("an EfficientNet is made as its options say, with torchvision's names") {
    torch::manual_seed(1);
    const models::efficientnet_options small{.width = 0.25, .depth = 0.5, .classes = 5};
    models::EfficientNet net(small);
    CHECK(models_test::count_of(*net) == models::parameter_count(small));
    const auto parameters = net->named_parameters();
    for (const char* name :
         {"features.0.0.weight", "features.1.0.block.0.0.weight", "features.2.0.block.0.1.bias",
          "features.2.0.block.2.fc1.bias", "features.7.0.block.3.1.weight", "features.8.0.weight",
          "classifier.1.weight"}) {
        INFO(name);
        CHECK(parameters.contains(name));
    }
    CHECK(parameters["features.1.0.block.1.fc2.bias"].abs().max().item<float>() == 0);
    CHECK(parameters["classifier.1.weight"].abs().max().item<double>() <= 1 / std::sqrt(5.0));

    models_test::check_trains(net, torch::randn({3, 3, 40, 56}), 5);
}

TEST_CASE("a block is left out of a sample as often as it is told") {
    torch::manual_seed(3);
    models::MBConv block(
        models::detail::mbconv_options{.from = 4, .wide = 8, .to = 4, .drop = 0.25});
    const auto images = torch::randn({4000, 4, 2, 2});
    const auto out = block(images);
    const auto left_out = (out == images).flatten(1).all(1).sum().item<std::int64_t>();
    CHECK((left_out > 900 && left_out < 1100));
    block->eval();
    CHECK((block(images) == images).flatten(1).all(1).sum().item<std::int64_t>() == 0);
}
