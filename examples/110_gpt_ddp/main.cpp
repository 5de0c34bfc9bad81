// SPDX-License-Identifier: Apache-2.0
// A byte-level GPT, trained by any number of processes, that writes text at the end.
//
//     110_gpt_ddp --workers 2 --text ~/src
//
// Run alone it starts its own workers; under srun, mpirun or torchrun it joins their world.

#include "training.hpp"

#include <skein/train/ddp.hpp>

int main(int argc, char** argv) {
    gpt::program_options options;
    if (const auto code = gpt::parse(argc, argv, options)) return *code;
    return gpt::run_program(options, gpt::train<skein::DDP<>>);
}
