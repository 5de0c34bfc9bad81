// SPDX-License-Identifier: Apache-2.0
// expect: the third argument must be a schedule of the learning rate
// expect: the second argument must be an optimizer
// expect: a dataset of torch::data is no data here
// expect: the data must have size() and batch(std::span<const std::uint64_t> ids)
// expect: held_out must have size() and batch(ids) as well; its size may be 0
// absent: no matching member function
#include <skein/train/single.hpp>
#include <skein/train/trainer.hpp>

struct samples {
    std::uint64_t size() const { return 1; }
    int batch(std::span<const std::uint64_t>) const { return 0; }
};

struct pairs : torch::data::datasets::Dataset<pairs> {
    torch::data::Example<> get(std::size_t) override { return {}; }
    std::optional<std::size_t> size() const override { return 1; }
};

torch::Tensor loss(std::shared_ptr<torch::nn::LinearImpl>&, const int&) { return torch::zeros({}); }

void use(skein::train::context& ctx, std::shared_ptr<torch::nn::LinearImpl> model) {
    skein::Trainer<skein::Single> trainer(ctx, {});
    const skein::train::constant_rate rate;
    const skein::AdamW adam;
    const samples data;
#ifndef SKEIN_COMPILES
    (void)trainer.fit(model, adam, loss, data, data);       // no schedule
    (void)trainer.fit(model, adam, loss, rate, data, data); // a bare function in its place
    (void)trainer.fit(model, 1e-3, rate, loss, data, data);
    (void)trainer.fit(model, adam, rate, loss, pairs{}, data);
    (void)trainer.fit(model, adam, rate, loss, model, data);
    (void)trainer.fit(model, adam, rate, loss, data); // nothing to evaluate on
#endif
    (void)trainer.fit(model, adam, rate, loss, data, data);
    (void)trainer.fit(model, skein::SGD{}, rate, &loss, samples{}, samples{});
}
