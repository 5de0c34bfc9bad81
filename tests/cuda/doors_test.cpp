// SPDX-License-Identifier: Apache-2.0
// label: cuda
#include <skein/torch/cuda.hpp>
#include <skein/torch/torch.hpp>

#include <skein/dist/cuda_runtime.hpp>

#include <catch2/catch_test_macros.hpp>

#include <string>

namespace doors_test {

/// What LibTorch throws; empty: nothing.
template <class Work>
std::string thrown_by(Work work) {
    try {
        work();
    } catch (const std::exception& e) {
        return e.what();
    }
    return {};
}

} // namespace doors_test

TEST_CASE("LibTorch's door to devices and skein's table see as many of them") {
    const auto cuda = skein::dist::load_cuda_runtime();
    REQUIRE(cuda); // libc10_cuda.so has loaded it
    const auto count = skein::dist::cuda_devices(*cuda);
    CHECK(c10::cuda::device_count() == (count ? *count : 0));
}

TEST_CASE("streams, guards and events compile, link and load; without a driver they throw") {
    using namespace doors_test;
    if (c10::cuda::device_count() > 0) {
        const c10::cuda::CUDAGuard guard(0);
        const auto stream = c10::cuda::getStreamFromPool();
        CHECK(stream.device_index() == 0);
        CHECK(thrown_by([&] { stream.synchronize(); }).empty());
        return;
    }
    // The words are CUDA's: no driver, one that is too old, or no device.
    for (const auto& said : {thrown_by([] { (void)c10::cuda::getStreamFromPool(); }),
                             thrown_by([] { const c10::cuda::CUDAGuard guard(0); })}) {
        INFO(said);
        const bool told =
            said.find("driver") != std::string::npos || said.find("CUDA") != std::string::npos;
        CHECK(told);
    }
}

TEST_CASE("a program for devices computes on the CPU as before") {
    const auto a = torch::ones({4, 4}, torch::requires_grad());
    a.matmul(a).sum().backward(); // the engine asks every kind of device how many there are
    CHECK(a.grad().sum().item<double>() == 128.0);
}
