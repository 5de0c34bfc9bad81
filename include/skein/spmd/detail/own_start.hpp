// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a supervisor has started this process with, and what was taken from its environment.

#include <skein/core/config.hpp>
#include <skein/core/unique_fd.hpp>

#include <map>
#include <string>

namespace skein::spmd::detail {

struct own_start {
    /// This process's alone: those of its boot message, and what was taken from the environment.
    std::map<std::string, std::string> variables;
    unique_fd socket; ///< to its supervisor; none where nothing is asked
};

/// Written before there are threads, then only read.
[[nodiscard]] own_start& start_of_this_process();

} // namespace skein::spmd::detail
