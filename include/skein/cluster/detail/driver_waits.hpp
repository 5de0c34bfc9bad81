// SPDX-License-Identifier: Apache-2.0
#pragma once
// What happens while drivers wait for room: the entry process of their job lends its cpus, others of
// their own leases are asked back, and people are told who has waited for long, and who holds what
// they wait for.
//
//     driver_waits waits(loop, {leases, shares, nodes, jobs}, head);
//     waits.find_room(driver, false);      // it has just asked for a lease
//     waits.lend_entries();                // now and then
//     waits.tell();

#include <skein/core/config.hpp>
#include <skein/cluster/detail/fair_shares.hpp>
#include <skein/cluster/detail/job_book.hpp>
#include <skein/cluster/detail/lease_table.hpp>
#include <skein/cluster/detail/node_table.hpp>
#include <skein/core/loop.hpp>

#include <cstdint>
#include <string>

namespace skein::cluster::detail {

/// Belongs to the loop of its parts.
class driver_waits {
public:
    /// The parts below it.
    struct parts {
        lease_table& leases;
        fair_shares& shares;
        const node_table& nodes;
        const job_book& jobs;
    };

    /// All must outlive it.
    driver_waits(loop& on, const parts& below, lease_events& events)
        : loop_(on), leases_(below.leases), shares_(below.shares), nodes_(below.nodes),
          jobs_(below.jobs), events_(events) {}

    /// Looks for room for what a driver has just asked for: first what is free, then what its job
    /// can lend, then what others of its leases hold.
    void find_room(const lease_holder& driver, bool of_groups);
    /// Entry processes have their cpus back when no driver of their job has, or waits for, anything.
    void lend_entries();
    /// Tells drivers what they have waited for so long that people should know: they say it in their
    /// own words, which are in their job's log.
    void tell();

    /// What a driver has waited for so long: all that it has asked for, or what some of its calls
    /// alone need. nullptr: nothing.
    [[nodiscard]] const lease* held_up(const lease_holder& driver) const;
    /// "waits for cpu=1 for 7 s; n1: ..."
    [[nodiscard]] std::string held_text(const lease& l) const;
    /// For each job the text of the first of its drivers that has waited too long.
    [[nodiscard]] texts_by_job by_job() const;
    /// Grows when a driver was told.
    [[nodiscard]] std::uint64_t changes() const noexcept { return changes_; }

private:
    [[nodiscard]] lease* entry_of(const lease_holder& driver) const;
    [[nodiscard]] bool lend(const lease_holder& driver);
    [[nodiscard]] std::string held_text(const lease_group& g) const;

    loop& loop_;
    lease_table& leases_;
    fair_shares& shares_;
    const node_table& nodes_;
    const job_book& jobs_;
    lease_events& events_;
    std::uint64_t changes_ = 0;
};

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/driver_waits.ipp>
#endif
