// SPDX-License-Identifier: Apache-2.0
// Tensors as arguments, results and objects of tasks:
//   skein_tensors [refused]
#include <skein/program/run.hpp>
#include <skein/rt/put.hpp>
#include <skein/rt/remote.hpp>
#include <skein/rt/view.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/tensor_message.hpp>

#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace tensors_program {

at::Tensor scaled(at::Tensor x, double by) { return x.mul_(by); } // its own copy
double sum_of(skein::view<at::Tensor> x) { return x->sum().item<double>(); }
double sum_of_all(std::vector<skein::view<at::Tensor>> all) {
    double sum = 0;
    for (const auto& one : all) sum += one->sum().item<double>();
    return sum;
}

skein::task<void> travel() {
    const auto numbers = at::arange(1 << 20, at::TensorOptions(at::kFloat)).remainder(1000);
    auto putting = skein::put(at::Tensor(numbers));
    const auto there = co_await putting;
    std::vector<skein::ref<double>> sums;
    for (int i = 0; i < 4; ++i) sums.push_back(skein::remote<&sum_of>(there));
    for (auto& one : sums) fmt::print("sum {}\n", co_await std::move(one));
    const auto twice = skein::remote<&scaled>(there, 2.0);
    const auto thrice = skein::remote<&scaled>(numbers, 3.0);
    std::vector<skein::ref<at::Tensor>> both{there, twice, thrice};
    const auto all = skein::remote<&sum_of_all>(both);
    fmt::print("sum of all {}\n", co_await all);
    const auto seen = skein::view(twice);
    const auto v = co_await seen;
    fmt::print("the same {}\n", at::equal(*v, numbers * 2) && v->is_contiguous());
    fmt::print("unchanged {}\n",
               at::equal(numbers, at::arange(1 << 20).remainder(1000).to(at::kFloat)));
}

skein::task<void> refused() {
    const auto weights = at::rand({4, 6}).requires_grad_(true);
    try {
        auto putting = skein::put(at::Tensor(weights));
        (void)co_await putting;
    } catch (const skein::error& e) {
        fmt::print("{}\n", e.what());
    }
    try {
        const auto one = skein::remote<&scaled>(at::rand({4, 6}).t(), 2.0);
        (void)co_await one;
    } catch (const skein::error& e) {
        fmt::print("{}\n", e.what());
    }
}

skein::task<int> app(std::vector<std::string> arguments) {
    auto doing = arguments.empty() ? travel() : refused();
    co_await std::move(doing);
    co_return 0;
}

} // namespace tensors_program

int main(int argc, char** argv) { return skein::run(argc, argv, tensors_program::app); }
