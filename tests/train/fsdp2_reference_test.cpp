// SPDX-License-Identifier: Apache-2.0
// FSDP against PyTorch's fully_shard, in float32 and in bfloat16: the same model, data and
// optimizer on two ranks. fsdp2_reference.hpp has its numbers, tests/interop/fsdp2_reference.py
// writes it.
#include <skein/train/fsdp.hpp>
#include <skein/train/optimizer.hpp>

#include <tests/train/fsdp2_reference.hpp>
#include <tests/train/train_support.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cmath>
#include <span>
#include <vector>

using namespace train_test;

namespace {

constexpr std::int64_t batch = 12, inputs = 8, width = 16, hidden = 32, classes = 4;

struct ReferenceCellImpl : torch::nn::Module {
    ReferenceCellImpl() : into(width, hidden), out(hidden, width) {
        register_module("into", into);
        register_module("out", out);
    }
    torch::Tensor forward(const torch::Tensor& x) { return x + out(torch::tanh(into(x))); }
    torch::nn::Linear into, out;
};
TORCH_MODULE_IMPL(ReferenceCell, skein::unit<ReferenceCellImpl>);

struct ReferenceNetImpl : torch::nn::Module {
    ReferenceNetImpl() : embed(inputs, width), head(width, classes) {
        register_module("embed", embed);
        register_module("a", a);
        register_module("b", b);
        register_module("head", head);
    }
    torch::Tensor forward(const torch::Tensor& x) { return head(b(a(embed(x)))); }
    torch::nn::Linear embed;
    ReferenceCell a, b;
    torch::nn::Linear head;
};
// The root, too: it casts what the model is called with, as fully_shard does.
TORCH_MODULE_IMPL(ReferenceNet, skein::unit<ReferenceNetImpl>);

torch::Tensor reference_numbers(std::int64_t count, double seed) {
    auto all = torch::empty({count}, torch::kDouble);
    for (std::int64_t i = 0; i < count; ++i) all[i] = 0.4 * std::sin(0.7 * double(i) + seed);
    return all.to(torch::kFloat);
}

struct reference_result {
    std::vector<double> losses, weights;
};

template <class Strategy>
reference_result reference_run(const std::string& transport) {
    reference_result out;
    run_world(
        2,
        [&](context& ctx) {
            at::set_num_threads(1);
            ReferenceNet net;
            {
                torch::NoGradGuard no_grad;
                double seed = 0;
                for (auto& p : net->parameters())
                    p.copy_(reference_numbers(p.numel(), seed++).view(p.sizes()));
            }
            Strategy strategy(ctx, *net);
            flat_optimizer optimizer(sk::AdamW{.weight_decay = 0.1, .decay_vectors = true},
                                     strategy.store());
            const auto half = batch / 2, from = ctx.rank() * half;
            const auto x = reference_numbers(batch * inputs, 100).view({batch, inputs});
            const auto y = torch::arange(batch).remainder(classes);
            for (int step = 0; step < 20; ++step) {
                strategy.begin_step();
                strategy.begin_micro(true);
                const auto loss = torch::nn::functional::cross_entropy(
                    net->forward(x.narrow(0, from, half)).to(torch::kFloat),
                    y.narrow(0, from, half));
                loss.backward(at::full_like(loss, 0.5));
                strategy.finish_backward();
                double sum = loss.template item<double>();
                all_reduce(ctx, std::span(&sum, 1), sk::dist::reduce_op::sum);
                optimizer.step(1e-2);
                strategy.publish();
                if (ctx.is_first()) out.losses.push_back(sum / 2);
            }
            strategy.finish();
            if (!ctx.is_first()) return;
            const auto all = weights(*net);
            for (std::size_t i = 0; i < all.size(); i += 16) out.weights.push_back(all[i]);
        },
        transport);
    return out;
}

double largest_gap(const std::vector<double>& a, std::span<const double> b) {
    REQUIRE(a.size() == b.size());
    double most = 0;
    for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
    return most;
}

using reference_cells = sk::auto_wrap<ReferenceCell>;

} // namespace

TEST_CASE("FSDP trains as PyTorch's fully_shard in float32") {
    for (const auto* transport : {"shm", "ring"}) {
        const auto run = reference_run<sk::FSDP<reference_cells>>(transport);
        CHECK(largest_gap(run.losses, fsdp2_reference::losses_f32) < 1e-6);
        CHECK(largest_gap(run.weights, fsdp2_reference::weights_f32) < 1e-6);
    }
}

TEST_CASE("FSDP trains as PyTorch's fully_shard in bfloat16 with sums in float32") {
    for (const auto* transport : {"shm", "ring"}) {
        const auto run =
            reference_run<sk::FSDP<reference_cells, sk::precision<sk::bf16>>>(transport);
        CHECK(largest_gap(run.losses, fsdp2_reference::losses_bf16) < 1e-6);
        CHECK(largest_gap(run.weights, fsdp2_reference::weights_bf16) < 1e-6);
    }
    // and that is another result than float32's
    CHECK(std::abs(fsdp2_reference::losses_bf16[19] - fsdp2_reference::losses_f32[19]) > 1e-5);
}
