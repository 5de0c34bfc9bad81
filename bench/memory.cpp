// SPDX-License-Identifier: Apache-2.0
// Memory of the strategies with 100 million parameters: what each rank keeps, against the formula.
//
//     memory                                    one JSON line per figure
//     memory --mode fsdp --workers 4            one measurement
//     memory --mode ddp --workers 4 --limit MB  trains two steps under a limit, or is refused
//
// Ranks are processes. By count: the bytes of the store and of the optimizer's states. By PSS: how
// much the proportional set size of the process grows (smaps_rollup; a page that k processes have
// mapped counts 1/k) when the parameters are there and were read, when the gradients have been
// reduced, and when the optimizer has made its first step; the heap is trimmed before each reading.
// All figures are means over the ranks.

#include "bytes_gpt.hpp"

#include <skein/train/collective.hpp>
#include <skein/train/ddp.hpp>
#include <skein/train/fsdp.hpp>
#include <skein/train/launch.hpp>
#include <skein/train/memory_plan.hpp>
#include <skein/train/trainer.hpp>
#include <skein/train/zero.hpp>
#include <skein/wire/json.hpp>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <malloc.h>
#include <sys/wait.h>

#include <fmt/core.h>

namespace {

using skein::json;
namespace train = skein::train;

using bench::by_block;
using bench::loss_of;
using bench::some_bytes;
constexpr gpt::model_options large{.context = 32, .layers = 8, .heads = 8, .dim = 1024};

/// The mean over the ranks of what this process has, when all of them are where this one is.
double settled_pss(train::context& ctx) {
    double ranks = 1;
    ::malloc_trim(0);
    all_reduce(ctx, std::span(&ranks, 1), skein::dist::reduce_op::sum);
    double bytes = train::proportional_set_size();
    all_reduce(ctx, std::span(&bytes, 1), skein::dist::reduce_op::sum); // nobody goes on before
    return bytes / ranks;
}

/// What a step needs beside the model's state is there already when the measurement begins.
void warm_up() {
    gpt::GPT small(gpt::model_options{.context = 32, .layers = 1, .heads = 1, .dim = 32});
    const std::uint64_t id = 0;
    loss_of(small, some_bytes{1}.batch(std::span(&id, 1))).backward();
}

template <class Strategy>
void measure(train::context& ctx) {
    train::keep_freed_memory();
    at::set_num_threads(1);
    warm_up();
    const double before = settled_pss(ctx);
    gpt::GPT model(large);
    Strategy strategy(ctx, *model);
    train::flat_optimizer optimizer(skein::AdamW{}, strategy.store());
    const auto batch = some_bytes{1}.batch(std::array<std::uint64_t, 1>{0});
    {
        at::NoGradGuard no_grad;
        (void)loss_of(model, batch);
    }
    const double with_parameters = settled_pss(ctx);
    strategy.begin_step();
    strategy.begin_micro(true);
    loss_of(model, batch).backward();
    strategy.finish_backward();
    const double with_gradients = settled_pss(ctx);
    optimizer.step(1e-4);
    strategy.publish();
    const double with_states = settled_pss(ctx);

    std::vector<at::Tensor> states;
    for (const auto& [name, state] : optimizer.states()) states.push_back(state);
    auto counted = train::count_memory(strategy.store(), states, strategy.one_copy());
    std::array<double, 4> sums{1, counted.parameters, counted.gradients, counted.optimizer};
    all_reduce(ctx, sums, skein::dist::reduce_op::sum);
    if (ctx.is_first()) {
        const auto sizes = train::sizes_of(strategy.store().units());
        fmt::print("{}\n",
                   json{{"total", sizes.total},
                        {"root", sizes.root},
                        {"largest", sizes.largest},
                        {"blocks", sizes.blocks},
                        {"count", {sums[1] / sums[0], sums[2] / sums[0], sums[3] / sums[0]}},
                        {"pss",
                         {with_parameters - before, with_gradients - with_parameters,
                          with_states - with_gradients}}}
                       .dump());
        std::fflush(stdout);
    }
    strategy.finish();
}

/// Two steps of fit(), which refuses what does not fit.
template <class Strategy>
void two_steps(train::context& ctx, const skein::run_config& config) {
    gpt::GPT model(large);
    skein::Trainer<Strategy> trainer(ctx, config);
    (void)trainer.fit(model, skein::AdamW{}, train::constant_rate{.peak = 1e-4}, loss_of,
                      some_bytes{64}, some_bytes{0});
}

struct trainee {
    void (*measure)(train::context&);
    void (*fit)(train::context&, const skein::run_config&);
};
template <class Strategy>
constexpr trainee both{measure<Strategy>, two_steps<Strategy>};
const std::map<std::string, trainee> strategies{{"ddp", both<skein::DDP<>>},
                                                {"zero1", both<skein::Zero1<by_block>>},
                                                {"zero2", both<skein::Zero2<by_block>>},
                                                {"fsdp", both<skein::FSDP<by_block>>}};

/// What a command prints, and its exit code.
std::pair<std::string, int> run(const std::string& command) {
    std::FILE* pipe = ::popen(command.c_str(), "r");
    if (pipe == nullptr) return {"", -1};
    std::string text;
    std::array<char, 4096> piece;
    while (const auto n = std::fread(piece.data(), 1, piece.size(), pipe))
        text.append(piece.data(), n);
    const int status = ::pclose(pipe);
    return {text, WIFEXITED(status) ? WEXITSTATUS(status) : -1};
}

/// Prints how far a figure is from the formula; false when it is too far.
bool line(const std::string& name, double value, double planned, double bar) {
    const bool ok = std::abs(value / planned - 1.0) <= bar;
    fmt::print("{}\n", json{{"name", name},
                            {"value", value},
                            {"unit", "bytes per rank"},
                            {"baseline", "formula"},
                            {"baseline_value", planned},
                            {"ratio", value / planned},
                            {"bar", bar},
                            {"ok", ok}}
                           .dump());
    std::fflush(stdout);
    return ok;
}

bool compare(const std::string& self, const std::string& strategy, int workers) {
    const auto [text, code] =
        run(fmt::format("OMP_NUM_THREADS=1 {} --mode {} --workers {}", self, strategy, workers));
    const auto got = json::parse(text.substr(0, text.find('\n')), nullptr, false);
    if (code != 0 || !got.is_object()) {
        fmt::print(stderr, "failed: {} with {} workers\n", strategy, workers);
        return false;
    }
    const train::unit_sizes sizes{.total = got["total"].get<std::int64_t>(),
                                  .root = got["root"].get<std::int64_t>(),
                                  .largest = got["largest"].get<std::int64_t>(),
                                  .blocks = got["blocks"].get<std::int64_t>()};
    bool ok = true;
    for (const auto& need : train::plan_memory(sizes, {.ranks = workers})) {
        if (need.strategy != strategy) continue;
        const std::array<std::pair<const char*, double>, 3> kinds{{{"parameters", need.parameters},
                                                                   {"gradients", need.gradients},
                                                                   {"optimizer", need.optimizer}}};
        double all = 0;
        for (std::size_t i = 0; i < kinds.size(); ++i) {
            const auto name = fmt::format("memory_{}_{}_{}", strategy, workers, kinds[i].first);
            ok = line(name + "_count", got["count"][i].get<double>(), kinds[i].second, 0.01) && ok;
            ok = line(name + "_pss", got["pss"][i].get<double>(), kinds[i].second, 0.1) && ok;
            all += got["pss"][i].get<double>();
        }
        ok = line(fmt::format("memory_{}_{}_all_pss", strategy, workers), all, need.total(), 0.1) &&
             ok;
    }
    return ok;
}

/// Under a limit that DDP refuses, with the advice, FSDP trains.
bool compare_under_limit(const std::string& self) {
    const auto command = [&](const char* strategy) {
        return fmt::format("OMP_NUM_THREADS=1 {} --mode {} --workers 4 --limit 3000 2>&1", self,
                           strategy);
    };
    const auto [refusal, refused] = run(command("ddp"));
    const auto [said, trained] = run(command("fsdp"));
    const bool advised = refused == 2 && refusal.find("(fits)") != std::string::npos;
    fmt::print("{}\n", json{{"name", "memory_limit_3000_MB"},
                            {"ddp", advised ? "refused" : "not refused"},
                            {"fsdp", trained == 0 ? "trained" : "failed"},
                            {"said", refusal.substr(0, refusal.find('\n'))},
                            {"ok", advised && trained == 0}}
                           .dump());
    if (!advised || trained != 0) fmt::print(stderr, "{}\n{}\n", refusal, said);
    return advised && trained == 0;
}

} // namespace

int main(int argc, char** argv) {
    std::string mode;
    skein::run_config config;
    config.max_steps = 2;
    config.global_batch = 4;
    config.eval_every = config.checkpoint.every = 0;
    config.checkpoint.enabled = config.write_files = false;
    config.failure.max_failures = 0;
    config.output = train::output_mode::quiet;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string_view flag = argv[i];
        if (flag == "--mode") mode = argv[i + 1];
        if (flag == "--workers") config.scaling.workers = std::atoi(argv[i + 1]);
        if (flag == "--limit")
            config.memory_limit =
                1'000'000ULL * static_cast<std::uint64_t>(std::atoll(argv[i + 1]));
    }
    if (mode.empty()) {
        bool ok = true;
        for (const int workers : {2, 4})
            for (const auto* strategy : {"ddp", "zero1", "zero2", "fsdp"})
                ok = compare(argv[0], strategy, workers) && ok;
        return compare_under_limit(argv[0]) && ok ? 0 : 1;
    }
    const auto& chosen = strategies.at(mode);
    return train::launch(config, [&](train::context& ctx) {
        config.memory_limit > 0 ? chosen.fit(ctx, config) : chosen.measure(ctx);
    });
}
