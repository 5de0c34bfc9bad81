// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/detail/lease_table.hpp: where a lease may be, and what its group has.

#include <skein/core/error.hpp>
#include <skein/sched/demands.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace skein::cluster::detail {

SKEIN_INLINE lease_group* group_of(const lease& l) {
    std::uint64_t number = 0;
    int bundle = -1;
    if (!sched::parse_group_label(l.label, number, bundle)) return nullptr;
    const auto found = l.of->groups.find(number);
    return found == l.of->groups.end() ? nullptr : &found->second;
}

SKEIN_INLINE std::vector<std::uint64_t> gpus_of_group(const lease& granted) {
    std::vector<std::uint64_t> all;
    const auto* const g = group_of(granted);
    if (g == nullptr || granted.at == nullptr) return all;
    for (const auto& one : g->places)
        if (one.node == granted.at->incarnation && one.gpus != 0) all.push_back(one.gpus);
    return all;
}

SKEIN_INLINE std::optional<sched::constraint> where_of(const lease& l) {
    std::uint64_t number = 0;
    int bundle = -1;
    if (!sched::parse_group_label(l.label, number, bundle)) return sched::where_labelled(l.label);
    const auto* const g = group_of(l);
    if (g == nullptr || !g->id) return std::nullopt;
    return sched::constraint::in(g->id, bundle);
}

SKEIN_INLINE std::optional<error> too_many_gpus(
    const std::vector<sched::resources>& bundles,
    const std::map<std::uint64_t, std::unique_ptr<lease_node>>& nodes) {
    sched::amount asked, most;
    for (const auto& one : bundles) asked = std::max(asked, one.gpu);
    std::string with_most;
    for (const auto& [incarnation, n] : nodes) {
        if (n->total.gpu <= most) continue;
        most = n->total.gpu;
        with_most = n->name;
    }
    if (asked <= most || nodes.empty()) return std::nullopt;
    return error(errc::exhausted,
                 fmt::format("each rank asks for {} gpus, and no node has as many: {}",
                             sched::to_string(asked),
                             with_most.empty() ? fmt::format("none of {} has any", nodes.size())
                                               : fmt::format("the most are {}, on {}",
                                                             sched::to_string(most), with_most)))
        .with_hint("ask for fewer by scaling.gpus, or let a node with more join first");
}

} // namespace skein::cluster::detail
