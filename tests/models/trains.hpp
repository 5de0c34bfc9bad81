// SPDX-License-Identifier: Apache-2.0
#pragma once
// What every network does, and what every one for images.

#include <skein/torch/torch.hpp>

#include <cstdint>
#include <vector>

#include <catch2/catch_test_macros.hpp>

namespace models_test {

/// Numbers that are trained.
inline std::int64_t count_of(const torch::nn::Module& module) {
    std::int64_t count = 0;
    for (const auto& p : module.parameters()) count += p.numel();
    return count;
}

/// Gives logits, a gradient for each parameter, and in eval mode the same logits again.
template <class Net>
void check_trains(Net& net, const torch::Tensor& images, std::int64_t classes) {
    const torch::Tensor logits = net(images);
    CHECK(logits.sizes().vec() == std::vector<std::int64_t>{images.size(0), classes});
    logits.sum().backward();
    for (const auto& p : net->named_parameters()) {
        INFO(p.key());
        CHECK(p.value().grad().defined());
    }
    net->eval();
    CHECK(torch::equal(net(images), net(images)));
}

} // namespace models_test
