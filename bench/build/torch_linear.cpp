// SPDX-License-Identifier: Apache-2.0
// The baseline of examples/100_train.cpp in `scripts/bench build`: a file that includes all of
// LibTorch and trains one linear layer.
#include <torch/torch.h>

#include <cstdio>

int main() {
    torch::manual_seed(1);
    torch::nn::Linear layer(1, 1);
    torch::optim::SGD optimizer(layer->parameters(), torch::optim::SGDOptions(0.1));
    const auto x = torch::rand({64, 1});
    const auto y = 3 * x + 1;
    for (int step = 0; step < 100; ++step) {
        optimizer.zero_grad();
        const auto loss = torch::mse_loss(layer->forward(x), y);
        loss.backward();
        optimizer.step();
        if (step == 99) std::printf("%g\n", loss.item<double>());
    }
}
