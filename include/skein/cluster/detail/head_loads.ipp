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

namespace detail {

/// Of bytes from outside: what Prometheus would not take is left out, and what is too much.
[[nodiscard]] inline std::vector<metric_family> checked(std::vector<metric_family> told) {
    std::vector<metric_family> out;
    std::size_t left = most_told_series;
    for (auto& one : told) {
        if (!is_metric_name(one.name) || one.kind > series_kind::histogram ||
            one.bounds.size() > metric_histogram::most_bounds)
            continue;
        std::erase_if(one.series, [&](const metric_series& s) {
            const bool is_histogram = one.kind == series_kind::histogram;
            return s.labels.size() > 8 ||
                   s.counts.size() != (is_histogram ? one.bounds.size() + 1 : 0) ||
                   !std::all_of(s.labels.begin(), s.labels.end(), [](const metric_label& l) {
                       return is_label_name(l.name) && l.name != "node" && l.name != "process" &&
                              l.value.size() <= 256;
                   });
        });
        one.series.resize(std::min(one.series.size(), left));
        left -= one.series.size();
        one.help.clear();
        if (!one.series.empty()) out.push_back(std::move(one));
    }
    return out;
}

} // namespace detail

SKEIN_INLINE void head::state::serve_loads(net::request_service& of, const session_ptr& s) {
    const std::weak_ptr<detail::head_session> weak = s;
    of.on_tell<node_load>([this, weak](const node_load& m, const net::caller& who) {
        const auto here = weak.lock();
        if (here == nullptr || here->node == nullptr)
            throw error(errc::malformed, who.peer + " has not said which node it is");
        keep_load(here->node->name, m);
    });
    of.on_tell<driver_calls>([weak](const driver_calls& m, const net::caller& who) {
        const auto here = weak.lock();
        if (here == nullptr || here->driver == nullptr)
            throw error(errc::malformed, who.peer + " has not said which driver it is");
        if (m.failed > m.done || m.done > m.submitted)
            throw error(errc::malformed, who.peer + " has ended more calls than it has begun");
        here->driver->calls = {m.submitted, m.done, m.failed};
    });
}

/// By the head's clock: those of nodes differ.
SKEIN_INLINE void head::state::keep_load(const std::string& node, const node_load& said) {
    if (!loads.contains(node)) make_room_for_load();
    if (!loads.contains(node) && loads.size() >= detail::most_loads) return;
    auto& past = loads[node];
    past.last = said.load;
    past.numbers = detail::checked(said.numbers);
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
SKEIN_INLINE std::map<std::string, std::vector<metric_family>> head::numbers() const {
    std::map<std::string, std::vector<metric_family>> out;
    for (const auto& [number, n] : state_->nodes)
        if (const auto past = state_->loads.find(n->name); past != state_->loads.end())
            out.emplace(n->name, past->second.numbers);
    return out;
}
SKEIN_INLINE head_counts head::counts() const {
    head_counts out;
    out.calls = state_->calls_of_gone;
    const auto add = [](call_counts& to, const call_counts& what) {
        to.submitted += what.submitted;
        to.done += what.done;
        to.failed += what.failed;
    };
    for (const auto& [number, d] : state_->drivers) {
        add(out.calls, d->calls);
        if (d->attempt_of.empty()) add(out.by_program[d->hello.name], d->calls);
        for (const auto& [n, l] : d->leases) switch (l->state) {
            case detail::lease_state::waits: ++out.leases_waiting; break;
            case detail::lease_state::granted: ++out.leases_granted; break;
            case detail::lease_state::expected: ++out.leases_expected; break;
            case detail::lease_state::stopping: ++out.leases_stopping; break;
            }
    }
    for (const auto& s : state_->sessions)
        ++(s->node != nullptr     ? out.node_links
           : s->driver != nullptr ? out.driver_links
                                  : out.other_links);
    return out;
}
SKEIN_INLINE std::uint64_t head::node_changes() const noexcept { return state_->node_changes; }
SKEIN_INLINE std::uint64_t head::usage_changes() const noexcept { return state_->load_changes; }

} // namespace skein::cluster
