// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a process of a program is, and the life of a driver: the one place for run() and session.

#include <skein/core/task.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/objects/local_store.hpp>
#include <skein/proc/children.hpp>
#include <skein/program/cluster_roles.hpp>
#include <skein/program/run_options.hpp>
#include <skein/rt/runtime.hpp>
#include <skein/rt/worker_source.hpp>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace skein::program::detail {

/// What is left of the command line after skein's own flags.
struct command_line {
    std::vector<std::string> rest;
    std::optional<int> workers;
    cluster_flags cluster;
};

/// What this process is by its command line, its environment and its launcher. In a worker nothing
/// returns.
struct driver_plan {
    std::vector<std::string> rest; ///< of the command line
    cluster_flags cluster;
    std::string head;             ///< of the cluster it runs on; empty: workers are of this host
    part_in_job part;             ///< must outlive the driver
    std::optional<int> exit_code; ///< it was something else than a driver, and that is over
};
/// takes_nothing: other arguments than skein's are wrong, and --help is skein's.
///   errors  usage, those of the roles
[[nodiscard]] driver_plan plan_driver(int argc, char** argv, run_options& how, bool takes_nothing);

/// A driver: its runtime and its workers. Made, run and destroyed on the thread of its loop.
class driver {
public:
    ///   errors  usage, not_found, permission_denied, malformed (address and token of a cluster)
    driver(net::real_loop& on, const driver_plan& plan, const run_options& how);
    driver(const driver&) = delete;
    driver& operator=(const driver&) = delete;

    [[nodiscard]] rt::runtime& self() noexcept { return self_; }
    /// The app, then everything else in order.
    [[nodiscard]] task<int> drive(task<int> app);

private:
    void open_store(net::real_loop& on, std::string_view asked,
                    std::optional<objects::store_on_node> among);

    rt::runtime self_;
    const rt::runtime::use current_;
    net::real_network network_;
    proc::local_children children_;
    std::shared_ptr<objects::local_store> store_; ///< null: none
    std::shared_ptr<objects::store_client> objects_;
    std::unique_ptr<rt::worker_source> workers_;
};

} // namespace skein::program::detail

#if SKEIN_HEADER_ONLY
#include <skein/program/detail/driver.ipp>
#endif
