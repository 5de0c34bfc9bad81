// SPDX-License-Identifier: Apache-2.0
#pragma once
// `skein job`: programs that are sent to a running cluster.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace skein_program {

/// What they are asked, as it was typed.
struct job_arguments {
    std::string address, token_file, id, folder, memory, resources, on, pending, limit, grace;
    std::string to, path, elastic;
    double cpus = 1, gpus = 0, worker_cpus = 0, worker_gpus = 0;
    std::uint32_t retries = 0, attempt = 0;
    std::uint64_t tail = 0;
    std::vector<std::string> env, results, command;
    bool no_wait = false, json = false, follow = false, force = false, list = false;
};

/// Declares them; `chosen` is set by the one that is typed.
void declare_jobs(CLI::App& app, job_arguments& args, std::function<int()>& chosen);

} // namespace skein_program
