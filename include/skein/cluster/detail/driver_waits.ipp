// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of cluster/detail/driver_waits.hpp.

#include <skein/rt/worker_source.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster::detail {

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
[[nodiscard]] inline std::string holders_at(const lease_node& n) {
    constexpr std::size_t most = 6;
    std::map<std::pair<std::string, bool>, std::size_t> held; // the bool: an entry process
    sched::amount cpus;
    for (const auto& [name, l] : n.leases) {
        if (l->blocked || !l->demand.cpu) continue;
        cpus += l->demand.cpu;
        const bool is_entry = !l->of->attempt_of.empty();
        const auto& of = l->of->name;
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
template <class IsMeant>
[[nodiscard]] std::string holders(const node_table& nodes, IsMeant is_meant) {
    constexpr std::size_t most = 4;
    std::string out;
    std::size_t at = 0;
    for (const auto& [number, n] : nodes.all()) {
        if (!is_meant(*n->room) || ++at > most) continue;
        out += "; " + (n->rest.is_on()
                           ? fmt::format("{} cannot start anything: {}", n->name(), n->rest.why())
                           : holders_at(*n->room));
    }
    return at > most ? fmt::format("{}; {} more nodes", out, at - most) : out;
}

/// That of the job which a driver came out of; nullptr: it has none that runs.
SKEIN_INLINE lease* driver_waits::entry_of(const lease_holder& driver) const {
    const auto job = jobs_.find(driver.job);
    if (job == nullptr) return nullptr;
    auto* const l = leases_.find({job->lease_of, entry_lease});
    return l != nullptr && l->state == lease_state::granted && l->request ? l : nullptr;
}

/// Its driver has just asked, and there was no room: the entry process waits for its tasks, so that
/// these may have its cpus. Else jobs that have all cpus wait for each other for ever.
SKEIN_INLINE bool driver_waits::lend(const lease_holder& driver) {
    auto* const entry = entry_of(driver);
    if (entry == nullptr || entry->blocked) return false;
    const bool waits =
        std::any_of(driver.leases.begin(), driver.leases.end(),
                    [](const auto& one) { return one.second->state == lease_state::waits; }) ||
        std::any_of(driver.groups.begin(), driver.groups.end(),
                    [](const auto& one) { return !one.second.placed && !one.second.closing; });
    if (!waits || !leases_.schedule().wait_begin(entry->request)) return false;
    entry->blocked = true;
    return true;
}

SKEIN_INLINE void driver_waits::find_room(const lease_holder& driver, bool of_groups) {
    leases_.pump();
    if (lend(driver)) leases_.pump();
    shares_.make_room(driver, of_groups);
}

SKEIN_INLINE void driver_waits::lend_entries() {
    std::map<std::uint64_t, bool> lent; // attempts, and whether they still need it
    for (const auto& [number, d] : leases_.holders())
        if (!d->attempt_of.empty())
            if (const auto own = d->leases.find(entry_lease);
                own != d->leases.end() && own->second->blocked)
                lent[number] = false;
    for (const auto& [number, d] : leases_.holders()) {
        if (d->job.empty() || d->ending) continue;
        (void)lend(*d); // that of this moment
        const auto job = jobs_.find(d->job);
        if (job == nullptr || (d->leases.empty() && d->groups.empty())) continue;
        if (const auto found = lent.find(job->lease_of); found != lent.end()) found->second = true;
    }
    for (const auto& [number, is_needed] : lent) {
        const auto d = leases_.holders().find(number);
        if (is_needed || d == leases_.holders().end()) continue;
        auto& l = *d->second->leases.at(entry_lease);
        l.blocked = false;
        if (l.request)
            (void)leases_.schedule().wait_end(l.request); // it goes on, whoever has its cpus
    }
}

// ---- who waits for long ------------------------------------------------------------------------

SKEIN_INLINE const lease* driver_waits::held_up(const lease_holder& driver) const {
    const lease* first = nullptr;
    bool has_any = false;
    for (const auto& [number, l] : driver.leases) {
        has_any = has_any || l->state == lease_state::granted;
        if (l->state != lease_state::waits) continue;
        if (first == nullptr || (l->own && !first->own)) first = l.get();
    }
    if (first == nullptr || (has_any && !first->own)) return nullptr;
    return loop_.now() >= deadline_after(first->asked_at, long_wait) ? first : nullptr;
}

SKEIN_INLINE std::string driver_waits::held_text(const lease& l) const {
    auto who = holders(nodes_, [&](const lease_node& n) { return could_hold(n, l); });
    if (who.empty() && l.request) who = "; " + leases_.schedule().why(l.request);
    return fmt::format("waits for {}{} for {:.0f} s{}",
                       l.demand.empty() ? "room" : sched::to_string(l.demand),
                       l.label.empty() || l.label == sched::spread_label ? "" : " on " + l.label,
                       to_seconds(loop_.now() - l.asked_at), who);
}

/// "waits for 4 places, {cpu=1} and more, for 7 s; n1: ..."
SKEIN_INLINE std::string driver_waits::held_text(const lease_group& g) const {
    const bool is_one = g.bundles.size() == 1;
    return fmt::format("waits for {} place{}, {{{}}}{}, for {:.0f} s{}", g.bundles.size(),
                       is_one ? "" : "s", sched::to_string(g.bundles.front()),
                       is_one ? "" : " and more", to_seconds(loop_.now() - g.asked_at),
                       holders(nodes_, [](const lease_node& n) { return !n.draining; }));
}

SKEIN_INLINE texts_by_job driver_waits::by_job() const {
    texts_by_job out;
    for (const auto& [number, d] : leases_.holders()) {
        if (d->job.empty() || d->ending || out.contains(d->job)) continue;
        const auto group = std::find_if(d->groups.begin(), d->groups.end(), [&](const auto& one) {
            const auto& g = one.second;
            return !g.placed && !g.closing && !g.bundles.empty() &&
                   loop_.now() >= deadline_after(g.asked_at, long_wait);
        });
        const auto* const l = held_up(*d);
        if (group != d->groups.end())
            out.emplace(d->job, d->name + " " + held_text(group->second));
        else if (l != nullptr)
            out.emplace(d->job, d->name + " " + held_text(*l));
    }
    return out;
}

SKEIN_INLINE void driver_waits::tell() {
    for (const auto& [number, d] : leases_.holders()) {
        if (d->ending || !events_.is_connected(number)) continue;
        const auto* const l = held_up(*d);
        if (l == nullptr || l->is_held_up) continue;
        if (std::none_of(nodes_.all().begin(), nodes_.all().end(),
                         [&](const auto& one) { return could_hold(*one.second->room, *l); }))
            continue; // it was told that
        d->leases.at(l->number)->is_held_up = true;
        events_.tell_driver(number, lease_waits{l->number, held_text(*l), true});
        ++changes_; // of what a job's status says
    }
}

} // namespace skein::cluster::detail
