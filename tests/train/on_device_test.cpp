// SPDX-License-Identifier: Apache-2.0
// label: cuda
// What a training does for devices, as far as it shows without one: what is refused by name, and the
// arithmetic by tensors, on the CPU.
#include <tests/train/train_support.hpp>

#include <skein/train/detail/square_sums.hpp>
#include <skein/train/device.hpp>
#include <skein/train/flat.hpp>
#include <skein/train/optimizer.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace on_device_test {

using namespace train_test;

/// What it says when it is refused; empty: it is not.
std::string refusal(sk::errc code, const std::function<void()>& work) {
    try {
        work();
    } catch (const sk::error& why) {
        INFO(why.what());
        CHECK(why.code() == code);
        return why.what();
    }
    return {};
}

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

/// A trained layer here, and a buffer that is nowhere.
struct TornImpl : torch::nn::Module {
    TornImpl() : in(4, 4) {
        register_module("in", in);
        register_buffer("table", torch::zeros({4}, torch::Device(torch::kMeta)));
    }
    torch::nn::Linear in;
};
TORCH_MODULE(Torn);

bool is_cuda_here() { return survey_devices().lacking.empty(); }

/// In this process, with the device that the configuration says.
fit_result train_on(const std::string& device, const scratch& dir) {
    fit_result result;
    run_world(1, [&](context& ctx) {
        auto config = quiet_config(dir.path);
        config.max_steps = 2;
        config.device = device;
        auto net = make_net();
        sk::Trainer<sk::Single> trainer(ctx, config);
        const auto loss = [on = trainer.device()](Net& m, const sample_batch& b) {
            return torch::nn::functional::cross_entropy(m->forward(b.x.to(on)), b.y.to(on));
        };
        result = trainer.fit(net, sk::AdamW{}, constant_rate{1e-3}, loss, numbers{64}, numbers{0});
    });
    return result;
}

} // namespace on_device_test

TEST_CASE("a model in several places is refused with what lies where") {
    using namespace on_device_test;
    Torn torn;
    const auto said =
        refusal(sk::errc::not_supported, [&] { flat_store store(*torn, store_options{}); });
    CHECK(has(said, "a model in several places: in.weight is on cpu, table on meta"));
}

TEST_CASE("a trainable parameter on a device that there is no training for is refused") {
    using namespace on_device_test;
    torch::nn::Module net;
    net.register_parameter("table", torch::zeros({4}, torch::Device(torch::kMeta)));
    const auto said =
        refusal(sk::errc::not_supported, [&] { flat_store store(net, store_options{}); });
    CHECK(has(said, "on meta"));
    CHECK(has(said, "on the CPU or on a device of CUDA"));
}

TEST_CASE("an update by numbers of what is not in the host's memory is refused") {
    using namespace on_device_test;
    update_runs runs;
    const auto there = torch::zeros({16}, torch::Device(torch::kMeta));
    runs.push(there, there, {});
    const auto said =
        refusal(sk::errc::not_supported, [&] { runs.for_each([](const run_part&) {}); });
    CHECK(has(said, "an update by numbers of parameters on meta"));
    CHECK(any_optimizer(sk::AdamW{}).works_on_devices());
    CHECK(any_optimizer(sk::SGD{}).works_on_devices());
    CHECK(!any_optimizer(sk::Lion{}).works_on_devices());
    CHECK(!any_optimizer(sk::Adagrad{}).works_on_devices());
}

TEST_CASE("a norm by tensors is that by numbers, but for the order of its sums") {
    using namespace on_device_test;
    const std::lock_guard lock(model_guard);
    torch::manual_seed(3);
    const std::vector<at::Tensor> parts{torch::randn({4096}), torch::randn({16}),
                                        torch::randn({100'000})};
    const double exact = squared_norm(parts),
                 other = sk::train::detail::square_sums::by_tensors(parts);
    CHECK(std::abs(other - exact) <= 1e-12 * exact);
    CHECK(sk::train::detail::square_sums::by_tensors({}) == 0.0);
}

TEST_CASE("a training that asks for a device it has not says so, and automatic takes the CPU") {
    using namespace on_device_test;
    if (is_cuda_here()) return;
    scratch dir;
    const auto said = refusal(sk::errc::usage, [&] { (void)train_on("cuda", dir); });
    CHECK(has(said, "device cuda: "));
    CHECK(has(said, "this LibTorch has no CUDA"));
    const auto cpu = train_on("cpu", dir), automatic = train_on("automatic", dir);
    CHECK(cpu.loss == automatic.loss);
    CHECK(has(refusal(sk::errc::usage, [&] { (void)train_on("tpu", dir); }), "device tpu"));
}
