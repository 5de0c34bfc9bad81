// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/head.hpp: nodes come, go, and are drained.

#include <skein/cluster/detail/cluster_link.hpp>
#include <skein/cluster/detail/entry_share.hpp>
#include <skein/cluster/detail/head_link.hpp>
#include <skein/cluster/detail/head_state.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/known_names.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/net/network.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster {

namespace detail {

inline constexpr std::size_t most_node_name = 255, most_node_labels = 64, most_node_label = 256;

/// A word by which people and programs ask for a node, and which terminals show.
inline void check_word(std::string_view what, std::string_view text, std::size_t most,
                       const std::string& hint) {
    const auto why =
        text.empty()         ? std::string("is empty")
        : text.size() > most ? fmt::format("has {} bytes, at most {} are taken", text.size(), most)
        : std::any_of(text.begin(), text.end(), logging::is_control)
            ? std::string("has a control character")
        : text.find('@') != text.npos ? std::string("has an @, with which nobody can ask for it")
                                      : std::string();
    if (why.empty()) return;
    std::string shown;
    logging::append_json_string(shown, text.substr(0, 64));
    throw error(errc::invalid_argument,
                fmt::format("{} {}{} {}", what, shown, text.size() > 64 ? "..." : "", why))
        .with_hint(hint);
}

/// What is wrong with them is wrong at the node: it does not try again.
inline void check_words(const node_hello& h) {
    if (!h.name.empty())
        check_word("the name of the node", h.name, most_node_name, "choose another --name");
    if (!h.host.empty())
        check_word("the host name of the node", h.host, most_node_name,
                   "give the host another name");
    if (h.labels.size() > most_node_labels)
        throw error(errc::invalid_argument,
                    fmt::format("a node with {} labels, at most {} are taken", h.labels.size(),
                                most_node_labels))
            .with_hint("leave some out of --labels");
    std::set<std::string_view> seen;
    for (const auto& label : h.labels) {
        const auto what = fmt::format("label {} of the node", seen.size() + 1);
        check_word(what, label, most_node_label, "choose other --labels, e.g. zone=a");
        if (label.starts_with("node="))
            throw error(errc::invalid_argument,
                        fmt::format("{} is {}: so nodes are asked for by their names", what, label))
                .with_hint("leave it out of --labels; --name gives the node a name");
        if (!seen.insert(label).second)
            throw error(errc::invalid_argument, fmt::format("{}, {}, is there twice", what, label))
                .with_hint("name each of --labels once");
    }
}

} // namespace detail

SKEIN_INLINE std::string head::state::free_name(const node_hello& h) {
    std::string wanted = !h.name.empty() ? h.name : !h.host.empty() ? h.host : "node";
    auto* other = find_node(wanted);
    if (other != nullptr && is_silent(*other)) {
        lose(*other, "another node has come under its name"); // it was started again
        other = nullptr;
    }
    if (other == nullptr) return wanted;
    if (!h.name.empty())
        throw error(errc::already_exists,
                    fmt::format("a node {} is in the cluster already, pid {} at {}", wanted,
                                other->pid, other->host))
            .with_hint("choose another --name");
    for (int i = 2;; ++i)
        if (auto name = fmt::format("{}-{}", wanted, i); find_node(name) == nullptr) return name;
}

SKEIN_INLINE detail::head_node& head::state::enter(const session_ptr& s, const node_hello& h) {
    if (auto* known = node_at(s->incarnation)) { // its last link is over, only not for us yet
        known->session->node = nullptr;
        if (known->session->below != nullptr) // nullptr: it was away
            known->session->below->abort(error(errc::reset, "the node has come over another link"));
        known->session = s;
        output.forget_node(known->incarnation); // it says again what it has
        return *known;
    }
    const auto total = sched::parse_resources(h.resources);
    if (!total) throw total.error();
    auto made = std::make_unique<detail::head_node>();
    auto name = free_name(h);
    made->incarnation = s->incarnation;
    made->host = h.host;
    made->pid = h.pid;
    made->session = s;
    made->room = &leases.add_node(s->incarnation, std::move(name), *total, h.labels);
    const auto* remembered = memory.find_node(made->room->name);
    made->room->draining = remembered != nullptr ? remembered->draining : h.draining;
    (void)leases.schedule().drain(made->room->place(), made->room->draining);
    auto& n = *made;
    memory.node_came({n.room->name, n.host, h.resources, n.room->labels, n.room->draining});
    nodes.emplace(s->incarnation, std::move(made));
    loads.came(n.room->name);
    logging::at(how.news, "head", "node joined",
                {{"node", n.room->name}, {"host", n.host}, {"has", h.resources}});
    ++changes;
    ++node_changes;
    return n;
}

SKEIN_INLINE task<node_welcome> head::state::on_node(state* self, session_ptr s, node_hello h) {
    if (s == nullptr || s->node != nullptr || s->driver != nullptr)
        throw error(errc::malformed, "a second hello over one link");
    detail::check_version(h.version, "the node");
    detail::check_words(h);
    for (const auto& held : h.holds)
        detail::check_text("a namespace of the node", held.space, detail::most_space_bytes);
    if (h.holds.size() > self->how.most_leases || h.ended.size() > self->how.most_leases)
        throw error(errc::too_large, fmt::format("a node with {} workers", h.holds.size()));
    if (h.again) self->spaces.had_head();
    auto& n = self->enter(s, h);
    s->node = &n;
    n.alone_ms = h.alone_ms;
    if (n.room->draining != h.draining)
        s->tell(node_drains{n.room->draining}); // it was lost with a link
    node_welcome out;
    out.name = n.room->name;
    out.lost_after_ms = self->lost_after_ms();
    self->reconcile(n, h, out.stop);
    self->leases.take_groups_over();
    self->tell_size();
    self->leases.pump();
    co_return out;
}

/// runs: nobody knows that what it runs has ended.
SKEIN_INLINE void head::state::lose(detail::head_node& n, const std::string& why, bool left,
                                    bool runs) {
    if (runs)
        leave_attempts(n);
    else
        given_up.node_died(n.incarnation);
    logging::at(how.news, "head", "node lost", {{"node", n.room->name}, {"why", why}});
    memory.node_went(n.room->name, left);
    const auto name = n.room->name;
    const auto how_it_ended = fmt::format("node {} was lost: {}", name, why);
    const auto& below = n.session->below; // nullptr: it was away
    const bool is_seen = below != nullptr && below->ending() == net::link_end::orderly;
    for (const auto& [held, l] : n.room->leases)
        if (l->number == space_server_lease) spaces.over(held.driver, how_it_ended, is_seen);
    leases.remove_node(*n.room, how_it_ended);
    output.forget_node(n.incarnation);
    n.session->node = nullptr;
    if (below != nullptr) below->declare_dead(why); // should it come back, it is told so
    loads.went(name);
    nodes.erase(n.incarnation);
    tell_size();
    ++changes;
    ++node_changes;
    leases.pump();
}

SKEIN_INLINE detail::head_node* head::state::find_node(const std::string& name) {
    for (auto& [number, n] : nodes)
        if (n->room->name == name) return n.get();
    return nullptr;
}

SKEIN_INLINE detail::head_node* head::state::node_at(std::uint64_t incarnation) {
    const auto found = nodes.find(incarnation);
    return found == nodes.end() ? nullptr : found->second.get();
}

template <class Nodes>
[[nodiscard]] error not_a_node(const Nodes& nodes, const std::string& name) {
    name_list there;
    for (const auto& [number, one] : nodes) there.add(one->room->name);
    return error(errc::not_found,
                 fmt::format("no node is called \"{}\"; {}", name, there.text("none has joined")))
        .with_hint("skein status lists the nodes");
}

/// Of a node that is not there now.
SKEIN_INLINE drain_reply head::state::drain_missing(const ask_drain& what) {
    if (memory.find_node(what.node) == nullptr) throw not_a_node(nodes, what.node);
    if (what.forget)
        memory.forget_node(what.node);
    else
        memory.node_drains(what.node, what.on);
    logging::at(how.news, "head",
                what.forget ? "missing node forgotten"
                : what.on   ? "missing node will be drained"
                            : "missing node will take workers",
                {{"node", what.node}});
    drain_reply out;
    out.open = size().nodes;
    out.missing = true;
    return out;
}

SKEIN_INLINE drain_reply head::state::drain(const ask_drain& what) {
    auto* n = find_node(what.node);
    if (n == nullptr) return drain_missing(what);
    if (what.forget)
        throw error(errc::invalid_argument,
                    fmt::format("node {} is in the cluster, it cannot be forgotten", what.node))
            .with_hint("end its agent first");
    n->room->draining = what.on;
    ++changes;
    ++node_changes;
    memory.node_drains(n->room->name, what.on);
    (void)leases.schedule().drain(n->room->place(), what.on);
    n->session->tell(node_drains{what.on});
    logging::at(how.news, "head", what.on ? "node drains" : "node takes workers again",
                {{"node", n->room->name}});
    for (const auto& [name, l] : n->room->leases) leases.not_recalled(*l);
    if (what.on)
        for (const auto& [name, l] : n->room->leases)
            leases.recall(*l, fmt::format("node {} is drained", n->room->name));
    if (what.on) leases.schedule().move_bundles(n->room->place());
    tell_size();
    if (!what.on) // to those that know already what room there is
        for (const auto& [name, l] : n->room->leases) leases.tell_withdrawn(*l);
    leases.pump();
    drain_reply out;
    out.workers = static_cast<std::uint32_t>(n->room->leases.size());
    out.open = size().nodes;
    return out;
}

} // namespace skein::cluster
