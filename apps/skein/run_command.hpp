// SPDX-License-Identifier: Apache-2.0
#pragma once
// `skein run` and `skein scale`: programs as ranks, and elastic jobs, with torchrun's options.

#include <skein/spmd/view_register.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace skein_program {

/// Where etcd is, and who we are there.
struct etcd_arguments {
    std::string prefix, user, password, ca, cert, key;
};

/// What they are asked, as it was typed.
struct run_arguments {
    std::string hosts = "1", workers = "1", backend = "embedded", endpoint, job, settings;
    std::string address, local_address, token_file, notice_file, notice_url;
    std::string redirects, tee, log_folder, shown_ranks, master_host;
    int max_restarts = 3, target = 0, stop_grace = 0, master_port = 0;
    bool standalone = false;
    std::vector<std::string> unused; ///< lines about options of torchrun that do nothing here
    etcd_arguments etcd;
};

/// Declares the two; `chosen` is set by the one that is typed.
void declare_run(CLI::App& app, run_arguments& args, std::function<int()>& chosen);

/// A register in etcd, to be called on a loop. In a file of its own, for builds without libcurl.
///   errors  not_supported: this program was built without
[[nodiscard]] std::function<std::unique_ptr<skein::spmd::view_register>()> etcd_register_of(
    const run_arguments& args);

} // namespace skein_program
