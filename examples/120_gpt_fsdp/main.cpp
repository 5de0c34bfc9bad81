// SPDX-License-Identifier: Apache-2.0
// The GPT of 110_gpt_ddp under every strategy, to see what each costs and keeps.
//
//     120_gpt_fsdp --workers 2 --strategy fsdp
//     120_gpt_fsdp --workers 2 --strategy fsdp --precision bf16
//     120_gpt_fsdp --workers 4 --layers 48 --heads 16 --dim 1024 --plan      memory of each, nothing is trained
//     120_gpt_fsdp --strategy single --device cuda                           never run on a GPU
//
// A strategy is a type: from DDP to FSDP is one line. Run alone it starts its own workers; under srun,
// mpirun or torchrun it joins their world.

#include "../110_gpt_ddp/training.hpp"

#include <skein/train/ddp.hpp>
#include <skein/train/fsdp.hpp>
#include <skein/train/memory_plan.hpp>
#include <skein/train/single.hpp>
#include <skein/train/zero.hpp>

#if defined(SKEIN_CUDA) // skein::cuda: where LibTorch's half for devices can be compiled against
#include <skein/dist/nccl_model.hpp>
#include <skein/train/cuda_math.hpp>
#endif

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

namespace {

using by_block = skein::auto_wrap<gpt::Block>;
using body = std::function<void(skein::train::context&, const gpt::program_options&,
                                const gpt::split_text&)>;

/// By name, in one precision.
template <class Precision>
const std::map<std::string, body>& strategies() {
    // [strategies]
    static const std::map<std::string, body> all{
        {"single", gpt::train<skein::basic_single<Precision>>},
        {"ddp", gpt::train<skein::DDP<skein::bucket<>, Precision>>},
        {"zero1", gpt::train<skein::Zero1<by_block, Precision>>},
        {"zero2", gpt::train<skein::Zero2<by_block, Precision>>},
        {"fsdp", gpt::train<skein::FSDP<by_block, Precision>>},
        {"hybrid", gpt::train<skein::Hybrid<by_block, Precision>>},
    };
    // [/strategies]
    return all;
}
using f32 = skein::precision<skein::f32>;
using bf16 = skein::precision<skein::bf16>;

/// Prints what each strategy would keep in memory.
void print_plan(const gpt::program_options& o, int hosts, double bytes_of_a_number) {
    namespace train = skein::train;
    gpt::GPT model(o.model);
    const train::memory_shape shape{
        .ranks = o.run.scaling.workers.most * hosts,
        .hosts = hosts,
        .one_copy = o.run.communicator != "ring",
        .states = train::states_of(o.optimizer()),
        .compute = bytes_of_a_number,
        .saves_beside = o.run.checkpoint.enabled &&
                        (o.run.device == "cuda" || o.run.checkpoint.asynchronous.value_or(false))};
    fmt::print("{}", train::memory_table(
                         train::measure_units(*model), shape,
                         train::find_memory_limit(static_cast<double>(o.run.memory_limit))));
}

} // namespace

int main(int argc, char** argv) {
#if defined(SKEIN_CUDA)
    skein::dist::add_nccl_model(std::make_shared<skein::train::cuda_math>());
#endif
    gpt::program_options options;
    std::string strategy = "fsdp", precision = "f32";
    bool plan = false;
    int hosts = 1;
    std::uint64_t limit_mb = 0;
    const auto code = gpt::parse(argc, argv, options, [&](CLI::App& app) {
        app.add_option("--strategy", strategy, "single, ddp, zero1, zero2, fsdp or hybrid")
            ->check(CLI::IsMember(strategies<f32>()));
        app.add_option("--precision", precision,
                       "f32, or bf16: 16 bits for parameters and activations, updates in float32")
            ->check(CLI::IsMember({"f32", "bf16"}));
        app.add_option("--checkpoint-activations", options.recompute,
                       "compute every so many-th block again in the backward pass, 0: none")
            ->check(CLI::Range(0, 1000));
        app.add_option("--offload-activations", options.offload,
                       "a folder for them to wait in until the backward pass, or bf16");
        app.add_option("--memory-limit", limit_mb,
                       "MB that the state of a host's workers may take, 0: what the system says")
            ->check(CLI::Range(0, 1 << 30));
        auto* const only =
            app.add_flag("--plan", plan, "print the memory of each strategy and end");
        app.add_option("--hosts", hosts, "of --plan, each with --workers")
            ->needs(only)
            ->check(CLI::Range(1, 100000));
    });
    if (code) return *code;
    options.run.memory_limit = limit_mb * 1'000'000;
    if (plan) {
        print_plan(options, hosts, precision == "bf16" ? 2.0 : 4.0);
        return 0;
    }
    const auto& chosen = precision == "bf16" ? strategies<bf16>() : strategies<f32>();
    return gpt::run_program(options, chosen.at(strategy));
}
