// SPDX-License-Identifier: Apache-2.0
#pragma once
// A small network of convolutions for digits: plain LibTorch, nothing in it knows of workers.

#include <skein/torch.hpp>

#include <cstdint>

struct NetImpl : torch::nn::Module {
    explicit NetImpl(std::int64_t width)
        : first(torch::nn::Conv2dOptions(1, width, 5)),
          second(torch::nn::Conv2dOptions(width, 2 * width, 5)), hidden(2 * width * 16, 16 * width),
          out(16 * width, 10), dropout(0.25) {
        register_module("first", first);
        register_module("second", second);
        register_module("hidden", hidden);
        register_module("out", out);
        register_module("dropout", dropout);
    }
    /// pictures [B, 1, 28, 28]; scores [B, 10]
    torch::Tensor forward(torch::Tensor x_BCHW) {
        x_BCHW = torch::max_pool2d(torch::relu(first(x_BCHW)), 2);
        x_BCHW = torch::max_pool2d(torch::relu(second(x_BCHW)), 2);
        return out(dropout(torch::relu(hidden(x_BCHW.flatten(1)))));
    }
    torch::nn::Conv2d first, second;
    torch::nn::Linear hidden, out;
    torch::nn::Dropout dropout;
};
TORCH_MODULE(Net);
