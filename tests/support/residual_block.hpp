// SPDX-License-Identifier: Apache-2.0
#pragma once
// The block of small networks that FSDP gathers and drops: a layer of twice the width, added to what
// came in.

#include <skein/train.hpp>

#include <cstdint>

namespace skein::test {

struct BlockImpl : torch::nn::Module {
    ///   width  elements of a sample; shapes: [batch, width] in and out
    explicit BlockImpl(std::int64_t width = 16) : in(width, 2 * width), out(2 * width, width) {
        register_module("in", in);
        register_module("out", out);
    }
    torch::Tensor forward(const torch::Tensor& x) { return x + out(torch::tanh(in(x))); }
    torch::nn::Linear in, out;
};
TORCH_MODULE_IMPL(Block, skein::unit<BlockImpl>);

} // namespace skein::test
