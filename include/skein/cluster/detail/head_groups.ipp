// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/head.hpp: placement groups of drivers. A bundle is room on a node
// without a worker; leases whose label names the group take their room out of it.
// docs/design/0012-groups.md

#include <skein/cluster/detail/entry_share.hpp>
#include <skein/cluster/detail/head_state.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/rt/worker_source.hpp>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster {

/// That of which a lease takes its room; nullptr: none.
SKEIN_INLINE detail::head_group* head::state::group_of(const detail::head_lease& l) {
    std::uint64_t number = 0;
    int bundle = -1;
    if (!sched::parse_group_label(l.label, number, bundle)) return nullptr;
    const auto found = l.of->groups.find(number);
    return found == l.of->groups.end() ? nullptr : &found->second;
}

/// Where a lease may be; nothing: its group is not there, or not yet.
SKEIN_INLINE std::optional<sched::constraint> head::state::where_of(const detail::head_lease& l) {
    std::uint64_t number = 0;
    int bundle = -1;
    if (!sched::parse_group_label(l.label, number, bundle)) return sched::where_labelled(l.label);
    const auto* const g = group_of(l);
    if (g == nullptr || !g->id) return std::nullopt;
    return sched::constraint::in(g->id, bundle);
}

/// Queues a lease that waits.
SKEIN_INLINE void head::state::ask_room(detail::head_lease& l) {
    const auto* const g = group_of(l);
    if (l.label.starts_with('@') && (g == nullptr || g->closing))
        return end(l, false, "its placement group is not there (any more)");
    const auto where = where_of(l);
    if (!where) return; // when its group has been taken over
    sched::request r;
    r.where = *where;
    r.job = l.of->id();
    r.demand = l.of->attempt_of.empty() ? l.demand : detail::with_entry_share(l.demand);
    r.tag = l.tag;
    r.for_life = true; // nobody can count on the end of a worker
    const auto asked = schedule.submit(r);
    if (!asked) return end(l, false, asked.error().what());
    l.request = *asked;
}

// ---- a driver asks for them and gives them back -------------------------------------------------

SKEIN_INLINE void head::state::want_group(detail::head_driver& d, const known_group& what) {
    if (const auto known = d.groups.find(what.number); known != d.groups.end())
        return tell_group(known->second); // said again after a lost link, as may be the answer
    const auto refuse = [&](const error& why) {
        if (d.session) d.session->tell(cluster::group_refused{what.number, why.what()});
    };
    std::size_t all = what.bundles.size();
    for (const auto& [number, g] : d.groups) all += g.bundles.size();
    if (d.groups.size() >= detail::most_groups || all > detail::most_bundles)
        return refuse(error(errc::exhausted,
                            fmt::format("a driver may have {} placement groups with {} bundles",
                                        detail::most_groups, detail::most_bundles)));
    if (what.strategy > static_cast<std::uint8_t>(sched::group_strategy::strict_spread))
        return refuse(error(errc::malformed, "a placement group of an unknown strategy"));
    detail::head_group g;
    g.of = &d;
    g.number = what.number;
    g.strategy = static_cast<sched::group_strategy>(what.strategy);
    g.asked_at = on_loop.now();
    for (const auto& text : what.bundles) {
        auto read = sched::parse_resources(text);
        if (!read) return refuse(read.error());
        g.bundles.push_back(std::move(*read));
    }
    if (what.placed.size() == what.bundles.size()) {
        g.places = what.placed;
        g.until = deadline_after(on_loop.now(), how.driver_grace);
    }
    auto& kept = d.groups.emplace(what.number, std::move(g)).first->second;
    if (kept.places.empty()) create(kept);
}

SKEIN_INLINE void head::state::create(detail::head_group& g) {
    sched::group_request r;
    r.job = g.of->id();
    r.strategy = g.strategy;
    r.bundles = g.bundles;
    r.tag = g.number;
    const auto made = schedule.create_group(std::move(r));
    if (made) {
        g.id = *made;
        return;
    }
    if (g.of->session) g.of->session->tell(cluster::group_refused{g.number, made.error().what()});
    g.of->groups.erase(g.number);
}

SKEIN_INLINE void head::state::drop_group(detail::head_driver& d, std::uint64_t number) {
    const auto found = d.groups.find(number);
    if (found == d.groups.end()) return;
    found->second.closing = true;
    std::vector<std::uint64_t> waiting;
    for (const auto& [n, l] : d.leases)
        if (group_of(*l) == &found->second && l->state == detail::lease_state::waits)
            waiting.push_back(n);
    for (const auto n : waiting) give_back(d, n);
    close_groups(d);
}

/// Those that nobody needs any more go with their last lease.
SKEIN_INLINE void head::state::close_groups(detail::head_driver& d) {
    for (auto at = d.groups.begin(); at != d.groups.end();) {
        const auto& g = at->second;
        const bool used =
            !g.closing || std::any_of(d.leases.begin(), d.leases.end(),
                                      [&](const auto& one) { return group_of(*one.second) == &g; });
        if (used) {
            ++at;
            continue;
        }
        if (g.id) (void)schedule.remove_group(g.id);
        at = d.groups.erase(at);
    }
}

// ---- a head that was started again --------------------------------------------------------------

/// Places groups where their drivers say that they are, once the nodes have come. all: whoever has
/// come.
SKEIN_INLINE void head::state::take_groups_over(bool all) {
    for (auto& [number, d] : drivers) {
        std::vector<std::uint64_t> ready;
        for (auto& [n, g] : d->groups) {
            if (g.id || g.closing) continue;
            const bool here = std::all_of(g.places.begin(), g.places.end(), [&](const auto& b) {
                return b.node == 0 || node_at(b.node) != nullptr;
            });
            if (all || here || on_loop.now() >= g.until) ready.push_back(n);
        }
        for (const auto n : ready) adopt(d->groups.at(n));
    }
}

/// Its leases are on their nodes, or not yet granted: they get their room out of its bundles from
/// now on.
SKEIN_INLINE void head::state::adopt(detail::head_group& g) {
    sched::group_request asked;
    asked.job = g.of->id();
    asked.strategy = g.strategy;
    asked.bundles = g.bundles;
    asked.tag = g.number;
    const auto made = schedule.create_group(std::move(asked));
    if (!made) return; // it could not have been placed before
    g.id = *made;
    std::vector<detail::head_lease*> inside, waiting;
    for (const auto& [number, l] : g.of->leases) {
        if (group_of(*l) != &g) continue;
        if (l->at != nullptr && l->request)
            inside.push_back(l.get());
        else if (l->state == detail::lease_state::waits && !l->request)
            waiting.push_back(l.get());
    }
    for (std::size_t b = 0; b < g.places.size(); ++b)
        if (!adopt_bundle(g, b, inside)) g.places[b] = {};
    const bool all =
        std::all_of(g.places.begin(), g.places.end(), [](const auto& b) { return b.node != 0; });
    if (!all && g.of->session)
        g.of->session->tell(
            group_waits{g.number, false, "the head was started again, and its places are taken"});
    for (auto* l : inside) { // they keep their room until they have ended
        if (l->state != detail::lease_state::granted) continue;
        logging::warn("head", "a worker has lost its placement group",
                      {{"group", g.number}, {"node", l->at->name}});
        stop_worker(*l); // the driver is told of its end once, by the agent
    }
    for (auto* l : waiting) ask_room(*l);
}

/// Puts a bundle where it was, around those of the leases that live in it, and takes these out of
/// `inside`. What does not work leaves all as it was: room that a worker uses is never anybody
/// else's.
SKEIN_INLINE bool head::state::adopt_bundle(detail::head_group& g, std::size_t bundle,
                                            std::vector<detail::head_lease*>& inside) {
    const auto place = sched::place_id(g.places[bundle].node);
    const sched::gpu_set gpus(g.places[bundle].gpus);
    auto room = g.bundles[bundle];
    std::vector<detail::head_lease*> mine;
    const auto take = [&](bool named) {
        for (auto* l : inside) {
            std::uint64_t number = 0;
            int wanted = -1;
            (void)sched::parse_group_label(l->label, number, wanted);
            const bool fits = l->at->place() == place && (l->gpus.bits() & ~gpus.bits()) == 0 &&
                              sched::fits(l->demand, room);
            if (!fits || named != (wanted >= 0) || (named && std::cmp_not_equal(wanted, bundle)))
                continue;
            room -= l->demand;
            mine.push_back(l);
        }
    };
    take(true);
    take(false);
    for (auto* l : mine) (void)schedule.release(std::exchange(l->request, {}));
    const bool is_there = schedule.adopt_bundle(g.id, bundle, place, gpus);
    const auto where =
        is_there ? sched::constraint::in(g.id, static_cast<int>(bundle)) : sched::constraint();
    for (auto* l : mine) {
        sched::request r;
        r.job = l->of->id();
        r.demand = l->demand;
        r.for_life = true;
        r.tag = l->tag;
        r.where = where;
        const auto taken = schedule.adopt(r, place, l->gpus);
        if (taken) l->request = *taken;
        if (taken && l->blocked) (void)schedule.wait_begin(l->request);
        if (is_there) std::erase(inside, l);
    }
    return is_there;
}

SKEIN_INLINE void head::state::on_group(const sched::notice& n) {
    for (auto& [incarnation, d] : drivers) {
        for (auto& [number, g] : d->groups) {
            if (g.id != n.group) continue;
            const bool was_placed =
                std::exchange(g.placed, n.what == sched::notice::kind::group_placed);
            if (was_placed && !g.placed) g.asked_at = on_loop.now();
            if (g.placed) {
                g.places.clear();
                for (std::size_t b = 0; b < n.bundles.size(); ++b)
                    g.places.push_back({n.bundles[b].value(), n.gpus[b].bits()});
                return tell_group(g);
            }
            for (std::size_t b = 0; b < std::min(g.places.size(), n.bundles.size()); ++b)
                if (!n.bundles[b]) g.places[b] = {};
            const bool impossible = n.what != sched::notice::kind::group_broken;
            if (d->session) d->session->tell(group_waits{number, impossible, n.why.what()});
            return;
        }
    }
}

SKEIN_INLINE void head::state::tell_group(const detail::head_group& g) {
    if (g.placed && g.of->session) g.of->session->tell(group_placed{g.number, g.places});
}

/// Cpus that count for its driver's share, in steps.
SKEIN_INLINE std::int64_t head::state::group_cpus(const detail::head_group& g) const {
    std::int64_t cpus = 0;
    for (const auto& b : g.bundles) {
        if (!g.placed && !is_feasible(b)) return 0;
        cpus += b.cpu.in_steps();
    }
    return cpus;
}

/// A lease for all tasks of a driver that can be asked back.
SKEIN_INLINE bool head::state::may_go(const detail::head_lease& l,
                                      const detail::head_driver& d) const {
    return l.of == &d && !l.own && l.state == detail::lease_state::granted &&
           on_loop.now() >= l.actors_until;
}

/// A driver waits for a group, and others of its leases are in the way: it is asked for those that
/// are. They come back one by one; what is there already is kept from others meanwhile, or the
/// group would never have all.
SKEIN_INLINE void head::state::make_group_room(const detail::head_share& of) {
    for (const auto& [number, g] : of.of->groups) {
        if (!g.id || g.placed || g.closing) continue;
        const bool within_share = of.may_have(group_cpus(g));
        if (within_share && schedule.keep_room(g.id)) return; // it is on its way
        if (!make_group_room(g, within_share)) continue;
        if (within_share) (void)schedule.keep_room(g.id);
        return; // one at a time
    }
}

/// The nodes as they would be for a group without those leases of its driver that can be asked
/// back, and what of their cpus is free now or coming back. What others give back counts for one
/// who stays within his share.
SKEIN_INLINE sched::scheduler head::state::places_for(
    const detail::head_group& g, bool within_share, std::map<std::uint64_t, sched::amount>& free) {
    sched::scheduler plan(sched::scheduler_options{sched::placement::spread});
    for (const auto& p : schedule.places()) {
        const auto* const n = node_at(p.id.value());
        const bool has_one = g.strategy == sched::group_strategy::strict_spread &&
                             std::any_of(g.places.begin(), g.places.end(),
                                         [&](const auto& b) { return b.node == p.id.value(); });
        if (n == nullptr || p.draining || p.resting || p.reserved || has_one) continue;
        auto used = p.used;
        auto& now = free[p.id.value()];
        now = p.total.cpu - used.cpu;
        for (const auto& [name, l] : n->leases) {
            const bool coming = l->state == detail::lease_state::stopping || is_coming(*l);
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
SKEIN_INLINE bool head::state::make_group_room(const detail::head_group& g, bool within_share) {
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
        auto* const n = node_at(incarnation);
        for (auto at = n->leases.rbegin(); missing > 0 && at != n->leases.rend(); ++at) {
            auto& l = *at->second;
            if (!may_go(l, *g.of) || is_coming(l) || l.blocked || !l.demand.cpu) continue;
            missing -= l.demand.cpu.in_steps();
            recall(l, fmt::format("room for placement group {} on {}", g.number, n->name));
        }
    }
    return true;
}

} // namespace skein::cluster
