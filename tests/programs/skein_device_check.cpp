// SPDX-License-Identifier: Apache-2.0
// skein_device_check: trains on a device what it trains on the CPU, and says how far they are apart.
//
//   skein_device_check survey                what this process has for a device, as one JSON line
//   skein_device_check single|ddp|fsdp FILE [--workers N]
//
// 20 steps in float32 each; N ranks (2) share the devices that there are by communicator "host".
// Appends a JSON line per figure to FILE. Exits with 77, and says why, where there is no device; with
// 1 where the weights or the loss are further apart than 1e-5. scripts/gpu-check runs it.
#include <skein/dist/nccl.hpp>
#include <skein/train.hpp>
#include <skein/train/device.hpp>

#include "support/residual_block.hpp"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/core.h>

namespace {

using namespace skein;
using test::Block;
using train::context;

constexpr double bar = 1e-5;

struct NetImpl : torch::nn::Module {
    NetImpl() : norm(torch::nn::LayerNormOptions({64})), head(64, 8) {
        int number = 0;
        for (auto* each : {&first, &second, &third})
            *each = register_module("block" + std::to_string(number++), Block(64));
        register_module("norm", norm);
        register_module("head", head);
    }
    torch::Tensor forward(const torch::Tensor& x) { return head(norm(third(second(first(x))))); }
    Block first{nullptr}, second{nullptr}, third{nullptr};
    torch::nn::LayerNorm norm;
    torch::nn::Linear head;
};
TORCH_MODULE(Net);

struct small_buckets {
    static constexpr std::size_t first_bytes = 1 << 12, bytes = 1 << 15;
};

struct numbers {
    struct samples {
        torch::Tensor x, y;
    };
    [[nodiscard]] std::uint64_t size() const { return 512; }
    [[nodiscard]] samples batch(std::span<const std::uint64_t> ids) const {
        const auto n = static_cast<std::int64_t>(ids.size());
        samples out{torch::empty({n, 64}), torch::empty({n}, torch::kLong)};
        auto* x = out.x.mutable_data_ptr<float>();
        auto* y = out.y.mutable_data_ptr<std::int64_t>();
        for (const auto id : ids) {
            for (std::uint64_t j = 0; j < 64; ++j)
                *x++ = static_cast<float>((id * 37 + j * 11 + id * id * 3) % 101) / 50.0f - 1.0f;
            *y++ = static_cast<std::int64_t>((id * 7 + id / 3) % 8);
        }
        return out;
    }
};

run_config config_of(int workers) {
    run_config c;
    c.max_steps = 20;
    c.global_batch = 32;
    c.eval_every = 0;
    c.checkpoint.every = 0;
    c.checkpoint.enabled = false;
    c.output = train::output_mode::quiet;
    c.write_files = false;
    c.communicator = "host";
    c.scaling.workers = workers;
    return c;
}

struct trained {
    std::vector<float> weights;
    double loss = 0;
};

template <class Strategy>
trained train_on(context& ctx, const std::string& device, int workers) {
    auto config = config_of(workers);
    config.device = device;
    torch::manual_seed(42);
    Net net;
    Trainer<Strategy> trainer(ctx, config);
    const auto loss = [on = trainer.device()](Net& m, const numbers::samples& b) {
        return torch::nn::functional::cross_entropy(m->forward(b.x.to(on)), b.y.to(on));
    };
    const auto result =
        trainer.fit(net, AdamW{}, train::constant_rate{1e-3}, loss, numbers{}, numbers{});
    trained out{{}, result.loss};
    for (const auto& p : net->parameters()) {
        const auto flat = p.detach().cpu().contiguous();
        const auto* const from = flat.const_data_ptr<float>();
        out.weights.insert(out.weights.end(), from, from + flat.numel());
    }
    return out;
}

/// Largest difference, relative to the largest weight.
double distance(const trained& a, const trained& b) {
    double worst = a.weights.size() == b.weights.size() ? 0.0 : 1e30, scale = 1e-30;
    for (std::size_t i = 0; i < a.weights.size() && i < b.weights.size(); ++i) {
        worst = std::max(worst, std::abs(static_cast<double>(a.weights[i]) - b.weights[i]));
        scale = std::max(scale, std::abs(static_cast<double>(b.weights[i])));
    }
    return worst / scale;
}

template <class Strategy>
void compare(context& ctx, const std::string& name, const std::string& file, int workers) {
    const auto here = train_on<Strategy>(ctx, "cpu", workers);
    const auto there = train_on<Strategy>(ctx, "cuda", workers);
    const double weights = distance(there, here), loss = std::abs(there.loss - here.loss);
    if (ctx.is_first()) {
        std::ofstream to(file, std::ios::app);
        const auto line = [&](const char* what, double value) {
            to << fmt::format(R"({{"figure":"{} {}","value":{:g},"bar":{:g},"ranks":{}}})", name,
                              what, value, bar, workers)
               << '\n';
        };
        line("weights apart from the cpu, 20 steps", weights);
        line("loss apart from the cpu, 20 steps", loss);
    }
    if (!(weights <= bar) || !(loss <= bar))
        throw error(errc::mismatch,
                    fmt::format("{}: weights {:g} and loss {:g} apart from the CPU's after 20 "
                                "steps, more than {:g}",
                                name, weights, loss, bar));
}

/// In one line, with what has to be escaped left out.
std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (const char c : text) out += c == '"' || c == '\\' ? '\'' : c < ' ' ? ' ' : c;
    return out + '"';
}

std::string lacking(const train::device_survey& there) {
    std::string all;
    for (const auto& each : there.lacking) all += (all.empty() ? "" : "; ") + each.what;
    return all;
}

int survey() {
    const auto there = train::survey_devices();
    int runtime = 0, driver = 0;
    if (const auto cuda = dist::load_cuda_runtime()) {
        (void)cuda->runtime_version(&runtime);
        (void)cuda->driver_version(&driver);
    }
    const auto nccl = dist::load_nccl();
    fmt::print(R"({{"devices":{},"lacking":{},"cuda":{},"driver":{},"nccl":{},"nccl_from":{}}})"
               "\n",
               there.lacking.empty() ? there.devices : 0, quoted(lacking(there)), runtime, driver,
               nccl ? nccl->version_number : 0,
               quoted(nccl ? nccl->source : std::string(nccl.error().what())));
    return 0;
}

} // namespace

int main(int argc, char** argv) {
    const std::string_view what = argc > 1 ? argv[1] : "";
    if (what == "survey") return survey();
    if (argc < 3 || (what != "single" && what != "ddp" && what != "fsdp")) {
        fmt::print(stderr,
                   "usage: skein_device_check survey | single|ddp|fsdp FILE [--workers N]\n");
        return 2;
    }
    const std::string file = argv[2];
    int workers = what == "single" ? 1 : 2;
    if (argc == 5 && std::string_view(argv[3]) == "--workers") workers = std::atoi(argv[4]);
    if (const auto why = lacking(train::survey_devices()); !why.empty()) {
        fmt::print("skipped: {}\n", why);
        return 77;
    }
    return train::launch(config_of(workers), [&](context& ctx) {
        if (what == "single") compare<Single>(ctx, "single", file, workers);
        if (what == "ddp") compare<DDP<small_buckets>>(ctx, "ddp", file, workers);
        if (what == "fsdp") compare<FSDP<auto_wrap<Block>>>(ctx, "fsdp", file, workers);
    });
}
