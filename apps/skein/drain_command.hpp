// SPDX-License-Identifier: Apache-2.0
#pragma once
// `skein drain`: empties a node, waits for that if there is a deadline, and takes it back.

#include <skein/cluster/tools.hpp>

#include <functional>
#include <string>

#include <CLI/CLI.hpp>

namespace skein_program {

/// What it is asked, as it was typed.
struct drain_arguments {
    std::string node, within;
    bool undo = false, forget = false, force = false, json = false;
};

/// Declares its options.
void declare_drain(CLI::App& drain, drain_arguments& args);

/// What is wrong with them is wrong here.
///   errors  usage
void check_drain(const drain_arguments& args);

/// Gives the exit code: 1, where something was to be gone and stays.
///   errors  those of skein::cluster::ask_to_drain
[[nodiscard]] int run_drain(const drain_arguments& args, skein::cluster::tool_options how);

} // namespace skein_program
