// SPDX-License-Identifier: Apache-2.0
// Tokens/s and peak memory of the GPT example's model under Single and DDP-2, against the same model,
// batch and optimizer in Python PyTorch (bench/gpt_pytorch.py: plain, and torchrun with Gloo).
//
//     SKEIN_PYTHON=python torch_gpt          one JSON line per figure
//     torch_gpt --mode ddp --workers 2       one measurement of ours
//
// Each side runs in processes of its own, one thread per rank, in turns whose order alternates
// (SKEIN_BENCH_ROUNDS, default 5). A measurement is the median of the faster half of the steps after the
// warm-up; a ratio is the median of the ratios within each round.

#include "../examples/110_gpt_ddp/gpt.hpp"

#include <skein/train/ddp.hpp>
#include <skein/train/launch.hpp>
#include <skein/train/single.hpp>
#include <skein/train/trainer.hpp>
#include <skein/wire/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace {

using skein::json;

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
    std::vector<double>* cpu_at; ///< of the process, at the end of each step
    void on_step(const skein::train::step_info& s) {
        seconds->push_back(s.seconds);
        std::timespec t{};
        ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
        cpu_at->push_back(double(t.tv_sec) + 1e-9 * double(t.tv_nsec));
    }
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
    std::vector<double> seconds, cpu;
    skein::Trainer<Strategy, step_times> trainer(ctx, config, step_times{&seconds, &cpu});
    const auto result = trainer.fit(model, skein::AdamW{}, skein::train::constant_rate{3e-4}, loss,
                                    made_up_text{}, nothing{});
    if (!ctx.is_first()) return;
    for (std::size_t i = cpu.size() - 1; i > 0; --i) cpu[i] -= cpu[i - 1];
    // The median of the faster half: on a shared machine the slower half tells of its other work.
    const auto typical_of = [](std::vector<double> v) {
        std::sort(v.begin() + warm_up, v.end());
        return v[static_cast<std::size_t>(warm_up + (steps - warm_up) / 4)];
    };
    const double typical = typical_of(seconds);
    const auto tokens = static_cast<double>(config.global_batch * context_bytes);
    fmt::print("{}\n", json{{"tokens_per_s", tokens / typical},
                            {"cpu_seconds", typical_of(cpu)},
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

/// Quartiles of a list that is not empty.
struct quartiles {
    explicit quartiles(std::vector<double> v) {
        std::sort(v.begin(), v.end());
        const auto at = [&](double part) {
            return v[static_cast<std::size_t>(part * static_cast<double>(v.size() - 1) + 0.5)];
        };
        low = at(0.25), middle = at(0.5), high = at(0.75);
    }
    double low, middle, high;
};

/// One side's measurements, by round; all lists have one length.
struct side {
    std::vector<double> tokens, cpu, bytes, loss;
    std::string cuda;
};

/// The line of one figure: the median over rounds of the ratio within a round, with its quartiles.
/// False when the bar is missed.
bool line(const std::string& name, const std::string& unit, const char* baseline,
          const std::vector<double>& ours, const std::vector<double>& theirs, double bar,
          bool higher_is_better) {
    json out{{"name", name}, {"value", quartiles(ours).middle},
             {"unit", unit}, {"baseline", baseline},
             {"bar", bar},   {"rounds", ours.size()}};
    bool ok = true;
    if (theirs.size() == ours.size()) {
        std::vector<double> ratios;
        for (std::size_t i = 0; i < ours.size(); ++i) ratios.push_back(ours[i] / theirs[i]);
        const quartiles ratio(std::move(ratios));
        ok = higher_is_better ? ratio.middle >= bar : ratio.middle <= bar;
        out["baseline_value"] = quartiles(theirs).middle;
        out["ratio"] = ratio.middle;
        out["ratio_quartiles"] = {ratio.low, ratio.high};
        out["ok"] = ok;
    } else {
        out["baseline_value"] = out["ratio"] = out["ok"] = nullptr;
        out["skipped"] = "no Python with torch: set SKEIN_PYTHON";
    }
    fmt::print("{}\n", out.dump());
    std::fflush(stdout);
    return ok;
}

int compare(const std::string& self) {
    const char* given = std::getenv("SKEIN_PYTHON");
    std::string python = given != nullptr ? given : "";
    const std::string script =
        (std::filesystem::path(__FILE__).parent_path() / "gpt_pytorch.py").string();
    if (!python.empty() &&
        std::system(("'" + python + "' -c 'import torch' >/dev/null 2>&1").c_str()) != 0)
        python.clear();
    double load = 0;
    if (::getloadavg(&load, 1) == 1 && load > 0.5)
        fmt::print(stderr, "the load is {:.1f}: figures of a busy machine mean little\n", load);

    const std::string env = "OMP_NUM_THREADS=1 ";
    std::vector<std::pair<std::string, std::string>> commands{
        {"single", env + self + " --mode single"},
        {"ddp2", env + self + " --mode ddp --workers 2"}};
    if (!python.empty()) {
        const auto quoted = "'" + python + "'";
        commands.insert(commands.begin() + 1, {"py_single", env + quoted + " " + script});
        commands.push_back({"py_ddp2", env + quoted +
                                           " -m torch.distributed.run --standalone "
                                           "--nproc-per-node 2 " +
                                           script + " 2>/dev/null"});
    }
    const char* wanted = std::getenv("SKEIN_BENCH_ROUNDS");
    const int rounds = wanted != nullptr ? std::max(1, std::atoi(wanted)) : 5;
    std::map<std::string, side> sides;
    for (int round = 0; round < rounds; ++round) {
        for (const auto& [name, command] : commands) {
            const auto got = run(command);
            if (!got.is_object() || !got.contains("tokens_per_s")) {
                fmt::print(stderr, "failed: {}\n", command);
                return 1;
            }
            auto& s = sides[name];
            s.tokens.push_back(got["tokens_per_s"].get<double>());
            s.cpu.push_back(got["cpu_seconds"].get<double>());
            s.bytes.push_back(got["peak_rss_bytes"].get<double>());
            s.loss.push_back(got["loss"].get<double>());
            s.cuda = got.value("cuda", "none");
        }
        std::reverse(commands.begin(), commands.end()); // nobody is always first
    }
    bool same = true;
    for (const std::string world : {"single", "ddp2"}) {
        const auto& ours = sides[world];
        const auto& theirs = sides["py_" + world];
        const bool alone = world == "single";
        const char* baseline = alone ? "Python PyTorch" : "torchrun, Gloo, DDP";
        line("gpt_" + world + "_tokens", "tokens/s", baseline, ours.tokens, theirs.tokens, 1.0,
             true);
        line("gpt_" + world + "_cpu", alone ? "CPU s per step" : "CPU s per step of rank 0",
             baseline, ours.cpu, theirs.cpu, 1.0, false);
        line("gpt_" + world + "_rss", alone ? "bytes" : "bytes per worker", baseline, ours.bytes,
             theirs.bytes, 0.4, false);
        if (theirs.loss.empty()) continue;
        if (theirs.cuda != "none")
            fmt::print(stderr,
                       "the baseline's wheel carries CUDA {}, as `pip install torch` gives it: its "
                       "libraries are part of its memory\n",
                       theirs.cuda);
        // The same model on the same made-up text: else the figures compare different things.
        if (std::abs(ours.loss[0] / theirs.loss[0] - 1) > 0.05) {
            fmt::print(stderr, "failed: the loss after {} steps is {} here and {} there\n", steps,
                       ours.loss[0], theirs.loss[0]);
            same = false;
        }
    }
    return same ? 0 : 1;
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
