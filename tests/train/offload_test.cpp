// SPDX-License-Identifier: Apache-2.0
#include <skein/train/offload.hpp>

#include <tests/train/zoo.hpp>

#include <catch2/catch_test_macros.hpp>

#include <filesystem>
#include <stdexcept>

using namespace train_test;

namespace {

/// Attention and convolution: views that have holes, masks, tensors of several types.
struct MixedImpl : torch::nn::Module {
    MixedImpl()
        : qkv(32, 96), norm(torch::nn::LayerNormOptions({32})),
          conv(torch::nn::Conv1dOptions(32, 16, 3).padding(1)), fixed(16, 4) {
        register_module("qkv", qkv);
        register_module("norm", norm);
        register_module("conv", conv);
        register_module("fixed", fixed);
        for (auto& p : fixed->parameters()) p.set_requires_grad(false);
    }
    torch::Tensor forward(const torch::Tensor& x_BTD) {
        const auto parts =
            qkv(norm(x_BTD)).view({2, 8, 3, 4, 8}).permute({2, 0, 3, 1, 4}).unbind(0);
        auto y = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true);
        y = torch::dropout(y.transpose(1, 2).reshape({2, 8, 32}), 0.3, true);
        y = torch::gelu(conv(y.transpose(1, 2)));
        return torch::tanh(fixed(y.transpose(1, 2)));
    }
    torch::nn::Linear qkv;
    torch::nn::LayerNorm norm;
    torch::nn::Conv1d conv;
    torch::nn::Linear fixed;
};

std::vector<torch::Tensor> gradients_of(torch::nn::Module& model, const torch::Tensor& loss) {
    model.zero_grad();
    loss.backward();
    std::vector<torch::Tensor> out{loss.detach()};
    for (const auto& p : model.parameters())
        if (p.grad().defined()) out.push_back(p.grad().clone());
    return out;
}

bool same_bits(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i)
        if (!torch::equal(a[i], b[i])) return false;
    return true;
}

/// A disk that is full after some tensors.
struct full_store final : activation_store {
    explicit full_store(int room) : activation_store(1), room(room) {}
    std::unique_ptr<stored_tensor> put(const at::Tensor&) override {
        if (room-- == 0) throw sk::error(sk::errc::disk_full, "the disk is full");
        return nullptr;
    }
    [[nodiscard]] std::int64_t bytes() const override { return 0; }
    [[nodiscard]] std::int64_t tensors() const override { return 0; }
    int room;
};

struct offloaded_run {
    std::vector<std::vector<float>> weights;
    std::int64_t tensors = 0, bytes = 0;
};

/// zoo.hpp's run with a store per rank: none, a file or bf16.
template <class Strategy>
offloaded_run run_offloaded(const zoo_options& o, const std::string& folder) {
    offloaded_run out;
    out.weights.resize(static_cast<std::size_t>(o.world));
    run_world(
        o.world,
        [&](context& ctx) {
            auto model = make_zoo(o.kind);
            if (o.recompute > 0) (void)checkpoint_activations(*model, o.recompute);
            std::shared_ptr<activation_store> store;
            if (!folder.empty()) store = offload_to_file(folder, 1);
            (void)offload_activations(*model, store);
            auto config = quiet_config("unused");
            config.max_steps = 4;
            sk::Trainer<Strategy> trainer(ctx, config);
            (void)trainer.fit(model, sk::AdamW{}, constant_rate{.peak = 1e-2}, zoo_loss, numbers{},
                              numbers{.n = 0});
            out.weights[static_cast<std::size_t>(ctx.rank())] = weights(*model);
            const std::lock_guard lock(model_guard);
            if (store) {
                out.tensors += store->tensors();
                out.bytes += store->bytes();
            }
        },
        o.transport);
    return out;
}

} // namespace

TEST_CASE("tensors that lie in a file come back with the same bits, whatever their strides") {
    scratch folder;
    torch::manual_seed(5);
    MixedImpl model;
    const auto x = torch::randn({2, 8, 32});
    const auto step = [&] {
        torch::manual_seed(6);
        return gradients_of(model, model.forward(x).pow(2).mean());
    };
    const auto wanted = step();
    const auto store = offload_to_file(folder.path, 1);
    {
        const offload_scope here(store, model);
        torch::manual_seed(6);
        const auto loss = model.forward(x).pow(2).mean();
        CHECK(store->tensors() > 5);
        CHECK(store->bytes() > 1000);
        CHECK(std::filesystem::is_empty(folder.path)); // the file has no name
        CHECK(same_bits(gradients_of(model, loss), wanted));
    }
    CHECK(store->bytes() == 0);
    const auto before = store->tensors();
    CHECK(same_bits(step(), wanted));
    CHECK(store->tensors() == before); // the scope has ended
}

TEST_CASE("parameters, frozen ones and small tensors are not moved") {
    torch::nn::Linear trained(64, 64), frozen(64, 64);
    for (auto& p : frozen->parameters()) p.set_requires_grad(false);
    const auto x = torch::randn({32, 64});
    const auto store = offload_as_bf16();
    {
        const offload_scope here(store, *frozen);
        const auto y = trained(x); // saves x
        CHECK(store->tensors() == 1);
        const auto z = frozen(y); // would save its weight
        CHECK(store->tensors() == 1);
        const auto small = torch::tanh(trained(x.narrow(0, 0, 2)).narrow(1, 0, 8));
        CHECK(store->tensors() == 1);
        {
            const offload_scope none(nullptr);
            (void)torch::tanh(z);
            CHECK(store->tensors() == 1);
        }
        (void)torch::tanh(z);
        CHECK(store->tensors() == 2);
    }
}

TEST_CASE("a gradient over activations in bf16 is off by 2^-8 of its terms at most") {
    torch::manual_seed(7);
    torch::nn::Linear layer(64, 32);
    const auto x = torch::randn({128, 64}), g = torch::randn({128, 32});
    const auto gradient = [&] {
        layer->zero_grad();
        layer(x).backward(g);
        return layer->weight.grad().clone();
    };
    const auto exact = gradient();
    const auto store = offload_as_bf16();
    const offload_scope here(store);
    const auto rounded = gradient();
    CHECK(store->tensors() == 1);
    CHECK_FALSE(torch::equal(exact, rounded));
    const auto bound = torch::mm(g.abs().t(), x.abs()) * (1.0 / 256 + 1e-5);
    CHECK(((rounded - exact).abs() <= bound).all().item<bool>());
}

TEST_CASE("strategies train with activations in files to the bits they have without") {
    scratch folder;
    for (const auto kind : {shape::plain, shape::twice, shape::nested, shape::frozen})
        for (const int recompute : {0, 1}) {
            INFO("shape " << static_cast<int>(kind) << ", recompute " << recompute);
            const zoo_options one{.kind = kind, .recompute = recompute};
            const auto single = run_offloaded<sk::Single>(one, "");
            const auto moved = run_offloaded<sk::Single>(one, folder.path);
            CHECK(moved.weights == single.weights);
            CHECK(moved.tensors > 0);
            CHECK(moved.bytes == 0);
            for (const std::string transport : {"shm", "ring"}) {
                const zoo_options two{
                    .kind = kind, .world = 2, .transport = transport, .recompute = recompute};
                const auto wanted = run_offloaded<sk::FSDP<zoo_cells>>(two, "");
                const auto got = run_offloaded<sk::FSDP<zoo_cells>>(two, folder.path);
                CHECK(got.weights == wanted.weights);
                CHECK(got.tensors > 0);
            }
        }
}

TEST_CASE("an error of the store leaves the forward pass, and the scope ends as ever") {
    torch::manual_seed(8);
    torch::nn::Sequential model(torch::nn::Linear(8, 8), torch::nn::Tanh(),
                                torch::nn::Linear(8, 8));
    const auto x = torch::randn({4, 8});
    const auto wanted = gradients_of(*model, model->forward(x).pow(2).mean());
    for (const int room : {0, 2}) {
        const auto forward = [&] {
            const offload_scope here(std::make_shared<full_store>(room));
            return model->forward(x).pow(2).mean();
        };
        CHECK_THROWS(forward());
        CHECK(same_bits(gradients_of(*model, model->forward(x).pow(2).mean()), wanted));
    }
}

TEST_CASE("backward inside backward, twice over one graph, and tensors changed in place") {
    scratch folder;
    const auto store = offload_to_file(folder.path, 1);
    const auto x = torch::randn({8, 8}).set_requires_grad(true);
    const auto second = [&] {
        const auto y = torch::tanh(x * 2).pow(3).sum();
        const auto first = torch::autograd::grad({y}, {x}, {}, true, true)[0];
        return torch::autograd::grad({first.pow(2).sum()}, {x}, {}, true)[0];
    };
    const auto wanted = second();
    {
        const offload_scope here(store);
        CHECK(torch::equal(second(), wanted));
        const auto y = torch::tanh(x * 2).sum();
        const auto a = torch::autograd::grad({y}, {x}, {}, true)[0];
        CHECK(torch::equal(torch::autograd::grad({y}, {x})[0], a));
    }
    CHECK(store->bytes() == 0);
    const offload_scope here(offload_to_file(folder.path)); // too small to move: kept, and watched
    auto h = x * 2;
    const auto y = torch::tanh(h).sum() + h.pow(2).sum();
    h.add_(1);
    CHECK_THROWS(y.backward());
}

TEST_CASE("a model without blocks has nothing to move") {
    torch::nn::Linear plain(2, 2);
    CHECK_THROWS_AS(offload_activations(*plain, offload_as_bf16()), sk::error);
    auto zoo = make_zoo(shape::plain);
    CHECK(offload_activations(*zoo, offload_as_bf16(),
                              [](std::string_view name) { return name == "b"; }) == 1);
    CHECK(zoo->b->offloads() != nullptr);
    CHECK(offload_activations(*zoo, nullptr) == 0);
    CHECK(zoo->b->offloads() == nullptr);
}
