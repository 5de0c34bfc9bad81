// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/head.hpp: what a head does with its table of leases, and what nodes
// and drivers say of leases when they come back.

#include <skein/cluster/detail/head_state.hpp>
#include <skein/core/loop.hpp>

#include <set>
#include <utility>
#include <variant>

#include <fmt/format.h>

namespace skein::cluster {

// ---- for the table ------------------------------------------------------------------------------

SKEIN_INLINE bool head::state::is_connected(std::uint64_t driver) const {
    return drivers.at(driver)->session != nullptr;
}

SKEIN_INLINE void head::state::tell_driver(std::uint64_t driver, const detail::lease_news& news) {
    const auto& session = drivers.at(driver)->session;
    if (session) std::visit([&](const auto& one) { session->tell(one); }, news);
}

SKEIN_INLINE void head::state::start_process(detail::lease& granted) {
    auto& l = granted;
    if (!l.of->attempt_of.empty())
        return runner.placed(l.of->attempt_of, {{l.of->incarnation, l.number},
                                                sched::to_string(l.demand),
                                                l.gpus.bits(),
                                                l.at->incarnation,
                                                l.at->name});
    links.at(l.at->incarnation)->tell(order_of(l));
    runner.rank_placed(drivers.at(l.of->incarnation)->hello.job, l.rank, l.at->name);
    l.rank = {}; // told once
    leases.tell_granted(l);
}

SKEIN_INLINE void head::state::stop_process(const detail::lease& l, bool at_once) {
    links.at(l.at->incarnation)->tell(stop_worker_order{{l.of->incarnation, l.number}, at_once});
}

SKEIN_INLINE void head::state::lease_ends(const detail::lease& last, const std::string& why) {
    if (last.number == space_server_lease)
        spaces.over(last.of->incarnation,
                    last.at != nullptr ? fmt::format("{} on {}", why, last.at->name) : why,
                    last.state != detail::lease_state::expected);
}

SKEIN_INLINE void head::state::holder_over(std::uint64_t driver) {
    spaces.over(driver, "it has ended", true);
    const auto& calls = drivers.at(driver)->calls;
    calls_of_gone.submitted += calls.submitted;
    calls_of_gone.done += calls.done;
    calls_of_gone.failed += calls.failed;
    output.forget_driver(driver);
    spaces.forget_driver(driver);
    drivers.erase(driver);
}

// ---- what those say who come back ---------------------------------------------------------------

SKEIN_INLINE void head::state::on_ended(const ended_lease& what, detail::known_node& from) {
    given_up.over(what.lease.driver);
    auto* const found = leases.find(what.lease);
    if (found == nullptr) return;
    auto& l = *found;
    const bool is_there = l.at == from.room || (l.state == detail::lease_state::expected &&
                                                l.expected_node == unknown_node);
    if (!is_there) return;
    if (what.started)
        nodes.worked(from);
    else if (what.of_node)
        nodes.failed(from, what.how.substr(0, 1024));
    auto why = what.how.substr(0, 4096);
    if (l.is_forced) why = fmt::format("its node {} is drained, by force: {}", from.name(), why);
    leases.end(l, what.started, why, what);
}

/// Takes over a lease that a node holds. False: nobody wants it; its room is taken until its worker
/// has ended.
SKEIN_INLINE bool head::state::hold(detail::known_node& n, const held_lease& held) {
    const bool is_other =
        (!held.space.empty() && !claim_space(held)) || (!held.job.empty() && !runner.claims(held));
    const auto driver = drivers.find(held.lease.driver);
    auto* const d = driver == drivers.end() ? nullptr : driver->second.get();
    auto* const l = leases.find(held.lease);
    if (l != nullptr && l->at == n.room) {
        if (l->state == detail::lease_state::stopping)
            leases.stop(*l, l->at_once); // the order may be lost
        return true;
    }
    using lease_phase = detail::lease_state;
    const auto take_over = [&](lease_phase as) {
        const auto demand = sched::parse_resources(held.demand);
        if (!demand) return false;
        (void)driver_of(held.lease.driver);
        return leases.take_over(*n.room, held, *demand, l, as);
    };
    if (l != nullptr && l->state == lease_phase::waits) { // its driver has not heard of the grant
        (void)leases.schedule().cancel(std::exchange(l->request, {}));
        if (!take_over(lease_phase::granted)) return false;
        leases.tell_granted(*l);
        return true;
    }
    if (l != nullptr && l->state != lease_phase::expected) return false;
    if (l != nullptr && l->at_once) {
        if (!take_over(lease_phase::stopping)) return false;
        stop_process(*l, true);
        return true;
    }
    if (l == nullptr && d != nullptr && d->session == nullptr &&
        !d->holder->ending) // as of one not known
        d->away_until = std::max(d->away_until, deadline_after(on_loop.now(), how.driver_grace));
    const bool is_unwanted =
        is_other || (l == nullptr && d != nullptr && (d->session != nullptr || d->holder->ending));
    const bool is_news = l != nullptr && l->expected_node == unknown_node;
    const bool taken = take_over(is_unwanted ? lease_phase::stopping : lease_phase::granted);
    if (taken && is_news) leases.tell_granted(*l);
    if (!taken || is_unwanted) return false;
    if (held.job.empty()) return true;
    runner.runs(held.job, held.lease.driver, held.pid);
    if (l != nullptr && jobs.called(held.job)->is_stopping) leases.stop(*l);
    return true;
}

SKEIN_INLINE void head::state::reconcile(detail::known_node& n, const node_hello& h,
                                         std::vector<lease_name>& stop) {
    for (const auto& e : h.ended) on_ended(e, n);
    std::set<lease_name> held;
    for (const auto& one : h.holds) {
        held.insert(one.lease);
        if (!hold(n, one)) stop.push_back(one.lease);
    }
    given_up.node_came(n.incarnation, n.name(), held);
    // What it was to start or to hold, and does not: an order, or the news of an end, was lost with
    // a link.
    std::vector<detail::lease*> lost;
    for (const auto& [name, l] : n.room->leases)
        if (!held.contains(name)) lost.push_back(l);
    for (auto& [number, d] : drivers)
        for (auto& [k, l] : d->holder->leases)
            if (l->state == detail::lease_state::expected && is_expected_of(*l, n))
                lost.push_back(l.get());
    for (auto* l : lost) end_lost(*l, n);
}

SKEIN_INLINE void head::state::reconcile(detail::head_driver& d, const driver_hello& h) {
    std::set<std::uint64_t> known, groups;
    leases.schedule().say_again(
        d.holder->id()); // that no node could hold it may be lost with the last link
    for (const auto& g : h.groups) {
        groups.insert(g.number);
        leases.want_group(*d.holder, g);
    }
    for (const auto& k : h.leases) {
        known.insert(k.number);
        const auto found = d.holder->leases.find(k.number);
        if (found != d.holder->leases.end()) {
            auto& l = *found->second;
            if (const auto* const g = k.label.empty() ? detail::group_of(l) : nullptr)
                leases.loosen_group(*d.holder, g->number); // that was lost with a link
            l.label = k.label;                             // news, if a node has told of it alone
            l.own = k.own;
            // A lease that was granted while its driver was away, or before this head's time: its
            // labels are news.
            if (l.state == detail::lease_state::granted) {
                leases.tell_granted(l);
                if (!leases.is_coming(l) && !l.at->draining) leases.tell_withdrawn(l);
            }
            continue;
        }
        if (k.node == 0) {
            leases.want(*d.holder, {k.number, k.demand, k.label, k.own, k.env, k.cwd});
            continue;
        }
        const auto demand = sched::parse_resources(k.demand);
        if (!demand || leases.find_node(k.node) != nullptr ||
            d.holder->leases.size() >= how.most_leases) {
            d.session->tell(lease_ended{k.number, true, "its node does not have it any more"});
            continue;
        }
        auto& l = leases.add(*d.holder, k.number, *demand);
        l.own = k.own;
        l.label = k.label;
        l.state = detail::lease_state::expected;
        l.expected_node = k.node;
        l.until = deadline_after(on_loop.now(), how.driver_grace);
    }
    std::vector<std::uint64_t> unknown;
    for (const auto& [number, l] : d.holder->leases)
        if (!known.contains(number)) unknown.push_back(number);
    for (const auto number : unknown) leases.give_back(*d.holder, number);
    leases.take_groups_over();
    for (auto& [number, g] : d.holder->groups)
        if (!groups.contains(number)) g.closing = true;
    leases.close_groups(*d.holder);
}

} // namespace skein::cluster
