// SPDX-License-Identifier: Apache-2.0
#include <skein/train/unit.hpp>

#include <tests/train/train_support.hpp>

#include <catch2/catch_test_macros.hpp>

namespace {

namespace sk = skein;

struct PairImpl : torch::nn::Module {
    explicit PairImpl(int width) : linear(width, width) { register_module("linear", linear); }
    std::pair<torch::Tensor, std::vector<torch::Tensor>> forward(torch::Tensor x, double scale) {
        return {linear(x) * scale, {x, x + 1}};
    }
    torch::nn::Linear linear;
};
TORCH_MODULE_IMPL(Pair, sk::unit<PairImpl>);

struct ConstImpl : torch::nn::Module {
    torch::Tensor forward(const torch::Tensor& x) const { return x * 2; }
};
TORCH_MODULE_IMPL(Const, sk::unit<ConstImpl>);

struct StepImpl : torch::nn::Module {
    StepImpl() : linear(8, 8) { register_module("linear", linear); }
    torch::Tensor forward(torch::Tensor x) { return torch::tanh(linear(x)); }
    torch::nn::Linear linear;
};
TORCH_MODULE_IMPL(Step, sk::unit<StepImpl>);

/// Writes down what it is asked.
struct recorder : sk::train::unit_hooks {
    void before_forward(std::size_t unit) override {
        said.push_back("before " + std::to_string(unit));
    }
    void after_forward(std::size_t unit, std::span<const at::Tensor> outputs) override {
        said.push_back("after " + std::to_string(unit) + " with " + std::to_string(outputs.size()));
    }
    void before_backward(std::size_t unit) override {
        said.push_back("backward " + std::to_string(unit));
    }
    std::vector<std::string> said;
};

} // namespace

TEST_CASE("a unit computes what its block computes, with and without hooks") {
    Pair pair(4);
    const auto x = torch::ones({2, 4});
    const auto plain = pair->forward(x, 3.0);
    const auto hooks = std::make_shared<recorder>();
    pair->attach(hooks, 7);
    const auto hooked = pair->forward(x, 3.0);
    CHECK(torch::equal(plain.first, hooked.first));
    CHECK(hooks->said == std::vector<std::string>{"before 7", "after 7 with 3"});
    pair->attach(nullptr, 0);
    (void)pair->forward(x, 3.0);
    CHECK(hooks->said.size() == 2);
}

TEST_CASE("a unit's forward has the block's signature: const, in a Sequential, in an AnyModule") {
    const Const twice;
    CHECK(torch::equal(twice->forward(torch::ones({2})), torch::full({2}, 2.0)));

    torch::nn::Sequential rows{Step(), Step()};
    const auto hooks = std::make_shared<recorder>();
    for (std::size_t i = 0; i < rows->size(); ++i)
        std::dynamic_pointer_cast<sk::train::unit_mark>(rows->ptr(i))->attach(hooks, i);
    CHECK(rows->forward(torch::ones({2, 8})).sizes() == at::IntArrayRef{2, 8});
    CHECK(hooks->said ==
          std::vector<std::string>{"before 0", "after 0 with 1", "before 1", "after 1 with 1"});
    torch::nn::AnyModule any{Step()};
    CHECK(any.forward(torch::ones({1, 8})).dim() == 2);
}

TEST_CASE("parameters of a unit have the names that they have in the block") {
    const Step step;
    CHECK(step->named_parameters().contains("linear.weight"));
}
