// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of cluster/detail/fair_shares.hpp.

#include <skein/rt/worker_source.hpp>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster::detail {

/// The nodes with the fewest leases of this driver that are to be spread come first.
inline void spread_order(const lease_holder& d,
                         std::vector<sched::scheduler::place_info>& nodes_now) {
    std::map<sched::place_id, std::pair<int, std::size_t>> order; // how many it has, when it came
    for (std::size_t i = 0; i < nodes_now.size(); ++i) order[nodes_now[i].id] = {0, i};
    for (const auto& [number, l] : d.leases)
        if (l->at != nullptr && l->label == sched::spread_label) ++order[l->at->place()].first;
    std::sort(nodes_now.begin(), nodes_now.end(),
              [&](const auto& a, const auto& b) { return order[a.id] < order[b.id]; });
}

SKEIN_INLINE bool fair_shares::is_feasible(const sched::resources& demand) const {
    return std::any_of(leases_.nodes().begin(), leases_.nodes().end(), [&](const auto& n) {
        return !n.second->draining && sched::fits(demand, n.second->total);
    });
}

/// What each driver has, wants and should have. Gives the cpus that are on their way back.
SKEIN_INLINE std::int64_t fair_shares::take_stock(std::vector<driver_share>& into) const {
    std::map<sched::resources, bool> feasible;
    std::int64_t coming = 0;
    for (const auto& [number, d] : leases_.holders()) {
        driver_share p{d.get(), 0, 0, 0, {}};
        for (const auto& [k, l] : d->leases) {
            if (l->label.starts_with('@')) continue; // its room is that of its group
            const auto cpus = l->blocked ? 0 : l->demand.cpu.in_steps();
            if (l->state == lease_state::waits) {
                const auto [known, is_new] = feasible.try_emplace(l->demand, false);
                if (is_new) known->second = is_feasible(l->demand);
                if (known->second) p.wanted += cpus;
            } else if (l->at == nullptr || l->at->draining) {
                continue;
            } else if (l->state == lease_state::stopping || leases_.is_coming(*l)) {
                coming += cpus;
            } else {
                p.held += cpus;
                if (loop_.now() >= l->keep_until && cpus > 0 && d->attempt_of.empty())
                    p.may_give.push_back(l.get()); // nobody could be asked for that of a job
            }
        }
        for (const auto& [k, g] : d->groups) (g.placed ? p.held : p.wanted) += group_cpus(g);
        if (p.held == 0 && p.wanted == 0) continue;
        into.push_back(std::move(p));
    }
    std::int64_t total = 0;
    double weights = 0;
    for (const auto& [number, n] : leases_.nodes())
        if (!n->draining) total += n->total.cpu.in_steps();
    for (const auto& p : into) weights += p.of->weight;
    for (auto& p : into) p.fair = static_cast<double>(total) * p.of->weight / weights;
    return coming;
}

SKEIN_INLINE void fair_shares::look() {
    std::vector<driver_share> parts;
    const auto coming = take_stock(parts);
    constexpr auto one = sched::amount::steps;
    std::int64_t short_of = -coming, nothing_at_all = 0;
    for (auto& p : parts) {
        const auto whole = static_cast<std::int64_t>(p.fair) / one * one;
        if (p.wanted > 0) short_of += std::min(p.wanted, std::max<std::int64_t>(whole - p.held, 0));
        if (p.wanted > 0 && p.held == 0 && whole == 0) nothing_at_all += one;
    }
    const auto ask = [&](std::int64_t missing, bool to_their_last) {
        for (auto& p : parts) {
            while (missing > 0 && !p.may_give.empty()) {
                auto& l = *p.may_give.back(); // the newest
                const auto cpus = l.demand.cpu.in_steps();
                const auto left = to_their_last ? p.held : p.held - cpus;
                if (static_cast<double>(left) < p.fair || p.held <= 0) break;
                p.may_give.pop_back();
                p.held -= cpus;
                missing -= cpus;
                leases_.recall(l, "other programs have less than their share");
            }
        }
    };
    ask(short_of, false);
    ask(nothing_at_all - std::max<std::int64_t>(-short_of, 0), true);
    for (const auto& p : parts) {
        make_room(p);
        make_group_room(p);
    }
}

SKEIN_INLINE void fair_shares::make_room(const lease_holder& d, bool of_groups) {
    const auto waits = [](const auto& one) {
        const auto& l = *one.second;
        return l.own && l.state == lease_state::waits && !l.label.starts_with('@');
    };
    if (!of_groups && std::none_of(d.leases.begin(), d.leases.end(), waits)) return;
    std::vector<driver_share> parts;
    (void)take_stock(parts);
    for (const auto& p : parts)
        if (p.of == &d) of_groups ? make_group_room(p) : make_room(p);
}

/// A driver waits for a lease of its own kind, and others of its leases are in the way: it is asked
/// for as many of those as one node needs. They come back one by one: what is there already is kept
/// from others meanwhile.
SKEIN_INLINE void fair_shares::make_room(const driver_share& of) {
    std::vector<sched::scheduler::place_info> places;
    for (const auto& [number, l] : of.of->leases) {
        if (!l->own || l->state != lease_state::waits || l->label.starts_with('@')) continue;
        if (places.empty()) places = leases_.schedule().places();
        if (l->label == sched::spread_label) spread_order(*of.of, places);
        for (const auto& now : places) {
            auto* n = leases_.find_node(now.id.value());
            if (n == nullptr || now.draining || now.resting || !make_room(*l, *n, now)) continue;
            if (of.may_have(l->demand.cpu.in_steps()))
                (void)leases_.schedule().keep_room(l->request);
            return; // one at a time
        }
    }
}

/// False: this node could not hold it, whatever the driver gave back.
SKEIN_INLINE bool fair_shares::make_room(const lease& l, lease_node& n,
                                         const sched::scheduler::place_info& now) {
    const auto has = [&](const std::string& label) {
        return label == "node=" + n.name ||
               std::find(n.labels.begin(), n.labels.end(), label) != n.labels.end();
    };
    const bool anywhere = l.label.empty() || l.label == sched::spread_label;
    if (!sched::fits(l.demand, n.total) || (!anywhere && !has(l.label))) return false;
    std::vector<lease*> may_go;
    std::int64_t missing = (l.demand.cpu - (now.total.cpu - now.used.cpu)).in_steps();
    auto without = now.total; // once these have gone
    auto used = now.used;
    std::int64_t could = 0;
    for (const auto& [name, other] : n.leases) {
        if (other->of != l.of || other->own || other->blocked)
            continue; // whose cpus are free already
        const auto cpus = other->demand.cpu.in_steps();
        could += cpus;
        used.cpu -= other->demand.cpu;
        if (other->state == lease_state::stopping || leases_.is_coming(*other)) {
            missing -= cpus;
        } else if (other->state == lease_state::granted && loop_.now() >= other->actors_until) {
            may_go.push_back(other);
        } else {
            could -= cpus;
            used.cpu += other->demand.cpu;
        }
    }
    if (used.cpu > without.cpu) return false;
    without -= used;
    if (could == 0 || !sched::fits(l.demand, without)) return false;
    for (auto at = may_go.rbegin(); missing > 0 && at != may_go.rend(); ++at) {
        missing -= (*at)->demand.cpu.in_steps();
        leases_.recall(**at, fmt::format("room for {} on {}", sched::to_string(l.demand), n.name));
    }
    return true;
}

/// Cpus that count for its driver's share, in steps.
SKEIN_INLINE std::int64_t fair_shares::group_cpus(const lease_group& g) const {
    std::int64_t cpus = 0;
    for (const auto& b : g.bundles) {
        if (!g.placed && !is_feasible(b)) return 0;
        cpus += b.cpu.in_steps();
    }
    return cpus;
}

/// A lease for all tasks of a driver that can be asked back.
SKEIN_INLINE bool fair_shares::may_go(const lease& l, const lease_holder& d) const {
    return l.of == &d && !l.own && l.state == lease_state::granted && loop_.now() >= l.actors_until;
}

/// A driver waits for a group, and others of its leases are in the way: it is asked for those that
/// are. They come back one by one; what is there already is kept from others meanwhile, or the
/// group would never have all.
SKEIN_INLINE void fair_shares::make_group_room(const driver_share& of) {
    for (const auto& [number, g] : of.of->groups) {
        if (!g.id || g.placed || g.closing) continue;
        const bool within_share = of.may_have(group_cpus(g));
        if (within_share && leases_.schedule().keep_room(g.id)) return; // it is on its way
        if (!make_group_room(g, within_share)) continue;
        if (within_share) (void)leases_.schedule().keep_room(g.id);
        return; // one at a time
    }
}

/// The nodes as they would be for a group without those leases of its driver that can be asked
/// back, and what of their cpus is free now or coming back. What others give back counts for one
/// who stays within his share.
SKEIN_INLINE sched::scheduler fair_shares::places_for(
    const lease_group& g, bool within_share, std::map<std::uint64_t, sched::amount>& free) const {
    sched::scheduler plan(sched::scheduler_options{sched::placement::spread});
    for (const auto& p : leases_.schedule().places()) {
        const auto* const n = leases_.find_node(p.id.value());
        const bool has_one = g.strategy == sched::group_strategy::strict_spread &&
                             std::any_of(g.places.begin(), g.places.end(),
                                         [&](const auto& b) { return b.node == p.id.value(); });
        if (n == nullptr || p.draining || p.resting || p.reserved || has_one) continue;
        auto used = p.used;
        auto& now = free[p.id.value()];
        now = p.total.cpu - used.cpu;
        for (const auto& [name, l] : n->leases) {
            const bool coming = l->state == lease_state::stopping || leases_.is_coming(*l);
            const bool counts = coming ? within_share || l->of == g.of : may_go(*l, *g.of);
            if (!counts || l->label.starts_with('@')) continue; // that room is a group's
            auto gives = l->demand;
            if (l->blocked) gives.cpu = {}; // these are free already
            if (!sched::fits(gives, used)) continue;
            used -= gives;
            if (coming) now += gives.cpu;
        }
        if (!sched::fits(used, p.total)) continue;
        auto room = p.total;
        room -= used;
        room.gpu = sched::amount(static_cast<int>(room.gpu.in_steps() / sched::amount::steps));
        (void)plan.add_place(p.id, p.name, room);
    }
    return plan;
}

/// False: there is no way.
SKEIN_INLINE bool fair_shares::make_group_room(const lease_group& g, bool within_share) {
    std::map<std::uint64_t, sched::amount> now_free;
    auto plan = places_for(g, within_share, now_free);
    sched::group_request lost;
    lost.strategy = g.strategy;
    for (std::size_t b = 0; b < g.bundles.size(); ++b)
        if (g.places.empty() || g.places[b].node == 0) lost.bundles.push_back(g.bundles[b]);
    const auto bundles = lost.bundles;
    if (bundles.empty() || !plan.create_group(std::move(lost))) return false;
    std::vector<sched::grant> none;
    std::vector<sched::notice> said;
    plan.take_grants(none);
    plan.take_notices(said);
    if (said.empty() || said.front().what != sched::notice::kind::group_placed) return false;
    for (std::size_t b = 0; b < bundles.size(); ++b)
        now_free[said.front().bundles[b].value()] -= bundles[b].cpu;
    for (const auto& [incarnation, free] : now_free) {
        auto missing = -free.in_steps();
        auto* const n = leases_.find_node(incarnation);
        for (auto at = n->leases.rbegin(); missing > 0 && at != n->leases.rend(); ++at) {
            auto& l = *at->second;
            if (!may_go(l, *g.of) || leases_.is_coming(l) || l.blocked || !l.demand.cpu) continue;
            missing -= l.demand.cpu.in_steps();
            leases_.recall(l, fmt::format("room for placement group {} on {}", g.number, n->name));
        }
    }
    return true;
}

} // namespace skein::cluster::detail
