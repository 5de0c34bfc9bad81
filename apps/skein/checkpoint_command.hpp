// SPDX-License-Identifier: Apache-2.0
#pragma once
// `skein checkpoint`: what is in checkpoints and in weights of others, whether it is whole, and new
// folders of it. Nothing here needs a cluster, and nothing needs LibTorch.

#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace skein_program {

/// What they are asked, as it was typed.
struct checkpoint_arguments {
    std::string path, second, into, max_shard, dtype;
    std::vector<std::string> paths;
    bool json = false, weights = false, averages = false;
};

/// Declares them; `chosen` is set by the one that is typed.
void declare_checkpoints(CLI::App& app, checkpoint_arguments& args, std::function<int()>& chosen);

} // namespace skein_program
