// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of cluster/detail/room_elsewhere.hpp.

#include <skein/cluster/detail/entry_share.hpp>

#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::cluster::detail {

/// The nodes with what is free there. Those that drain or rest are there, too, and take nothing, so
/// that texts say so.
///   but  what this group holds counts as free
[[nodiscard]] inline sched::scheduler free_room(const lease_table& leases, const lease_group* but) {
    sched::scheduler out(
        sched::scheduler_options{.policy = sched::placement::spread, .place_is = "node"});
    for (const auto& p : leases.schedule().places()) {
        const auto* const n = leases.find_node(p.id.value());
        if (n == nullptr) continue;
        auto used = p.used;
        if (but != nullptr)
            for (std::size_t b = 0; b < but->bundles.size() && b < but->places.size(); ++b)
                if (but->places[b].node == p.id.value() && sched::fits(but->bundles[b], used))
                    used -= but->bundles[b];
        auto room = p.total;
        if (sched::fits(used, room))
            room -= used;
        else
            room = {};
        room.gpu = sched::amount(static_cast<int>(room.gpu.in_steps() / sched::amount::steps));
        auto labels = n->labels;
        labels.push_back("node=" + n->name);
        (void)out.add_place(p.id, p.name, room, std::move(labels));
        if (p.draining || p.resting || p.reserved) (void)out.drain(p.id);
    }
    return out;
}

SKEIN_INLINE room_elsewhere::room_elsewhere(const lease_table& leases)
    : plan_(free_room(leases, nullptr)) {}

SKEIN_INLINE std::string room_elsewhere::take(const lease& one) {
    sched::request r;
    r.where = sched::where_labelled(one.label);
    r.demand = one.of->attempt_of.empty() ? one.demand : with_entry_share(one.demand);
    const auto asked = plan_.submit(r);
    if (!asked) return asked.error().text();
    std::vector<sched::grant> granted;
    plan_.take_grants(granted);
    if (!granted.empty()) return {};
    (void)plan_.cancel(*asked);
    const auto place = one.label.empty() ? std::string() : " on " + one.label;
    return fmt::format("no other node has room for {}{} now",
                       one.demand.empty() ? "it" : sched::to_string(one.demand), place);
}

SKEIN_INLINE std::string no_room_without(const lease_table& leases, const lease_group& group) {
    auto plan = free_room(leases, &group);
    sched::group_request all;
    all.strategy = group.strategy;
    all.bundles = group.bundles;
    const auto is_made = plan.create_group(all).has_value();
    std::vector<sched::grant> none;
    std::vector<sched::notice> said;
    plan.take_grants(none);
    plan.take_notices(said);
    if (is_made && !said.empty() && said.front().what == sched::notice::kind::group_placed)
        return {};
    const bool is_one = group.bundles.size() == 1;
    return fmt::format("the other nodes have no room for {} rank{} of {}{} now",
                       group.bundles.size(), is_one ? "" : "s",
                       group.bundles.empty() ? "" : sched::to_string(group.bundles.front()),
                       is_one ? "" : " each");
}

} // namespace skein::cluster::detail
