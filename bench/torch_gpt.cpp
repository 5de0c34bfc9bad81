// SPDX-License-Identifier: Apache-2.0
// Tokens/s and peak memory of the GPT example's model under Single and DDP-2, against the same model,
// batch and optimizer in Python PyTorch (bench/gpt_pytorch.py: plain, and torchrun with Gloo).
//
//     SKEIN_PYTHON=python torch_gpt          one JSON line per figure
//     torch_gpt --mode ddp --workers 2       one measurement of ours
//
// Each side runs in processes of its own, one thread per rank, in turns; the better of the rounds counts
// for both. A figure is the median of the faster half of the steps after the
// warm-up, on both sides.

#include "../examples/110_gpt_ddp/gpt.hpp"

#include <skein/train/ddp.hpp>
#include <skein/train/launch.hpp>
#include <skein/train/single.hpp>
#include <skein/train/trainer.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <fmt/core.h>

namespace {

using skein::train::json;

constexpr std::int64_t context_bytes = 128, batch_per_rank = 8;
constexpr std::int64_t steps = 60, warm_up = 10;

struct byte_batch {
    torch::Tensor inputs_BT, targets_BT;
};

/// Bytes that are a function of their place: what they are does not matter for the time.
struct made_up_text {
    [[nodiscard]] std::uint64_t size() const noexcept { return 4096; }
    [[nodiscard]] byte_batch batch(std::span<const std::uint64_t> ids) const {
        auto all =
            torch::empty({static_cast<std::int64_t>(ids.size()), context_bytes + 1}, torch::kLong);
        auto* to = all.mutable_data_ptr<std::int64_t>();
        for (const auto id : ids)
            for (std::int64_t t = 0; t <= context_bytes; ++t)
                *to++ = static_cast<std::int64_t>(
                    (id * 2654435761ULL + static_cast<std::uint64_t>(t * t) * 97) >> 7 & 255);
        return {all.slice(1, 0, context_bytes), all.slice(1, 1, context_bytes + 1)};
    }
};

struct step_times {
    std::vector<double>* seconds;
    void on_step(const skein::train::step_info& s) { seconds->push_back(s.seconds); }
};

/// One measurement of ours; rank 0 prints {"tokens_per_s": ..., "peak_rss_bytes": ...}.
template <class Strategy>
void measure(skein::train::context& ctx) {
    skein::run_config config;
    config.max_steps = steps;
    config.global_batch = batch_per_rank * ctx.world_size();
    config.eval_every = config.checkpoint_every = 0;
    config.checkpoints = config.write_files = false;
    config.output = skein::train::output_mode::quiet;
    torch::manual_seed(1);
    gpt::GPT model(
        gpt::model_options{.context = context_bytes, .layers = 4, .heads = 8, .dim = 256});
    const auto loss = [](gpt::GPT& m, const byte_batch& b) {
        return gpt::next_byte_loss(m, b.inputs_BT, b.targets_BT);
    };
    struct nothing {
        [[nodiscard]] std::uint64_t size() const noexcept { return 0; }
        [[nodiscard]] byte_batch batch(std::span<const std::uint64_t>) const { return {}; }
    };
    std::vector<double> seconds;
    skein::Trainer<Strategy, step_times> trainer(ctx, config, step_times{&seconds});
    const auto result = trainer.fit(model, skein::AdamW{}, skein::train::constant_rate{3e-4}, loss,
                                    made_up_text{}, nothing{});
    if (!ctx.is_first()) return;
    std::sort(seconds.begin() + warm_up, seconds.end());
    // The median of the faster half: on a shared machine the slower half tells of its other work.
    const double typical = seconds[static_cast<std::size_t>(warm_up + (steps - warm_up) / 4)];
    const auto tokens = static_cast<double>(config.global_batch * context_bytes);
    fmt::print("{}\n", json{{"tokens_per_s", tokens / typical},
                            {"peak_rss_bytes", result.peak_rss_bytes},
                            {"loss", result.loss}}
                           .dump());
    std::fflush(stdout);
}

/// The last JSON line that a command prints, or null.
json run(const std::string& command) {
    std::FILE* pipe = ::popen(command.c_str(), "r");
    if (pipe == nullptr) return nullptr;
    std::string text;
    std::array<char, 4096> piece;
    while (const auto n = std::fread(piece.data(), 1, piece.size(), pipe))
        text.append(piece.data(), n);
    ::pclose(pipe);
    const auto begin = text.rfind('{'), end = text.rfind('}');
    if (begin == text.npos || end == text.npos || end < begin) return nullptr;
    return json::parse(text.substr(begin, end - begin + 1), nullptr, false);
}

void line(const std::string& name, const std::string& unit, double value, const char* baseline,
          const json& baseline_value, double bar, bool higher_is_better) {
    json out{
        {"name", name}, {"value", value}, {"unit", unit}, {"baseline", baseline}, {"bar", bar}};
    if (baseline_value.is_number()) {
        const double ratio = value / baseline_value.get<double>();
        out["baseline_value"] = baseline_value;
        out["ratio"] = ratio;
        out["ok"] = higher_is_better ? ratio >= bar : ratio <= bar;
    } else {
        out["baseline_value"] = out["ratio"] = out["ok"] = nullptr;
        out["skipped"] = "no Python with torch: set SKEIN_PYTHON";
    }
    fmt::print("{}\n", out.dump());
    std::fflush(stdout);
}

int compare(const std::string& self) {
    const char* given = std::getenv("SKEIN_PYTHON");
    std::string python = given != nullptr ? given : "";
    if (const char* other = std::getenv("SKEIN_BENCH_PYTHON")) python = other;
    const std::string script =
        (std::filesystem::path(__FILE__).parent_path() / "gpt_pytorch.py").string();
    if (!python.empty() &&
        std::system(("'" + python + "' -c 'import torch' >/dev/null 2>&1").c_str()) != 0)
        python.clear();

    const std::string env = "OMP_NUM_THREADS=1 ";
    std::map<std::string, std::string> commands{{"single", env + self + " --mode single"},
                                                {"ddp2", env + self + " --mode ddp --workers 2"}};
    if (!python.empty()) {
        commands["py_single"] = env + python + " " + script + " 2>/dev/null";
        commands["py_ddp2"] = env + python + " -m torch.distributed.run --nproc-per-node 2 " +
                              script + " 2>/dev/null";
    }
    std::map<std::string, double> speed, memory;
    for (int round = 0; round < 2; ++round)
        for (const auto& [name, command] : commands) {
            const auto got = run(command);
            if (!got.is_object() || !got.contains("tokens_per_s")) {
                fmt::print(stderr, "no figures from: {}\n", command);
                continue;
            }
            speed[name] = std::max(speed[name], got["tokens_per_s"].get<double>());
            const auto bytes = got["peak_rss_bytes"].get<double>();
            memory[name] = memory[name] == 0 ? bytes : std::min(memory[name], bytes);
        }
    const auto of = [](const std::map<std::string, double>& m, const std::string& name) {
        const auto it = m.find(name);
        return it == m.end() || it->second == 0 ? json(nullptr) : json(it->second);
    };
    if (of(speed, "single").is_null() || of(speed, "ddp2").is_null()) return 1;
    line("gpt_single_tokens", "tokens/s", speed["single"], "Python PyTorch", of(speed, "py_single"),
         1.0, true);
    line("gpt_ddp2_tokens", "tokens/s", speed["ddp2"], "torchrun, Gloo, DDP", of(speed, "py_ddp2"),
         1.0, true);
    line("gpt_single_rss", "bytes", memory["single"], "Python PyTorch", of(memory, "py_single"),
         0.4, false);
    line("gpt_ddp2_rss", "bytes per worker", memory["ddp2"], "torchrun, Gloo, DDP",
         of(memory, "py_ddp2"), 0.4, false);
    return 0;
}

} // namespace

int main(int argc, char** argv) {
    std::string mode;
    skein::run_config config;
    config.output = skein::train::output_mode::quiet;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string flag = argv[i];
        if (flag == "--mode")
            mode = argv[i + 1];
        else if (flag == "--workers")
            config.workers = std::atoi(argv[i + 1]);
    }
    if (mode.empty()) return compare(argv[0]);
    return skein::train::launch(config, [&](skein::train::context& ctx) {
        mode == "single" ? measure<skein::Single>(ctx) : measure<skein::DDP<>>(ctx);
    });
}
