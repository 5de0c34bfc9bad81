// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of cluster/detail/room_elsewhere.hpp.

#include <skein/cluster/detail/entry_share.hpp>
#include <skein/core/result.hpp>

#include <cstdint>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::cluster::detail {

/// What a group has of what is used on a node.
inline void give_back(const lease_group& of, std::uint64_t node, sched::resources& used) {
    for (std::size_t b = 0; b < of.bundles.size() && b < of.places.size(); ++b)
        if (of.places[b].node == node && sched::fits(of.bundles[b], used)) used -= of.bundles[b];
}

/// What programs of a job's attempt have of it. A namespace's server outlives them.
inline void give_back(const lease_table& leases, const std::string& job, const lease_node& node,
                      sched::resources& used) {
    for (const auto& [name, l] : node.leases)
        if (l->of->job == job && l->number != space_server_lease && !l->blocked &&
            group_of(*l) == nullptr && sched::fits(l->demand, used))
            used -= l->demand;
    for (const auto& [driver, holder] : leases.holders())
        if (holder->job == job)
            for (const auto& [number, g] : holder->groups) give_back(g, node.incarnation, used);
}

/// The nodes with what is free there. Those that drain or rest are there, too, and take nothing, so
/// that texts say so.
///   but    what this group holds counts as free
///   ended  what programs of these jobs hold, too
[[nodiscard]] inline sched::scheduler free_room(const lease_table& leases, const lease_group* but,
                                                const std::set<std::string>& ended = {}) {
    sched::scheduler out(
        sched::scheduler_options{.policy = sched::placement::spread, .place_is = "node"});
    for (const auto& p : leases.schedule().places()) {
        const auto* const n = leases.find_node(p.id.value());
        if (n == nullptr) continue;
        auto used = p.used;
        if (but != nullptr) give_back(*but, n->incarnation, used);
        for (const auto& job : ended) give_back(leases, job, *n, used);
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
    : leases_(leases), plan_(std::make_unique<sched::scheduler>(free_room(leases, nullptr))) {}

/// Takes what it asks for now, or nothing. Text: why it can never be.
[[nodiscard]] inline result<bool> is_taken(sched::scheduler& plan, const sched::request& what) {
    const auto asked = plan.submit(what);
    if (!asked) return asked.error();
    std::vector<sched::grant> granted;
    plan.take_grants(granted);
    if (granted.empty()) (void)plan.cancel(*asked);
    return !granted.empty();
}

SKEIN_INLINE std::string room_elsewhere::take(const lease& one) {
    const bool is_entry = !one.of->attempt_of.empty();
    sched::request r;
    r.where = sched::where_labelled(one.label);
    r.demand = is_entry ? with_entry_share(one.demand) : one.demand;
    auto is_there = is_taken(*plan_, r);
    if (is_there && !*is_there && is_entry && ended_.insert(one.of->attempt_of).second) {
        auto wider = std::make_unique<sched::scheduler>(free_room(leases_, nullptr, ended_));
        bool all = true;
        for (const auto& before : taken_) {
            const auto is_again = is_taken(*wider, before);
            all = all && is_again && *is_again;
        }
        if (all) is_there = is_taken(*wider, r);
        if (all && is_there && *is_there)
            plan_ = std::move(wider);
        else
            ended_.erase(one.of->attempt_of);
    }
    if (!is_there) return is_there.error().text();
    if (*is_there) {
        taken_.push_back(std::move(r));
        return {};
    }
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
