// SPDX-License-Identifier: Apache-2.0
#include <skein/torch/tensor.hpp>

#include <catch2/catch_test_macros.hpp>

TEST_CASE("a header that only holds tensors needs no more than their class") {
    const at::Tensor none;
    const at::Tensor same = none;
    CHECK_FALSE(same.defined());
    const torch::nn::Module* module = nullptr;
    CHECK(module == nullptr);
}
