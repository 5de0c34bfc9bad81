// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/head.hpp: how busy nodes are, and were.

#include <skein/cluster/detail/head_state.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/printable.hpp>

#include <algorithm>
#include <chrono>
#include <set>

#include <fmt/format.h>

namespace skein::cluster {

SKEIN_INLINE void head::state::serve_loads(net::request_service& of, const session_ptr& s) {
    const std::weak_ptr<detail::head_session> weak = s;
    of.on_tell<node_load>([this, weak](const node_load& m, const net::caller& who) {
        const auto here = weak.lock();
        if (here == nullptr || here->node == nullptr)
            throw error(errc::malformed, who.peer + " has not said which node it is");
        keep_load(here->node->name, m);
    });
}

/// By the head's clock: those of nodes differ.
SKEIN_INLINE void head::state::keep_load(const std::string& node, const node_load& said) {
    if (!loads.contains(node)) make_room_for_load();
    if (!loads.contains(node) && loads.size() >= detail::most_loads) return;
    auto& past = loads[node];
    past.last = said.load;
    past.history.add(said.load,
                     std::chrono::duration_cast<std::chrono::seconds>(on_loop.wall()).count());
    past.number = ++load_changes;
}

SKEIN_INLINE bool head::state::is_there(const std::string& node) const {
    return std::any_of(nodes.begin(), nodes.end(),
                       [&](const auto& one) { return one.second->name == node; });
}

/// Nodes that are gone are forgotten when their last day is over, or when there are too many: who
/// has been gone for longest first.
SKEIN_INLINE void head::state::make_room_for_load() {
    const auto now = std::chrono::duration_cast<std::chrono::seconds>(on_loop.wall()).count();
    std::erase_if(loads, [&](const auto& one) {
        return one.second.history.last() < now - 24 * 3600 && !is_there(one.first);
    });
    if (loads.size() < detail::most_loads) return;
    auto oldest = loads.end();
    for (auto one = loads.begin(); one != loads.end(); ++one)
        if (!is_there(one->first) &&
            (oldest == loads.end() || one->second.history.last() < oldest->second.history.last()))
            oldest = one;
    if (oldest != loads.end()) loads.erase(oldest);
}

// ---- for who is on the head's loop --------------------------------------------------------------

SKEIN_INLINE std::map<std::string, node_usage> head::usage() const {
    std::set<std::string> there;
    for (const auto& [number, n] : state_->nodes) there.insert(n->name);
    std::map<std::string, node_usage> out;
    for (const auto& [name, past] : state_->loads)
        out.emplace(name,
                    node_usage{past.last, past.history.last(), past.number, there.contains(name)});
    return out;
}
SKEIN_INLINE load_curve head::usage_since(const std::string& node, std::int64_t unix_s,
                                          std::size_t most) const {
    const auto found = state_->loads.find(node);
    if (found == state_->loads.end())
        throw error(errc::not_found,
                    fmt::format("no node \"{}\" has told how busy it is", printable(node)))
            .with_hint("skein status lists the nodes; they tell it once a second");
    return found->second.history.since(unix_s, most);
}
SKEIN_INLINE std::uint64_t head::usage_changes() const noexcept { return state_->load_changes; }

} // namespace skein::cluster
