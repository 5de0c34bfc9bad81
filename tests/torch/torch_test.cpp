// SPDX-License-Identifier: Apache-2.0
#include <skein/torch/torch.hpp>

#include <catch2/catch_test_macros.hpp>

TEST_CASE("the door to LibTorch gives tensors, autograd and modules") {
    auto x = torch::ones({2, 2}, torch::requires_grad());
    (x * 3).sum().backward();
    CHECK(torch::equal(x.grad(), torch::full({2, 2}, 3.0)));
    torch::nn::Linear layer(2, 1);
    CHECK(layer(x).sizes() == at::IntArrayRef({2, 1}));
    CHECK(TORCH_VERSION_MAJOR == 2);
}
