// SPDX-License-Identifier: Apache-2.0
#include <skein/train/module_type.hpp>

#include <skein/torch/torch.hpp>

#include <catch2/catch_test_macros.hpp>

#include <type_traits>

using skein::train::detail::is_any_of;
using skein::train::detail::module_type;

TEST_CASE("a module is known by its holder and by its class") {
    static_assert(std::is_same_v<module_type<torch::nn::Linear>::type, torch::nn::LinearImpl>);
    static_assert(std::is_same_v<module_type<torch::nn::LinearImpl>::type, torch::nn::LinearImpl>);
    const torch::nn::Linear linear(2, 2);
    CHECK(is_any_of<torch::nn::Linear>(*linear));
    CHECK(is_any_of<torch::nn::LayerNorm, torch::nn::LinearImpl>(*linear));
    CHECK_FALSE(is_any_of<torch::nn::LayerNorm>(*linear));
}
