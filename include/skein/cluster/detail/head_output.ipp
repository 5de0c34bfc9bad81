// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/head.hpp: what workers print passes here, from their agents to
// their driver. A node is asked for some when the driver has printed what was sent before, so that
// nothing is kept here and no link fills up.

#include <skein/cluster/detail/head_state.hpp>

#include <algorithm>
#include <utility>

namespace skein::cluster {

SKEIN_INLINE void head::state::serve_output(net::request_service& of, const session_ptr& s) {
    const std::weak_ptr<detail::head_session> weak = s;
    const auto as_node = [weak](auto does) {
        return [weak, does](auto m, const net::caller& who) {
            const auto here = weak.lock();
            if (here == nullptr || here->node == nullptr)
                throw error(errc::malformed, who.peer + " has not said which node it is");
            does(*here->node, std::move(m));
        };
    };
    of.on_tell<output_waits>(as_node([this](const detail::head_node& n, const output_waits& m) {
        on_output_waits(n, m.driver);
    }));
    of.on_tell<node_output>(
        as_node([this](const detail::head_node& n, node_output m) { on_output(n, std::move(m)); }));
}

SKEIN_INLINE void head::state::on_output_waits(const detail::head_node& n, std::uint64_t driver) {
    const auto found = drivers.find(driver);
    if (found == drivers.end()) return; // its workers are being ended
    auto& output = found->second->output;
    const auto under_way = output.out.find(n.incarnation);
    if (under_way != output.out.end()) {
        under_way->second.has_more = true;
    } else if (std::find(output.waiting.begin(), output.waiting.end(), n.incarnation) ==
               output.waiting.end()) {
        output.waiting.push_back(n.incarnation);
    }
    ask_for_output(*found->second);
}

SKEIN_INLINE void head::state::ask_for_output(detail::head_driver& d) {
    auto& output = d.output;
    while ((d.session != nullptr || !d.attempt_of.empty()) && !output.waiting.empty() &&
           output.out.size() < detail::head_output::most_asked) {
        const auto node = output.waiting.front();
        output.waiting.pop_front();
        const auto* n = node_at(node);
        if (n == nullptr) continue;
        output.out[node] = {};
        n->session->tell(take_output{d.incarnation});
    }
}

SKEIN_INLINE void head::state::on_output(const detail::head_node& n, node_output m) {
    std::size_t bytes = 0;
    for (const auto& some : m.from) {
        bytes += proc::line_queue::line_cost;
        for (const auto& line : some.lines) bytes += line.text.size() + proc::line_queue::line_cost;
    }
    if (bytes > most_output_bytes)
        throw error(errc::too_large, "a node sends more of what workers print than it may");
    const auto found = drivers.find(m.driver);
    if (found == drivers.end()) return;
    auto& d = *found->second;
    const auto asked = d.output.out.find(n.incarnation);
    if (asked == d.output.out.end() || asked->second.is_forwarded) return; // nobody has asked
    if (!d.attempt_of.empty()) {                                           // its lines end here
        keep_lines(*jobs.by_id.at(d.attempt_of), std::move(m.from));
        return on_printed(d, n.incarnation);
    }
    if (m.from.empty() || d.session == nullptr) return on_printed(d, n.incarnation);
    asked->second.is_forwarded = true;
    d.session->tell(worker_output{n.incarnation, n.name, std::move(m.from)});
}

SKEIN_INLINE void head::state::on_printed(detail::head_driver& d, std::uint64_t node) {
    const auto asked = d.output.out.find(node);
    if (asked == d.output.out.end()) return; // before its link was lost
    if (asked->second.has_more) d.output.waiting.push_back(node);
    d.output.out.erase(asked);
    ask_for_output(d);
}

/// Of a node that has gone, or has come again.
SKEIN_INLINE void head::state::forget_output_of(const detail::head_node& n) {
    for (auto& [number, d] : drivers) {
        std::erase(d->output.waiting, n.incarnation);
        if (d->output.out.erase(n.incarnation) != 0) ask_for_output(*d);
    }
}

/// The driver's link has ended: what was on its way there may have been lost, and it will not say
/// that it has printed it.
SKEIN_INLINE void head::state::forget_output_at(detail::head_driver& d) {
    for (const auto& [node, asked] : d.output.out)
        if (asked.is_forwarded && asked.has_more) d.output.waiting.push_back(node);
    std::erase_if(d.output.out, [](const auto& one) { return one.second.is_forwarded; });
}

} // namespace skein::cluster
