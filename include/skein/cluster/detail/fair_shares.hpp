// SPDX-License-Identifier: Apache-2.0
#pragma once
// Who gives leases back so that others get theirs: drivers that hold more than their share of the
// cpus, and a driver that waits for what its own other leases keep it from.
//
//     fair_shares shares(loop, leases);
//     shares.look();                        // now and then: recalls leases
//     shares.make_room(driver, false);      // at once, for what that driver has just asked for

#include <skein/core/config.hpp>
#include <skein/cluster/detail/lease_table.hpp>
#include <skein/core/loop.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace skein::cluster::detail {

/// What a driver has of the cluster, and wants.
struct driver_share {
    const lease_holder* of = nullptr;
    std::int64_t held = 0, wanted = 0; ///< cpus, in steps; what is coming back counts as given
    double fair = 0;
    std::vector<lease*> may_give;

    /// Whether it stays within its share with so much more, for which it gives back what it can.
    [[nodiscard]] bool may_have(std::int64_t more) const noexcept {
        for (const auto* l : may_give) more -= l->demand.cpu.in_steps();
        return static_cast<double>(held + more) <= fair;
    }
};

/// Belongs to the loop of the leases, which must outlive it.
class fair_shares {
public:
    fair_shares(loop& on, lease_table& leases) : loop_(on), leases_(leases) {}

    /// Asks those that hold more than their share of the cpus for as many leases as others are short
    /// of. Nobody is asked for what would leave him short: leases are whole, and would go round for
    /// ever. But who has nothing at all gets something.
    void look();
    /// Looks at once for room for a driver that has just asked, instead of with the next look at
    /// all.
    void make_room(const lease_holder& d, bool of_groups);

private:
    [[nodiscard]] std::int64_t take_stock(std::vector<driver_share>& into) const;
    [[nodiscard]] bool is_feasible(const sched::resources& demand) const;
    void make_room(const driver_share& of);
    [[nodiscard]] bool make_room(const lease& l, lease_node& n,
                                 const sched::scheduler::place_info& now);
    void make_group_room(const driver_share& of);
    [[nodiscard]] bool make_group_room(const lease_group& g, bool within_share);
    [[nodiscard]] sched::scheduler places_for(const lease_group& g, bool within_share,
                                              std::map<std::uint64_t, sched::amount>& free) const;
    [[nodiscard]] std::int64_t group_cpus(const lease_group& g) const;
    [[nodiscard]] bool may_go(const lease& l, const lease_holder& d) const;

    loop& loop_;
    lease_table& leases_;
};

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/fair_shares.ipp>
#endif
