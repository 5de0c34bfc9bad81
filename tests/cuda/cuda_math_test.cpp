// SPDX-License-Identifier: Apache-2.0
// label: cuda
#include <skein/torch/cuda.hpp>
#include <skein/train/cuda_math.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cstdint>
#include <string>
#include <vector>

using namespace skein;
using namespace skein::train;

TEST_CASE("averages are divisions, rounded once, and integers go towards zero") {
    auto whole = torch::tensor({7, -7, 9, 1}, torch::kLong);
    train::detail::divide_elements(whole, 2);
    CHECK(torch::equal(whole, torch::tensor({3, -3, 4, 0}, torch::kLong)));

    auto numbers = torch::arange(1, 200, torch::kFloat);
    auto expected = numbers.clone();
    auto* const to = expected.mutable_data_ptr<float>();
    for (std::int64_t i = 0; i < expected.numel(); ++i) to[i] = to[i] / 3.0f;
    train::detail::divide_elements(numbers, 3);
    CHECK(torch::equal(numbers, expected));

    auto halves = torch::arange(1, 200, torch::kFloat).to(torch::kBFloat16);
    const auto once = halves.to(torch::kFloat).div(257.0).to(torch::kBFloat16);
    train::detail::divide_elements(halves, 257); // a number that has no bfloat16
    CHECK(torch::equal(halves, once));
}

TEST_CASE("memory of the host is refused by name") {
    std::vector<float> here(4);
    const auto view = dist::view_of(std::span(here));
    try {
        (void)train::detail::tensor_on_device(view);
        FAIL("it was taken");
    } catch (const error& why) {
        CHECK(why.code() == errc::not_supported);
        CHECK(std::string(why.what()).find("memory of cpu") != std::string::npos);
    }
}
