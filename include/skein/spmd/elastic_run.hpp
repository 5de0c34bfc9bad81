// SPDX-License-Identifier: Apache-2.0
#pragma once
// What `skein run` does on each host of an elastic job: a program started as its workers, a
// supervisor that meets those of the other hosts, and the signs that this host is to go.
//
//     spmd::elastic_run_options how;
//     how.job = "bert"; how.endpoint = net::address::tcp("node-1", 29400);
//     how.hosts = {1, 4}; how.workers_per_host = 2;
//     how.argv = {"./train", "--data", "d"};
//     const auto outcome = spmd::run_elastic_host(how);

#include <skein/core/config.hpp>
#include <skein/core/time.hpp>
#include <skein/net/address.hpp>
#include <skein/net/token.hpp>
#include <skein/spmd/elastic_coordinator.hpp>
#include <skein/spmd/leave_notices.hpp>
#include <skein/spmd/supervisor.hpp>
#include <skein/spmd/view.hpp>
#include <skein/spmd/view_register.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace skein::spmd {

/// A job, and this host's part in it. As it is: this program, of one host.
struct elastic_run_options : supervision {
    std::string job{};       ///< empty: a name of its own
    net::address endpoint{}; ///< of the coordinator, without a register; empty: of this host alone
    /// Makes a register of its own; called on the loop. Empty: in the coordinator's memory.
    std::function<std::unique_ptr<view_register>()> make_register{};
    net::token secret{}; ///< the same on all hosts; of one alone: of scale_elastic_job(), if any
    std::string host{};  ///< as others reach this one; empty: its name
    std::pair<int, int> hosts{1, 1}; ///< at least, at most
    int workers_per_host = 1;
    /// Of one host: workers in a world, and at the beginning (0: `most`). most 0: workers_per_host.
    int least = 1, most = 0, start = 0;
    bool are_hosts = false; ///< see coordinator_options; each is its host's one worker
    time_span meet_limit = std::chrono::minutes(10); ///< see elastic_host_options
    time_span back_limit = std::chrono::seconds(7);  ///< the same
    /// After which a worker, or a host, is lost. Zero: 1 s, of a worker on a busy host up to 10 s.
    time_span silence{};
    leave_notices notices{};
    /// Makes where the workers run, as in supervisor_options; empty: on this host.
    std::function<std::shared_ptr<proc::children>(loop& on, net::network& via)> children{};
    std::function<void(net::address)> on_listening{}; ///< at the coordinator; its address
};

/// Runs this host's part to its end; blocks.
///   errors  invalid_argument; not_found (the program); those of elastic_host::run
[[nodiscard]] supervisor_outcome run_elastic_host(elastic_run_options options);

/// Asks a running job for another number of workers; blocks. Gives what it says.
///   errors  those of ask_to_scale
[[nodiscard]] std::string scale_elastic_job(const net::address& endpoint, const net::token& secret,
                                            const std::string& job, int workers);
/// Where a job without an endpoint is asked, by the process of this host that leads it; it is known
/// there by any name that is empty.
///   errors  not_found: that process has none
[[nodiscard]] net::address door_of_job(std::int64_t pid);
/// The same of a job whose coordinator stands in a register, which is made on a loop.
///   errors  besides: timeout, there is none
[[nodiscard]] std::string scale_elastic_job(
    const std::function<std::unique_ptr<view_register>()>& make_register, const net::token& secret,
    const std::string& job, int workers);

} // namespace skein::spmd

#if SKEIN_HEADER_ONLY
#include <skein/spmd/detail/elastic_run.ipp>
#endif
