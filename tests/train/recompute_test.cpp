// SPDX-License-Identifier: Apache-2.0
#include <skein/train/recompute.hpp>

#include <tests/train/zoo.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace train_test;

namespace {

/// Counts how often it is computed, and draws random numbers.
struct NoisyImpl : torch::nn::Module {
    NoisyImpl() : linear(8, 8) { register_module("linear", linear); }
    std::vector<torch::Tensor> forward(torch::Tensor x, double scale, const torch::Tensor& shift) {
        calls += 1;
        return {torch::dropout(torch::tanh(linear(x)), 0.5, true) * scale + shift, x * 2};
    }
    torch::nn::Linear linear;
    int calls = 0;
};
TORCH_MODULE_IMPL(Noisy, sk::unit<NoisyImpl>);

struct HolderImpl : torch::nn::Module {
    HolderImpl() {
        register_module("first", first);
        register_module("second", second);
    }
    torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& shift) {
        const auto a = first->forward(x, 2.0, shift);
        const auto b = second->forward(a[0] + a[1], 0.5, shift);
        return (b[0] + b[1]).pow(2).mean();
    }
    Noisy first, second;
};
TORCH_MODULE(Holder);

struct step_result {
    float loss;
    std::vector<torch::Tensor> gradients;
};

step_result one_step(Holder& model, bool input_gradient) {
    model->zero_grad();
    torch::manual_seed(9);
    auto x = torch::randn({4, 8});
    auto shift = torch::randn({8});
    if (input_gradient) {
        x.set_requires_grad(true);
        shift.set_requires_grad(true);
    }
    const auto loss = model->forward(x, shift);
    const auto drawn = torch::rand({3}); // behind the forward: the same with and without
    (loss + drawn.sum()).backward();
    step_result out{(loss + drawn.sum()).item<float>(), {torch::rand({3})}};
    for (const auto& p : model->parameters()) out.gradients.push_back(p.grad().clone());
    if (input_gradient) {
        out.gradients.push_back(x.grad());
        out.gradients.push_back(shift.grad());
    }
    return out;
}

} // namespace

TEST_CASE("a block that is computed again has the same bits: loss, gradients, random numbers") {
    for (const bool input_gradient : {false, true}) {
        torch::manual_seed(3);
        Holder model;
        const auto wanted = one_step(model, input_gradient);
        CHECK(checkpoint_activations(*model) == 2);
        const auto calls = model->first->calls;
        const auto got = one_step(model, input_gradient);
        CHECK(model->first->calls == calls + 2);
        CHECK(got.loss == wanted.loss);
        REQUIRE(got.gradients.size() == wanted.gradients.size());
        for (std::size_t i = 0; i < wanted.gradients.size(); ++i)
            CHECK(torch::equal(got.gradients[i], wanted.gradients[i]));
    }
}

TEST_CASE("every second block, none again, and nothing without gradients") {
    Holder model;
    CHECK(checkpoint_activations(*model, 2) == 1);
    CHECK(model->first->recomputes());
    CHECK_FALSE(model->second->recomputes());
    CHECK(checkpoint_activations(*model) == 2);
    {
        torch::NoGradGuard no_grad;
        (void)model->forward(torch::ones({1, 8}), torch::ones({8}));
    }
    CHECK(model->first->calls == 1);
    CHECK(checkpoint_activations(*model, 0) == 0);
    (void)one_step(model, false);
    CHECK(model->first->calls == 2);
}

TEST_CASE("blocks are chosen by name, too") {
    Holder model;
    CHECK(checkpoint_activations(*model, [](std::string_view name) { return name == "second"; }) ==
          1);
    CHECK_FALSE(model->first->recomputes());
    CHECK(model->second->recomputes());
    torch::nn::Linear plain(2, 2);
    CHECK_THROWS_AS(checkpoint_activations(*plain, [](std::string_view) { return true; }),
                    sk::error);
}

TEST_CASE("a model without blocks, and tensors inside of other arguments, are refused") {
    torch::nn::Linear plain(2, 2);
    CHECK_THROWS_AS(checkpoint_activations(*plain), sk::error);

    struct ListImpl : torch::nn::Module {
        torch::Tensor forward(std::vector<torch::Tensor> all) { return all[0] + all[1]; }
    };
    const auto list = std::make_shared<sk::unit<ListImpl>>();
    list->recompute(true);
    try {
        (void)list->forward({torch::ones({2}), torch::ones({2})});
        FAIL("accepted");
    } catch (const sk::error& e) {
        CHECK(e.code() == sk::errc::not_supported);
    }
}

TEST_CASE("strategies train with recomputed blocks to the bits they have without") {
    for (const auto kind :
         {shape::plain, shape::frozen, shape::unused, shape::twice, shape::nested, shape::uneven}) {
        INFO("shape " << static_cast<int>(kind));
        const auto single = run_zoo<sk::Single>({.kind = kind});
        CHECK(run_zoo<sk::Single>({.kind = kind, .recompute = 1}).weights == single.weights);
        const auto wanted = run_zoo<sk::DDP<tiny_buckets>>({.kind = kind, .world = 2});
        for (const std::string transport : {"shm", "ring"}) {
            INFO(transport);
            const zoo_options o{.kind = kind, .world = 2, .transport = transport, .recompute = 1};
            CHECK(run_zoo<sk::DDP<tiny_buckets>>(o).weights == wanted.weights);
            CHECK(run_zoo<sk::FSDP<zoo_cells>>(o).weights == wanted.weights);
        }
    }
}
