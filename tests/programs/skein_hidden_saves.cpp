// SPDX-License-Identifier: Apache-2.0
// skein_hidden_saves: a run with checkpoints on the CPU or on a device of CUDA that is none
// (support/hidden_device.hpp), to be compared with others.
//
//   skein_hidden_saves RUNS [--strategy single|ddp|fsdp|...] [--on cpu|device] [--workers N] [--steps N]
//                      [--beside yes|no] [--resume yes] [--stop-at STEP] [--export FOLDER]
//                      [--write yes]
//
// Strategies of names that end in bf16 compute in bfloat16, those in bf16-bf16 sum in it, too.
// Says of each step its loss, of the end the weights, and of these those that are loaded from the run
// and from the exported folder. --stop-at sends this process SIGTERM, --write writes to parameters
// between two passes. Exits with 77 where LibTorch has devices of its own.
#include <skein/core/crc32c.hpp>
#include <skein/core/error.hpp>
#include <skein/train.hpp>

#include "support/hidden_device.hpp"
#include "support/residual_block.hpp"

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <span>
#include <string>

#include <fmt/core.h>

namespace {

using namespace skein;
using test::Block;
using train::context;

/// With a buffer that training changes, one whose elements do not lie side by side, and a frozen
/// parameter.
struct NetImpl : torch::nn::Module {
    NetImpl() : head(16, 4) {
        int number = 0;
        for (auto* each : {&first, &second, &third})
            *each = register_module("block" + std::to_string(number++), Block());
        register_module("head", head);
        passes = register_buffer("passes", torch::zeros({3}));
        turned = register_buffer("turned", torch::randn({4, 2}).t());
        frozen = register_parameter("frozen", torch::randn({4}), /*requires_grad=*/false);
    }
    torch::Tensor forward(const torch::Tensor& x) {
        if (is_training()) {
            const torch::NoGradGuard no_grad;
            passes.add_(1);
        }
        const auto y = head(third(second(first(x))).to(head->weight.dtype()));
        return y.to(torch::kFloat) + frozen.to(torch::kFloat) + turned.sum(0);
    }
    Block first{nullptr}, second{nullptr}, third{nullptr};
    torch::nn::Linear head;
    torch::Tensor passes, turned, frozen;
};
TORCH_MODULE(Net);

struct small_buckets {
    static constexpr std::size_t first_bytes = 1 << 10, bytes = 1 << 12;
};

struct wave_batch {
    torch::Tensor x, y;
};

/// Each sample is a function of its number.
struct waves {
    std::uint64_t n = 96;
    [[nodiscard]] std::uint64_t size() const noexcept { return n; }
    [[nodiscard]] wave_batch batch(std::span<const std::uint64_t> ids) const {
        const auto count = static_cast<std::int64_t>(ids.size());
        wave_batch out{torch::empty({count, 16}), torch::empty({count, 4})};
        for (std::int64_t i = 0; i < count; ++i) {
            const auto id = static_cast<double>(ids[static_cast<std::size_t>(i)]);
            out.x[i] = torch::sin(torch::arange(16, torch::kFloat) * 0.1 + id);
            out.y[i] = torch::cos(torch::arange(4, torch::kFloat) + id);
        }
        return out;
    }
};

std::uint32_t sum_of(torch::nn::Module& module) {
    std::uint32_t sum = 0;
    const auto add = [&](const at::Tensor& t) {
        const auto dense = t.detach().cpu().contiguous();
        sum = crc32c({static_cast<const std::byte*>(dense.const_data_ptr()), dense.nbytes()}, sum);
    };
    for (const auto& p : module.named_parameters()) add(p.value());
    for (const auto& b : module.named_buffers()) add(b.value());
    return sum;
}

struct teller {
    std::uint64_t stop_at = 0;
    void on_step(const train::step_info& s) {
        if (s.rank == 0) fmt::print("step {} loss {:a}\n", s.step, s.loss);
        if (s.rank == 0 && s.step == stop_at) (void)std::raise(SIGTERM);
    }
};

struct asked {
    std::map<std::string, std::string> all;
    [[nodiscard]] std::string text(const std::string& name, const std::string& usual) const {
        const auto found = all.find("--" + name);
        return found == all.end() ? usual : found->second;
    }
    [[nodiscard]] int number(const std::string& name, int usual) const {
        return std::atoi(text(name, std::to_string(usual)).c_str());
    }
};

template <class Strategy>
void train_once(context& ctx, const train::run_config& config, const asked& want) {
    const auto where =
        want.text("on", "cpu") == "device" ? hidden_device::device : c10::Device(c10::kCPU);
    const auto make = [&] {
        torch::manual_seed(42);
        Net net;
        net->to(where);
        return net;
    };
    auto net = make();
    Trainer<Strategy, teller> trainer(
        ctx, config, teller{static_cast<std::uint64_t>(want.number("stop-at", 0))});
    const auto writes = want.text("write", "no") == "yes";
    int passes = 0;
    const auto loss = [where, writes, &passes](Net& m, const wave_batch& b) {
        if (writes && m->is_training() && ++passes % 5 == 0) {
            const torch::NoGradGuard no_grad;
            m->head->bias.narrow(0, 0, 2).fill_(0.375);
            m->frozen.narrow(0, 1, 1).fill_(0.1);
        }
        return torch::mse_loss(m->forward(b.x.to(where)), b.y.to(where));
    };
    const auto result =
        trainer.fit(net, AdamW{}, train::constant_rate{1e-2}, loss, waves{}, waves{.n = 12});
    const auto sum = sum_of(*net);
    train::require_same(ctx, sum, "the weights at the end");
    if (!ctx.is_first()) return;
    fmt::print("weights {:08x}\n", sum);
    auto other = make();
    const auto loaded = train::load_weights(*other, result.run_path);
    fmt::print("loaded {} {:08x}\n", loaded.step, sum_of(*other));
    const auto folder = want.text("export", "");
    if (folder.empty()) return;
    (void)train::export_safetensors(*net, folder);
    auto third = make();
    (void)train::load_weights(*third, "hf:" + folder);
    fmt::print("exported {:08x}\n", sum_of(*third));
}

} // namespace

int main(int argc, char** argv) {
    asked want;
    for (int i = 2; i + 1 < argc; i += 2) want.all[argv[i]] = argv[i + 1];
    if (argc < 2) return 2;
    if (!hidden_device::make()) {
        fmt::print("skipped: this LibTorch has devices of its own\n");
        return 77;
    }
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    train::run_config config;
    config.runs_dir = argv[1];
    config.name = "run";
    config.resume =
        want.text("resume", "") == "yes" ? train::resume_mode::latest : train::resume_mode::fresh;
    config.communicator = "hidden";
    config.scaling.workers = want.number("workers", 1);
    config.max_steps = want.number("steps", 8);
    config.global_batch = 12;
    config.accumulation = 2;
    config.clip = 0.0; // the last digits of a norm are those of where it is summed
    config.clip_value = 0.05;
    config.eval_every = 2;
    config.checkpoint.every = 2;
    config.checkpoint.keep_last = 8;
    config.checkpoint.asynchronous = want.text("beside", "no") == "yes";
    config.output = *config.checkpoint.asynchronous ? train::output_mode::plain // says how it saves
                                                    : train::output_mode::quiet;
    return train::launch(config, [&](context& ctx) {
        const auto strategy = want.text("strategy", "single");
        if (strategy == "ddp")
            train_once<DDP<small_buckets>>(ctx, config, want);
        else if (strategy == "ddp-bf16")
            train_once<DDP<small_buckets, precision<bf16>>>(ctx, config, want);
        else if (strategy == "fsdp")
            train_once<FSDP<auto_wrap<Block>>>(ctx, config, want);
        else if (strategy == "fsdp-bf16")
            train_once<FSDP<auto_wrap<Block>, precision<bf16>>>(ctx, config, want);
        else if (strategy == "fsdp-bf16-bf16")
            train_once<FSDP<auto_wrap<Block>, precision<bf16, bf16>>>(ctx, config, want);
        else if (strategy == "single-bf16")
            train_once<basic_single<precision<bf16>>>(ctx, config, want);
        else if (strategy == "single")
            train_once<Single>(ctx, config, want);
        else
            throw error(errc::usage, "--strategy " + strategy + ": there is none of that name");
    });
}
