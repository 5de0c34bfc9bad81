// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a program can be in a cluster: a driver on it (--address), its head (--head), a node's agent
// (--join). skein::run() understands these flags in the compiled form, and header-only where this
// header is included.
//
//     ./app --head                    # prints how to join
//     ./app --join node-1:7117        # on each other host
//     ./app --address node-1:7117     # a driver; or SKEIN_ADDRESS
//
// The program `skein` does the same for all applications: skein head, skein join.

#include <skein/core/config.hpp>
#include <skein/core/time.hpp>
#include <skein/program/cluster_roles.hpp>
#include <skein/spmd/leave_notices.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace skein::net {
class token;
}
namespace skein::cluster {
class head;
class head_web;
} // namespace skein::cluster

namespace skein::program {

/// How a head runs as a program.
struct head_program {
    std::string listen{}; ///< as net::address, or "HOST:PORT"; empty: 127.0.0.1 and default_port
    std::string token_file{}; ///< empty: see access.hpp
    std::string state{};      ///< the folder of its log (head_log.hpp); empty: it keeps none
    std::string storage{};    ///< the folder for files of jobs; empty: one in the user's cache
    std::string runs{};       ///< see cluster::head_options::runs; empty: there is none
    /// See cluster::head_options; 0: its default.
    time_span lost_after{};
    /// Makes what answers HTTP at its port; empty: nobody does.
    std::function<std::shared_ptr<cluster::head_web>(cluster::head&, const net::token&)> web{};
    std::uint64_t results_bytes = 0; ///< see cluster::head_options; 0: its default
};
/// The life of a head: prints its join line, serves until SIGINT, SIGTERM, SIGHUP
/// (its terminal was closed; not under nohup) or `skein stop`. Gives the exit code.
///   errors  usage, those of find_or_make_token and of head; already_exists: another head has the
///           state folder
[[nodiscard]] int run_head(const head_program& how);

/// How an agent runs as a program.
struct agent_program {
    std::string head{};       ///< empty: SKEIN_ADDRESS, else default_port of this host
    std::string token_file{}; ///< empty: see access.hpp
    std::string name{};       ///< of the node; empty: that of the host
    std::string
        resources{}; ///< "ssd=1,cpu=8"; cpus, gpus and memory that are not named are measured
    std::vector<std::string> labels{}; ///< "zone=a"
    std::string storage{}; ///< the folder for jobs and their files; empty: one in the user's cache
    std::string store{};   ///< memory for objects, for each program: "4GiB"; empty: see objects
    spmd::leave_notices notices{}; ///< with them the node drains itself
    time_span notice_within{};     ///< see cluster::agent_options; 0: its default
};
/// The life of an agent: joins, serves until SIGINT, SIGTERM, `skein stop`. Gives the exit code.
///   errors  usage, those of find_token and of agent::serve
[[nodiscard]] int run_agent(const agent_program& how);

/// What rt::run() is given.
[[nodiscard]] const program::cluster_roles* roles() noexcept;

} // namespace skein::program

#if SKEIN_HEADER_ONLY
#include <skein/program/detail/program.ipp>
namespace skein::program::detail {
inline const bool provided = [] {
    program::detail::provided_roles = roles();
    return true;
}();
} // namespace skein::program::detail
#endif
