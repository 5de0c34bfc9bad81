// SPDX-License-Identifier: Apache-2.0
#pragma once
// `skein report`: what trainings have cost, from the files of their runs. Nothing here needs a
// cluster, and nothing needs LibTorch.

#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace skein_program {

/// What it is asked, as it was typed.
struct report_arguments {
    std::vector<std::string> runs;
    std::string prices, metric, values, plots = ".";
    bool lower = false, higher = false, json = false;
};

/// Declares it; `chosen` is set by the one that is typed.
void declare_reports(CLI::App& app, report_arguments& args, std::function<int()>& chosen);

} // namespace skein_program
