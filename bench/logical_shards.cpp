// SPDX-License-Identifier: Apache-2.0
// Tokens/s of the GPT example's model on two ranks, its batch in four logical shards: the same with
// DDP and two micro-batches per rank.
//
//     logical_shards         3.3 million parameters; SKEIN_BENCH_ROUNDS (default 5)
//
// Ranks are threads of one process, one compute thread each, over shared memory. Both sides make
// the same forward and backward passes. A measurement is the median of the faster half of the steps
// behind the warm-up. Without a bar: processor time of a step, and both with four ranks, which
// gather the subtrees of all.

#include "bench.hpp"

#include "../examples/110_gpt_ddp/gpt.hpp"

#include <skein/dist/bootstrap.hpp>
#include <skein/sim/local_rendezvous.hpp>
#include <skein/train/ddp.hpp>
#include <skein/train/trainer.hpp>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr std::int64_t context_bytes = 128, steps = 24, warm_up = 4;

struct byte_batch {
    torch::Tensor inputs_BT, targets_BT;
};

/// Bytes that are a function of their place: what they are does not matter for the time.
struct made_up_text {
    std::uint64_t samples = 4096;
    [[nodiscard]] std::uint64_t size() const noexcept { return samples; }
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

/// Seconds of each step, and of processor time of the process up to its end.
struct step_times {
    std::vector<double>* seconds;
    std::vector<double>* cpu_at;
    void on_step(const skein::train::step_info& s) const {
        if (seconds == nullptr) return;
        seconds->push_back(s.seconds);
        std::timespec t{};
        ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
        cpu_at->push_back(double(t.tv_sec) + 1e-9 * double(t.tv_nsec));
    }
};

struct measurement {
    double tokens_per_s = 0, cpu_seconds = 0;
};

skein::run_config config_of(int ranks, int shards) {
    skein::run_config config;
    config.max_steps = steps;
    config.global_batch = 4 * ranks; // two samples per pass
    config.accumulation = shards > 0 ? 1 : 2;
    config.scaling.logical_shards = shards;
    config.eval_every = config.checkpoint.every = 0;
    config.checkpoint.enabled = config.write_files = false;
    config.output = skein::train::output_mode::quiet;
    return config;
}

void train(skein::train::context& ctx, const skein::run_config& config, step_times times) {
    gpt::GPT model(
        gpt::model_options{.context = context_bytes, .layers = 4, .heads = 8, .dim = 256});
    const auto loss = [](gpt::GPT& m, const byte_batch& b) {
        return gpt::next_byte_loss(m, b.inputs_BT, b.targets_BT);
    };
    skein::Trainer<skein::DDP<>, step_times> trainer(ctx, config, times);
    (void)trainer.fit(model, skein::AdamW{}, skein::train::constant_rate{3e-4}, loss,
                      made_up_text{}, made_up_text{0});
}

/// One run; `shards` 0: two micro-batches per rank.
measurement measure(int ranks, int shards) {
    const auto config = config_of(ranks, shards);
    std::vector<double> seconds, cpu;
    skein::sim::local_world world(std::vector<std::string>(static_cast<std::size_t>(ranks), "a"));
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks; ++r)
        threads.emplace_back([&, r] {
            const skein::dist::comm_options options{.model = "shm"};
            auto comm = skein::dist::make_comm_thread(world.at(r), options);
            skein::train::world_info where;
            where.rank = where.local_rank = r;
            where.world_size = where.local_size = ranks;
            where.host = "here";
            skein::train::context ctx(where, &world.at(r), comm.get());
            ctx.use_options(options);
            train(ctx, config, r == 0 ? step_times{&seconds, &cpu} : step_times{});
        });
    for (auto& t : threads) t.join();

    for (std::size_t i = cpu.size() - 1; i > 0; --i) cpu[i] -= cpu[i - 1];
    const auto typical_of = [](std::vector<double> v) {
        std::sort(v.begin() + warm_up, v.end());
        return v[static_cast<std::size_t>(warm_up + (steps - warm_up) / 4)];
    };
    return {static_cast<double>(config.global_batch * context_bytes) / typical_of(seconds),
            typical_of(cpu)};
}

/// Both sides in turns.
void compare(const std::string& name, int ranks, int shards, int rounds, bool has_bar) {
    std::vector<double> ours, theirs, ours_cpu, theirs_cpu;
    (void)measure(ranks, 0);
    for (int round = 0; round < rounds; ++round) {
        measurement with, without;
        if (round % 2 == 0) with = measure(ranks, shards);
        without = measure(ranks, 0);
        if (round % 2 != 0) with = measure(ranks, shards);
        ours.push_back(with.tokens_per_s);
        theirs.push_back(without.tokens_per_s);
        ours_cpu.push_back(with.cpu_seconds * 1e3);
        theirs_cpu.push_back(without.cpu_seconds * 1e3);
    }
    auto tokens = bench::figure(name + ".tokens", bench::summary(ours).median, "tokens/s")
                      .against("DDP, 2 micro-batches", bench::summary(theirs).median);
    if (has_bar) (void)std::move(tokens).at_least(0.92);
    tokens.print();
    bench::figure(name + ".cpu", bench::summary(ours_cpu).median, "ms of processor time per step")
        .against("DDP, 2 micro-batches", bench::summary(theirs_cpu).median)
        .print();
}

} // namespace

int main() {
    const char* const asked = std::getenv("SKEIN_BENCH_ROUNDS");
    const int rounds = asked != nullptr ? std::max(1, std::atoi(asked)) : 5;
    at::set_num_threads(1);
    compare("logical_shards.two_ranks", 2, 4, rounds, true);
    compare("logical_shards.four_ranks", 4, 8, rounds, false);
    return 0;
}
