// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of cluster/detail/node_table.hpp.

#include <skein/cluster/tools.hpp>

#include <algorithm>
#include <chrono>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::cluster::detail {

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

SKEIN_INLINE void check_words(const node_hello& h) {
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

SKEIN_INLINE known_node* node_table::find(std::uint64_t incarnation) const {
    const auto found = nodes_.find(incarnation);
    return found == nodes_.end() ? nullptr : found->second.get();
}

SKEIN_INLINE known_node* node_table::find(const std::string& name) const {
    for (const auto& [number, n] : nodes_)
        if (n->name() == name) return n.get();
    return nullptr;
}

SKEIN_INLINE cluster_changed node_table::size() const {
    cluster_changed out;
    for (const auto& [number, n] : nodes_) {
        if (n->room->draining) continue;
        out.cpus +=
            static_cast<std::uint64_t>(n->room->total.cpu.in_steps() / sched::amount::steps);
        ++out.nodes;
    }
    return out;
}

SKEIN_INLINE std::uint64_t node_table::lost_after_ms() const {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(duration(options_.lost_after))
            .count());
}

SKEIN_INLINE node_status node_table::status_of(const known_node& n) const {
    node_status s;
    s.name = n.name();
    s.host = n.host;
    s.pid = n.pid;
    s.resources = sched::to_string(n.room->total);
    s.workers = static_cast<std::uint32_t>(n.room->leases.size());
    s.draining = n.room->draining;
    s.labels = n.room->labels;
    const auto in_ms = [](duration d) {
        return std::chrono::duration_cast<std::chrono::milliseconds>(d).count();
    };
    s.suspect = links_.is_silent(n.incarnation);
    if (s.suspect) {
        s.silent_ms = static_cast<std::uint64_t>(in_ms(n.silence.length(loop_.now())));
        s.given_up_ms = static_cast<std::uint64_t>(in_ms(patience_with(n)));
    }
    if (n.rest.is_on()) {
        s.rests_ms = std::max<std::int64_t>(in_ms(n.rest.left(loop_.now())), 1);
        s.rests_for = n.rest.why();
    }
    return s;
}

// ---- who comes and goes -------------------------------------------------------------------------

SKEIN_INLINE std::string node_table::free_name(const node_hello& h) {
    std::string wanted = !h.name.empty() ? h.name : !h.host.empty() ? h.host : "node";
    auto* other = find(wanted);
    if (other != nullptr && links_.is_silent(other->incarnation)) {
        links_.lose_node(other->incarnation, "another node has come under its name",
                         false); // it was started again
        other = nullptr;
    }
    if (other == nullptr) return wanted;
    if (!h.name.empty())
        throw error(errc::already_exists,
                    fmt::format("a node {} is in the cluster already, pid {} at {}", wanted,
                                other->pid, other->host))
            .with_hint("choose another --name");
    for (int i = 2;; ++i)
        if (auto name = fmt::format("{}-{}", wanted, i); find(name) == nullptr) return name;
}

SKEIN_INLINE known_node& node_table::enter(std::uint64_t incarnation, const node_hello& h) {
    const auto total = sched::parse_resources(h.resources);
    if (!total) throw total.error();
    auto made = std::make_unique<known_node>();
    auto name = free_name(h);
    made->incarnation = incarnation;
    made->host = h.host;
    made->pid = h.pid;
    made->room = &leases_.add_node(incarnation, std::move(name), *total, h.labels);
    const auto* remembered = memory_.find_node(made->name());
    made->room->draining = remembered != nullptr ? remembered->draining : h.draining;
    (void)leases_.schedule().drain(made->room->place(), made->room->draining);
    auto& n = *made;
    memory_.node_came({n.name(), n.host, h.resources, n.room->labels, n.room->draining});
    nodes_.emplace(incarnation, std::move(made));
    logging::at(options_.news, "head", "node joined",
                {{"node", n.name()}, {"host", n.host}, {"has", h.resources}});
    ++changes_;
    return n;
}

SKEIN_INLINE void node_table::remove(known_node& n, const std::string& why, bool left) {
    memory_.node_went(n.name(), left);
    leases_.remove_node(*n.room, fmt::format("node {} was lost: {}", n.name(), why));
    nodes_.erase(n.incarnation);
    ++changes_;
}

// ---- drained ------------------------------------------------------------------------------------

SKEIN_INLINE error not_a_node(const node_table& nodes, const std::string& name) {
    name_list there;
    for (const auto& [number, one] : nodes.all()) there.add(one->room->name);
    return error(errc::not_found,
                 fmt::format("no node is called \"{}\"; {}", name, there.text("none has joined")))
        .with_hint("skein status lists the nodes");
}

/// Of a node that is not there now.
SKEIN_INLINE drain_reply node_table::drain_missing(const ask_drain& asked) {
    if (memory_.find_node(asked.node) == nullptr) throw not_a_node(*this, asked.node);
    if (asked.forget)
        memory_.forget_node(asked.node);
    else
        memory_.node_drains(asked.node, asked.on, asked.within_ms, asked.force);
    logging::at(options_.news, "head",
                asked.forget ? "missing node forgotten"
                : asked.on   ? "missing node will be drained"
                             : "missing node will take workers",
                {{"node", asked.node}});
    drain_reply out;
    out.open = size().nodes;
    out.missing = true;
    return out;
}

SKEIN_INLINE drain_reply node_table::drain(const ask_drain& asked, bool is_remembered) {
    auto* n = find(asked.node);
    if (n == nullptr) return drain_missing(asked);
    if (asked.forget)
        throw error(errc::invalid_argument,
                    fmt::format("node {} is in the cluster, it cannot be forgotten", asked.node))
            .with_hint("end its agent first");
    n->room->draining = asked.on;
    ++changes_;
    if (is_remembered) memory_.node_drains(n->name(), asked.on, asked.within_ms, asked.force);
    (void)leases_.schedule().drain(n->room->place(), asked.on);
    links_.tell_drains(n->incarnation, asked.on);
    logging::at(options_.news, "head", asked.on ? "node drains" : "node takes workers again",
                {{"node", n->name()}});
    for (const auto& [name, l] : n->room->leases) leases_.not_recalled(*l);
    if (asked.on)
        for (const auto& [name, l] : n->room->leases)
            leases_.recall(*l, fmt::format("node {} is drained", n->name()));
    if (asked.on) leases_.schedule().move_bundles(n->room->place());
    links_.tell_size();
    if (!asked.on) // to those that know already what room there is
        for (const auto& [name, l] : n->room->leases) leases_.tell_withdrawn(*l);
    leases_.pump();
    drain_reply out;
    out.workers = static_cast<std::uint32_t>(n->room->leases.size());
    out.open = size().nodes;
    return out;
}

SKEIN_INLINE void node_table::empty_draining() {
    const auto now = loop_.now();
    for (const auto& [number, n] : nodes_)
        if (n->room->draining)
            for (const auto& [name, l] : n->room->leases)
                if (now >= l->keep_until)
                    leases_.recall(*l, fmt::format("node {} is drained", n->name()));
    for (const auto& [number, n] : nodes_)
        if (n->room->draining) leases_.schedule().move_bundles(n->room->place());
}

// ---- silent, or resting -------------------------------------------------------------------------

SKEIN_INLINE duration node_table::patience_with(const known_node& n) const {
    return links_.has_died(n.incarnation)
               ? std::min<duration>(options_.node_grace, options_.lost_after)
               : duration(options_.lost_after);
}

/// "node n1 is silent for 7 s; given up at 30 s"
SKEIN_INLINE std::string node_table::silence_text(const known_node& n) const {
    return fmt::format("node {} is {} for {:.0f} s; given up at {:.3g} s", n.name(),
                       links_.has_died(n.incarnation) ? "away" : "silent",
                       to_seconds(n.silence.length(loop_.now())), to_seconds(patience_with(n)));
}

SKEIN_INLINE void node_table::look() {
    const auto now = loop_.now();
    const auto late = now - std::exchange(looked_at_, now);
    std::vector<known_node*> lost;
    for (auto& [number, n] : nodes_) {
        const bool was = n->silence.is_there();
        if (late > duration(options_.look_every) + duration(options_.suspect_after))
            n->silence.forgive(late - duration(options_.look_every));
        n->silence.look(links_.is_silent(number), now, options_.suspect_after);
        (void)leases_.schedule().drain(n->room->place(),
                                       n->room->draining || n->silence.is_there());
        if (was != n->silence.is_there()) {
            ++changes_;
        }
        if (n->silence.is_there() && n->silence.length(now) >= duration(options_.lost_after))
            lost.push_back(n.get());
    }
    for (auto* n : lost)
        links_.lose_node(
            n->incarnation,
            fmt::format("it was silent for {:.3g} s", to_seconds(n->silence.length(now))),
            !links_.has_died(n->incarnation));
    end_rests();
}

SKEIN_INLINE void node_table::failed(known_node& n, const std::string& why) {
    const auto now = loop_.now();
    const bool begins = n.rest.failed(now, why);
    (void)leases_.schedule().rest(n.room->place(), "cannot start anything: " + why);
    if (!begins) return;
    logging::warn("head", "a node cannot start anything and gets nothing for a while",
                  {{"node", n.name()},
                   {"for", fmt::format("{:.3g} s", to_seconds(n.rest.left(now)))},
                   {"why", why}});
    ++changes_;
}

SKEIN_INLINE void node_table::worked(known_node& n) {
    if (!n.rest.worked()) return;
    (void)leases_.schedule().rest(n.room->place(), {});
    ++changes_;
}

/// Those whose time is over are tried again; of the others bundles without a worker go elsewhere.
SKEIN_INLINE void node_table::end_rests() {
    const auto now = loop_.now();
    for (auto& [number, n] : nodes_) {
        if (n->rest.left(now) != duration(0)) leases_.schedule().move_bundles(n->room->place());
        if (!n->rest.is_over(now)) continue;
        (void)leases_.schedule().rest(n->room->place(), {});
        ++changes_;
    }
}

} // namespace skein::cluster::detail
