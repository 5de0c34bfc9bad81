// SPDX-License-Identifier: Apache-2.0
#pragma once
// launch(): one main() for every way a training program can start.
//
//     int main(int argc, char** argv) {
//         auto config = parse(argc, argv);
//         const auto run = [&](skein::train::context& ctx) { train(config, ctx); };
//         return skein::train::launch(config, run);
//     }
//
// As a rank of srun, mpirun, torchrun or another launcher it joins that world. Started by hand with
// config.scaling.workers > 1 it becomes the supervisor of so many copies of itself and restarts
// them after a failure. Otherwise it runs the function in this process. On a host that helps
// (SageMaker's groups, spmd/environment.hpp) it makes this process a node for the ranks' helpers,
// until their job is over.

#include <skein/train/context.hpp>
#include <skein/train/run_config.hpp>

#include <functional>

namespace skein {
class error;
namespace spmd {
struct launch_environment;
}
} // namespace skein

namespace skein::train {

/// What a rank does: trains, in its place in the world.
using rank_function = std::function<void(context&)>;

/// Runs body in the right place; blocks until the job is done. Errors are printed to stderr, each
/// once, with what to do next.
///   result  the exit code: 0 done, 1 failed, 2 usage, 130 stopped by SIGINT, 143 by SIGTERM
///   errors  not_supported: several workers in a task or an actor; all others are told on stderr
///           and in the result
[[nodiscard]] int launch(const run_config& config, const rank_function& body);

/// Only one rank of a world that exists already; launch() calls it.
[[nodiscard]] int run_as_rank(const spmd::launch_environment& where, const run_config& config,
                              const rank_function& body);

/// The exit code for a failure: 2 for a usage error, else 1.
[[nodiscard]] int exit_code_of(const error& why) noexcept;

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/launch.ipp>
#include <skein/train/detail/launch_elastic.ipp>
#endif
