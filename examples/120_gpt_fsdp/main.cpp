// SPDX-License-Identifier: Apache-2.0
// The GPT of 110_gpt_ddp under every strategy, to see what each costs and keeps.
//
//     120_gpt_fsdp --workers 2 --strategy fsdp
//
// A strategy is a type: from DDP to FSDP is one line. Run alone it starts its own workers; under srun,
// mpirun or torchrun it joins their world.

#include "../110_gpt_ddp/training.hpp"

#include <skein/train/ddp.hpp>
#include <skein/train/fsdp.hpp>
#include <skein/train/single.hpp>
#include <skein/train/zero.hpp>

#include <functional>
#include <map>
#include <string>

namespace {

using by_block = skein::auto_wrap<gpt::Block>;
using body = std::function<void(skein::train::context&, const gpt::program_options&,
                                const gpt::split_text&)>;

const std::map<std::string, body> strategies{
    {"single", gpt::train<skein::Single>},         {"ddp", gpt::train<skein::DDP<>>},
    {"zero1", gpt::train<skein::Zero1<by_block>>}, {"zero2", gpt::train<skein::Zero2<by_block>>},
    {"fsdp", gpt::train<skein::FSDP<by_block>>},   {"hybrid", gpt::train<skein::Hybrid<by_block>>},
};

} // namespace

int main(int argc, char** argv) {
    gpt::program_options options;
    std::string strategy = "fsdp";
    const auto code = gpt::parse(argc, argv, options, [&](CLI::App& app) {
        app.add_option("--strategy", strategy, "single, ddp, zero1, zero2, fsdp or hybrid")
            ->check(CLI::IsMember(strategies));
        app.add_option("--checkpoint-activations", options.recompute,
                       "compute every so many-th block again in the backward pass, 0: none")
            ->check(CLI::Range(0, 1000));
    });
    if (code) return *code;
    return gpt::run_program(options, strategies.at(strategy));
}
