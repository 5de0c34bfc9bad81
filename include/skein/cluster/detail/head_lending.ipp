// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/head.hpp: entry processes of jobs that wait for their own tasks, and
// drivers that have waited for long.

#include <skein/cluster/detail/head_state.hpp>
#include <skein/cluster/detail/submitted_job.hpp>
#include <skein/core/loop.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster {

namespace detail {

/// Then people are told.
inline constexpr auto long_wait = std::chrono::seconds(5);

/// A node that could hold it, if it held nothing else.
[[nodiscard]] inline bool could_hold(const lease_node& n, const lease& l) {
    const bool is_meant = l.label.empty() || l.label == sched::spread_label ||
                          l.label == "node=" + n.name ||
                          std::find(n.labels.begin(), n.labels.end(), l.label) != n.labels.end();
    return is_meant && !n.draining && sched::fits(l.demand, n.total);
}

/// "n1: cpu 2 of 2 held by job a (entry), mnist (2 workers)"
template <class Drivers>
[[nodiscard]] std::string holders_at(const lease_node& n, const Drivers& drivers) {
    constexpr std::size_t most = 6;
    std::map<std::pair<std::string, bool>, std::size_t> held; // the bool: an entry process
    sched::amount cpus;
    for (const auto& [name, l] : n.leases) {
        if (l->blocked || !l->demand.cpu) continue;
        cpus += l->demand.cpu;
        const bool is_entry = !l->of->attempt_of.empty();
        const auto& of = drivers.at(l->of->incarnation)->hello.name;
        ++held[{of.empty() ? "a program" : of, is_entry}];
    }
    std::string out = fmt::format("{}: cpu {} of {}", n.name, sched::to_string(cpus),
                                  sched::to_string(n.total.cpu));
    std::size_t at = 0;
    for (const auto& [who, count] : held) {
        if (++at > most) continue;
        out += fmt::format("{}{} ({})", at == 1 ? " held by " : ", ", who.first,
                           who.second   ? std::string("entry")
                           : count == 1 ? std::string("1 worker")
                                        : fmt::format("{} workers", count));
    }
    return at > most ? fmt::format("{} and {} more", out, at - most) : out;
}

/// "; n1: cpu 2 of 2 held by job a (entry); n2 cannot start anything: ..."; empty: of no node.
///   is_meant   whether a node could hold what waits, if it held nothing else
template <class Nodes, class Drivers, class IsMeant>
[[nodiscard]] std::string holders(const Nodes& nodes, const Drivers& drivers, IsMeant is_meant) {
    constexpr std::size_t most = 4;
    std::string out;
    std::size_t at = 0;
    for (const auto& [number, n] : nodes) {
        if (!is_meant(*n->room) || ++at > most) continue;
        out += "; " + (n->rest.is_on() ? fmt::format("{} cannot start anything: {}", n->room->name,
                                                     n->rest.why())
                                       : holders_at(*n->room, drivers));
    }
    return at > most ? fmt::format("{}; {} more nodes", out, at - most) : out;
}

} // namespace detail

/// That of the job which a driver came out of; nullptr: it has none that runs.
SKEIN_INLINE detail::lease* head::state::entry_of(const detail::head_driver& driver) const {
    const auto* const job = job_behind(driver);
    if (job == nullptr) return nullptr;
    auto* const l = leases.find({job->lease_of, detail::entry_lease});
    return l != nullptr && l->state == detail::lease_state::granted && l->request ? l : nullptr;
}

/// Its driver has just asked, and there was no room: the entry process waits for its tasks, so that
/// these may have its cpus. Else jobs that have all cpus wait for each other for ever.
SKEIN_INLINE bool head::state::lend_entry(const detail::head_driver& driver) {
    auto* const entry = entry_of(driver);
    if (entry == nullptr || entry->blocked) return false;
    const bool waits =
        std::any_of(
            driver.holder->leases.begin(), driver.holder->leases.end(),
            [](const auto& one) { return one.second->state == detail::lease_state::waits; }) ||
        std::any_of(driver.holder->groups.begin(), driver.holder->groups.end(),
                    [](const auto& one) { return !one.second.placed && !one.second.closing; });
    if (!waits || !leases.schedule().wait_begin(entry->request)) return false;
    entry->blocked = true;
    return true;
}

/// For what it has just asked for: what is free, then what its job can lend, then what others of
/// its leases hold.
SKEIN_INLINE void head::state::find_room(const detail::head_driver& driver, bool of_groups) {
    leases.pump();
    if (lend_entry(driver)) leases.pump();
    shares.make_room(*driver.holder, of_groups);
}

/// They have their cpus back when no driver of their job has, or waits for, anything.
SKEIN_INLINE void head::state::lend_entries() {
    std::map<std::uint64_t, bool> lent; // attempts, and whether they still need it
    for (const auto& [number, d] : drivers)
        if (!d->holder->attempt_of.empty())
            if (const auto own = d->holder->leases.find(detail::entry_lease);
                own != d->holder->leases.end() && own->second->blocked)
                lent[number] = false;
    for (const auto& [number, d] : drivers) {
        if (d->hello.job.empty() || d->holder->ending) continue;
        (void)lend_entry(*d); // that of this moment
        const auto* const job = job_behind(*d);
        if (job == nullptr || (d->holder->leases.empty() && d->holder->groups.empty())) continue;
        if (const auto found = lent.find(job->lease_of); found != lent.end()) found->second = true;
    }
    for (const auto& [number, is_needed] : lent) {
        const auto d = drivers.find(number);
        if (is_needed || d == drivers.end()) continue;
        auto& l = *d->second->holder->leases.at(detail::entry_lease);
        l.blocked = false;
        if (l.request)
            (void)leases.schedule().wait_end(l.request); // it goes on, whoever has its cpus
    }
}

// ---- what waits for long ------------------------------------------------------------------------

/// What a driver has waited for so long that people should know: all that it has asked for, or what
/// some of its calls alone need. nullptr: nothing.
SKEIN_INLINE const detail::lease* head::state::held_up(const detail::head_driver& driver) const {
    const detail::lease* first = nullptr;
    bool has_any = false;
    for (const auto& [number, l] : driver.holder->leases) {
        has_any = has_any || l->state == detail::lease_state::granted;
        if (l->state != detail::lease_state::waits) continue;
        if (first == nullptr || (l->own && !first->own)) first = l.get();
    }
    if (first == nullptr || (has_any && !first->own)) return nullptr;
    return on_loop.now() >= deadline_after(first->asked_at, detail::long_wait) ? first : nullptr;
}

/// "waits for cpu=1 for 7 s; n1: ..."
SKEIN_INLINE std::string head::state::held_text(const detail::lease& l) const {
    auto who = detail::holders(
        nodes, drivers, [&](const detail::lease_node& n) { return detail::could_hold(n, l); });
    if (who.empty() && l.request) who = "; " + leases.schedule().why(l.request);
    return fmt::format("waits for {}{} for {:.0f} s{}",
                       l.demand.empty() ? "room" : sched::to_string(l.demand),
                       l.label.empty() || l.label == sched::spread_label ? "" : " on " + l.label,
                       to_seconds(on_loop.now() - l.asked_at), who);
}

/// "waits for 4 places, {cpu=1} and more, for 7 s; n1: ..."
SKEIN_INLINE std::string head::state::held_text(const detail::lease_group& g) const {
    const bool is_one = g.bundles.size() == 1;
    return fmt::format(
        "waits for {} place{}, {{{}}}{}, for {:.0f} s{}", g.bundles.size(), is_one ? "" : "s",
        sched::to_string(g.bundles.front()), is_one ? "" : " and more",
        to_seconds(on_loop.now() - g.asked_at),
        detail::holders(nodes, drivers, [](const detail::lease_node& n) { return !n.draining; }));
}

/// By job: what the first of its drivers has waited for so long that people should know.
SKEIN_INLINE detail::texts_by_job head::state::held_up_jobs() const {
    detail::texts_by_job out;
    for (const auto& [number, d] : drivers) {
        if (d->hello.job.empty() || d->holder->ending || out.contains(d->hello.job)) continue;
        const auto group =
            std::find_if(d->holder->groups.begin(), d->holder->groups.end(), [&](const auto& one) {
                const auto& g = one.second;
                return !g.placed && !g.closing && !g.bundles.empty() &&
                       on_loop.now() >= deadline_after(g.asked_at, detail::long_wait);
            });
        const auto* const l = held_up(*d);
        if (group != d->holder->groups.end())
            out.emplace(d->hello.job, d->hello.name + " " + held_text(group->second));
        else if (l != nullptr)
            out.emplace(d->hello.job, d->hello.name + " " + held_text(*l));
    }
    return out;
}

/// Drivers say it in their own words, which are in their job's log.
SKEIN_INLINE void head::state::tell_held_up() {
    for (const auto& [number, d] : drivers) {
        if (d->session == nullptr || d->holder->ending) continue;
        const auto* const l = held_up(*d);
        if (l == nullptr || l->is_held_up) continue;
        if (std::none_of(nodes.begin(), nodes.end(), [&](const auto& one) {
                return detail::could_hold(*one.second->room, *l);
            }))
            continue; // it was told that
        d->holder->leases.at(l->number)->is_held_up = true;
        d->session->tell(lease_waits{l->number, held_text(*l), true});
        ++changes; // of what a job's status says
    }
}

} // namespace skein::cluster
