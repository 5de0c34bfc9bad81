// SPDX-License-Identifier: Apache-2.0
#pragma once
// What every network for images does.

#include <skein/torch/torch.hpp>

#include <cstdint>
#include <vector>

#include <catch2/catch_test_macros.hpp>

namespace models_test {

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
