// SPDX-License-Identifier: Apache-2.0
// Tokens/s and peak memory of the GPT example's model under Single, DDP-2 and FSDP-2, against the
// same model, batch and optimizer in Python PyTorch (bench/gpt_pytorch.py: plain, and torchrun with
// Gloo under DDP and fully_shard).
//
//     SKEIN_PYTHON=python torch_gpt                          one JSON line per figure, 3.3M parameters
//     SKEIN_PYTHON=python SKEIN_BENCH_MODEL=25M torch_gpt    larger ones: 25M, 100M
//     torch_gpt --mode ddp --workers 2 --batch 8             one measurement of ours
//
// Each side runs in processes of its own, one thread per rank, in turns whose order alternates
// (SKEIN_BENCH_ROUNDS, default 5). A measurement is the median of the faster half of the steps
// after the warm-up; a ratio is the median of the ratios within each round.

#include "../examples/110_gpt_ddp/gpt.hpp"

#include <skein/train/ddp.hpp>
#include <skein/train/fsdp.hpp>
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

constexpr std::int64_t context_bytes = 128;

/// One measurement, as its command line says it.
struct request {
    std::string mode;
    std::int64_t workers = 1, batch = 8, layers = 4, dim = 256, steps = 60;
    bool half = false;

    [[nodiscard]] std::int64_t warm_up() const { return steps / 6; }
};

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
void measure(skein::train::context& ctx, const request& asked) {
    const auto steps = asked.steps, warm_up = asked.warm_up();
    skein::run_config config;
    config.max_steps = steps;
    config.global_batch = asked.batch * ctx.world_size();
    config.eval_every = config.checkpoint.every = 0;
    config.checkpoint.enabled = config.write_files = false;
    config.output = skein::train::output_mode::quiet;
    torch::manual_seed(1);
    gpt::GPT model(gpt::model_options{
        .context = context_bytes, .layers = asked.layers, .heads = 8, .dim = asked.dim});
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
    const auto typical_of = [&](std::vector<double> v) {
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

bool has_bf16() {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512bf16") != 0;
#else
    return true;
#endif
}

/// A kind of run, by us and in Python.
struct contest {
    std::string name, ours, theirs; ///< the rest of the command lines; no `theirs`: only ours
    const char* baseline;
    double bar; ///< of tokens/s; 0: none
};

std::vector<contest> contests(const std::string& size) {
    using list = std::vector<contest>;
    if (size == "25M" || size == "100M") {
        const std::string of = size == "25M" ? " --layers 8 --dim 512 --steps 18 --batch 4"
                                             : " --layers 14 --dim 768 --steps 12 --batch 2";
        return list{
            {"ddp2", "--mode ddp --workers 2" + of, "--mode ddp" + of, "torchrun, Gloo, DDP", 1.05},
            {"fsdp2", "--mode fsdp --workers 2" + of, "--mode fsdp" + of,
             "torchrun, Gloo, fully_shard", 1.3}};
    }
    list all{
        {"single", "--mode single", "alone", "Python PyTorch", 1.0},
        {"ddp2", "--mode ddp --workers 2", "--mode ddp", "torchrun, Gloo, DDP", 1.05},
        {"fsdp2", "--mode fsdp --workers 2", "--mode fsdp", "torchrun, Gloo, fully_shard", 1.3},
        {"ddp2_1x128", "--mode ddp --workers 2 --batch 1", "--mode ddp --batch 1",
         "torchrun, Gloo, DDP", 1.2},
        {"fsdp2_1x128", "--mode fsdp --workers 2 --batch 1", "--mode fsdp --batch 1",
         "torchrun, Gloo, fully_shard", 1.6},
        {"fsdp2_bf16", "--mode fsdp --workers 2 --precision bf16", "--mode fsdp --precision bf16",
         "torchrun, Gloo, fully_shard in bfloat16", 1.1},
        {"fsdp1", "--mode fsdp", "", "", 0.0}};
    if (has_bf16()) return all;
    // A step would take both sides more than a minute.
    std::erase_if(all, [](const contest& c) { return c.name == "fsdp2_bf16"; });
    const json none{{"name", "gpt_fsdp2_bf16_tokens"},
                    {"skipped", "this processor has no bfloat16 instructions"}};
    fmt::print("{}\n", none.dump());
    return all;
}

/// One round of one contest; false when a command failed.
bool measure_one(const std::string& command, side& into) {
    const auto got = run(command);
    if (!got.is_object() || !got.contains("tokens_per_s")) {
        fmt::print(stderr, "failed: {}\n", command);
        return false;
    }
    into.tokens.push_back(got["tokens_per_s"].get<double>());
    fmt::print(stderr, "{:.0f} tokens/s: {}\n", into.tokens.back(), command);
    into.cpu.push_back(got["cpu_seconds"].get<double>());
    into.bytes.push_back(got["peak_rss_bytes"].get<double>());
    into.loss.push_back(got["loss"].get<double>());
    into.cuda = got.value("cuda", "none");
    return true;
}

/// The lines of one contest. False when the two sides did not train the same.
bool print_contest(const contest& c, const side& ours, const side& theirs) {
    line("gpt_" + c.name + "_tokens", "tokens/s", c.baseline, ours.tokens, theirs.tokens, c.bar,
         true);
    line("gpt_" + c.name + "_cpu", "CPU s per step of rank 0", c.baseline, ours.cpu, theirs.cpu,
         1.0, false);
    line("gpt_" + c.name + "_rss", "bytes per worker", c.baseline, ours.bytes, theirs.bytes, 0.4,
         false);
    if (theirs.loss.empty()) return true;
    if (theirs.cuda != "none")
        fmt::print(stderr,
                   "the baseline's wheel carries CUDA {}, as `pip install torch` gives it: its "
                   "libraries are part of its memory\n",
                   theirs.cuda);
    // The same model on the same made-up text: else the figures compare different things.
    if (std::abs(ours.loss[0] / theirs.loss[0] - 1) < 0.05) return true;
    fmt::print(stderr, "failed: the last loss of {} is {} here and {} there\n", c.name,
               ours.loss[0], theirs.loss[0]);
    return false;
}

/// A Python with torch, quoted; empty without one.
std::string find_python() {
    const char* given = std::getenv("SKEIN_PYTHON");
    if (given == nullptr || *given == '\0') return {};
    const auto quoted = fmt::format("'{}'", given);
    const bool works = std::system((quoted + " -c 'import torch' >/dev/null 2>&1").c_str()) == 0;
    return works ? quoted : std::string();
}

int compare(const std::string& self) {
    const auto python = find_python();
    const auto script = (std::filesystem::path(__FILE__).parent_path() / "gpt_pytorch.py").string();
    double load = 0;
    if (::getloadavg(&load, 1) == 1 && load > 0.5)
        fmt::print(stderr, "the load is {:.1f}: figures of a busy machine mean little\n", load);
    const auto setting = [](const char* name) {
        const char* value = std::getenv(name);
        return std::string(value != nullptr ? value : "");
    };
    const auto all = contests(setting("SKEIN_BENCH_MODEL"));
    const auto wanted = setting("SKEIN_BENCH_ROUNDS");
    const int rounds = wanted.empty() ? 5 : std::max(1, std::atoi(wanted.c_str()));

    std::vector<std::pair<std::string, std::string>> commands;
    for (const auto& c : all) {
        commands.emplace_back(c.name, "OMP_NUM_THREADS=1 " + self + " " + c.ours);
        if (python.empty() || c.theirs.empty()) continue;
        const auto how = c.theirs == "alone"
                             ? script
                             : "-m torch.distributed.run --standalone --nproc-per-node 2 " +
                                   script + " " + c.theirs + " 2>/dev/null";
        commands.emplace_back("py_" + c.name, "OMP_NUM_THREADS=1 " + python + " " + how);
    }
    std::map<std::string, side> sides;
    for (int round = 0; round < rounds; ++round) {
        for (const auto& [name, command] : commands)
            if (!measure_one(command, sides[name])) return 1;
        std::reverse(commands.begin(), commands.end()); // nobody is always first
    }
    bool same = true;
    for (const auto& c : all)
        if (!c.theirs.empty()) same &= print_contest(c, sides[c.name], sides["py_" + c.name]);
    line("gpt_fsdp2_of_ddp2", "tokens/s", "own DDP-2", sides["fsdp2"].tokens, sides["ddp2"].tokens,
         0.98, true);
    if (sides.contains("fsdp1"))
        line("gpt_fsdp1_of_single", "tokens/s", "own Single", sides["fsdp1"].tokens,
             sides["single"].tokens, 0.98, true);
    if (sides.contains("fsdp2_bf16"))
        line("gpt_bf16_of_f32", "tokens/s", "own FSDP-2 in float32", sides["fsdp2_bf16"].tokens,
             sides["fsdp2"].tokens, 1.6, true);
    return same ? 0 : 1;
}

} // namespace

int main(int argc, char** argv) {
    request asked;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string flag = argv[i], value = argv[i + 1];
        if (flag == "--mode") asked.mode = value;
        if (flag == "--precision") asked.half = value == "bf16";
        for (const auto& [name, number] :
             {std::pair{"--workers", &asked.workers}, std::pair{"--batch", &asked.batch},
              std::pair{"--layers", &asked.layers}, std::pair{"--dim", &asked.dim},
              std::pair{"--steps", &asked.steps}})
            if (flag == name) *number = std::atoi(value.c_str());
    }
    if (asked.mode.empty()) return compare(argv[0]);
    skein::run_config config;
    config.output = skein::train::output_mode::quiet;
    config.scaling.workers = static_cast<int>(asked.workers);
    using by_block = skein::auto_wrap<gpt::Block>;
    using half = skein::precision<skein::bf16>;
    return skein::train::launch(config, [&](skein::train::context& ctx) {
        if (asked.mode == "single") return measure<skein::Single>(ctx, asked);
        if (asked.mode == "ddp") return measure<skein::DDP<>>(ctx, asked);
        if (asked.half) return measure<skein::FSDP<by_block, half>>(ctx, asked);
        return measure<skein::FSDP<by_block>>(ctx, asked);
    });
}
