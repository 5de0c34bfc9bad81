// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whether what is to leave a node that drains has room on others: a plan, made of what is free now.
//
// It is no reservation. Who is told that there is room leaves, asks as anybody does, and may find
// that others were faster: then it waits.
//
//     room_elsewhere plan(leases);
//     if (const auto why = plan.take(entry); !why.empty()) ...    // it stays, and why
//     const auto none = no_room_without(leases, group);            // for all of its bundles

#include <skein/core/config.hpp>
#include <skein/cluster/detail/lease_table.hpp>
#include <skein/sched/scheduler.hpp>

#include <memory>
#include <set>
#include <string>
#include <vector>

namespace skein::cluster::detail {

/// As the nodes are when it is made. Texts say why there is no room; "": there is.
class room_elsewhere {
public:
    /// It must outlive the plan.
    explicit room_elsewhere(const lease_table& leases);

    /// Room for one more lease like this one; it is taken. The entry process of a job has also what
    /// programs of its attempt hold on nodes that stay: they end with it.
    [[nodiscard]] std::string take(const lease& one);

private:
    const lease_table& leases_;
    std::unique_ptr<sched::scheduler> plan_;
    std::vector<sched::request> taken_;
    std::set<std::string> ended_; ///< jobs whose attempts are to end
};

/// Room for all bundles of a group, where what it holds on nodes that stay is free for it.
[[nodiscard]] std::string no_room_without(const lease_table& leases, const lease_group& group);

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/room_elsewhere.ipp>
#endif
