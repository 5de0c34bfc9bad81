// SPDX-License-Identifier: Apache-2.0
// expect: fit() takes a module holder (TORCH_MODULE) or a std::shared_ptr to the module
#include <skein/train/single.hpp>
#include <skein/train/trainer.hpp>

struct line : torch::nn::Module {
    torch::Tensor forward(const torch::Tensor& x) { return x; }
};

struct samples {
    std::uint64_t size() const { return 1; }
    int batch(std::span<const std::uint64_t>) const { return 0; }
};

void use(skein::train::context& ctx) {
    skein::Trainer<skein::Single> trainer(ctx, {});
    const auto loss = [](auto&, const int&) { return torch::zeros({}); };
    line model;
    (void)trainer.fit(model, skein::AdamW{}, skein::train::constant_rate{}, loss, samples{},
                      samples{});
}
