// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/head.hpp: leases, from what a driver wants to the end of its
// worker.

#include <skein/cluster/detail/entry_share.hpp>
#include <skein/cluster/detail/head_state.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/rt/worker_source.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster {

SKEIN_INLINE detail::head_lease& head::state::add_lease(detail::head_driver& d,
                                                        std::uint64_t number,
                                                        const sched::resources& demand) {
    auto made = std::make_unique<detail::head_lease>();
    auto& l = *made;
    l.of = &d;
    l.number = number;
    l.demand = demand;
    l.tag = ++last_tag;
    l.asked_at = on_loop.now();
    by_tag.emplace(l.tag, &l);
    d.leases.emplace(number, std::move(made));
    return l;
}

/// nullptr: there is none.
SKEIN_INLINE detail::head_lease* head::state::find_lease(const lease_name& lease) const {
    const auto d = drivers.find(lease.driver);
    if (d == drivers.end()) return nullptr;
    const auto found = d->second->leases.find(lease.number);
    return found == d->second->leases.end() ? nullptr : found->second.get();
}

/// Gives back what it holds, and forgets it. Its job stays: forget().
SKEIN_INLINE void head::state::erase(detail::head_lease& l) {
    ++node_changes;
    if (l.request && !schedule.cancel(l.request)) (void)schedule.release(l.request);
    if (l.at != nullptr) l.at->leases.erase({l.of->incarnation, l.number});
    by_tag.erase(l.tag);
    auto& d = *l.of;
    d.leases.erase(l.number);
    close_groups(d);
}

SKEIN_INLINE void head::state::forget(detail::head_driver& d) {
    if (!d.ending || !d.leases.empty()) return;
    spaces.over(d.incarnation, "it has ended", true);
    (void)schedule.remove_job(d.id());
    calls_of_gone.submitted += d.calls.submitted;
    calls_of_gone.done += d.calls.done;
    calls_of_gone.failed += d.calls.failed;
    output.forget_driver(d.incarnation);
    spaces.forget_driver(d.incarnation);
    drivers.erase(d.incarnation);
}

SKEIN_INLINE void head::state::end(detail::head_lease& l, bool started, const std::string& why,
                                   const ended_lease& news) {
    auto& d = *l.of;
    if (d.session)
        d.session->tell(lease_ended{l.number, started, why, news.lines, news.is_lasting, news.code,
                                    news.signal, news.of_node});
    if (l.number == space_server_lease)
        spaces.over(d.incarnation, l.at != nullptr ? fmt::format("{} on {}", why, l.at->name) : why,
                    l.state != detail::lease_state::expected);
    const auto submitted_as = d.attempt_of;
    const bool was_ordered = l.is_ordered;
    if (!submitted_as.empty()) d.ending = true; // an attempt: it has nothing else
    erase(l);
    forget(d);
    if (!submitted_as.empty()) runner.ended(submitted_as, started, why, news, was_ordered);
}

// ---- a driver asks and gives back ---------------------------------------------------------------

SKEIN_INLINE void head::state::want(detail::head_driver& d, const want_lease& what) {
    const auto number = what.lease;
    if (d.leases.contains(number)) return; // said again after a lost link
    const auto refuse = [&](const error& why) {
        if (d.session) d.session->tell(lease_ended{number, false, why.what()});
    };
    if (d.leases.size() >= how.most_leases)
        return refuse(error(errc::exhausted,
                            fmt::format("a driver may have {} leases at a time", how.most_leases)));
    const auto wanted = sched::parse_resources(what.demand);
    if (!wanted) return refuse(wanted.error());
    if (what.label.size() > detail::most_label_bytes)
        return refuse(
            error(errc::too_large, fmt::format("a label of {} bytes", what.label.size())));
    if (const auto env = sched::parse_task_environment(what.env, what.cwd); !env)
        return refuse(env.error());
    if (const auto wrong = objection(what.rank)) return refuse(*wrong);
    auto& l = add_lease(d, number, *wanted);
    l.rank = what.rank;
    l.label = what.label;
    l.own = what.own;
    l.env = what.env;
    l.cwd = what.cwd;
    ask_room(l);
}

SKEIN_INLINE void head::state::give_back(detail::head_driver& d, std::uint64_t number,
                                         bool at_once) {
    const auto found = d.leases.find(number);
    if (found == d.leases.end()) return; // its end has crossed this
    auto& l = *found->second;
    l.at_once = l.at_once || at_once;
    if (l.state == detail::lease_state::granted) return stop_worker(l, l.at_once);
    if (l.state == detail::lease_state::stopping && at_once) return tell_stop(l, true);
    if (l.state == detail::lease_state::expected && l.at_once) return; // when its node comes
    if (l.state == detail::lease_state::stopping) return;
    // A worker's driver knows its end by their link; a rank's has this alone.
    if (d.session) d.session->tell(lease_ended{number, false, "it was given back"});
    erase(l);
}

/// It was asked back, and its driver cannot.
SKEIN_INLINE void head::state::keep(detail::head_driver& d, std::uint64_t number) {
    const auto found = d.leases.find(number);
    if (found == d.leases.end()) return;
    found->second->keep_until = deadline_after(on_loop.now(), how.keep_grace);
    found->second->actors_until = found->second->keep_until;
    found->second->drained = false;
    not_recalled(*found->second);
    pump();
}

SKEIN_INLINE void head::state::rest(detail::head_driver& d, const lease_blocked& what) {
    const auto found = d.leases.find(what.lease);
    if (found == d.leases.end()) return;
    auto& l = *found->second;
    if (std::exchange(l.blocked, what.on) == what.on || !l.request) return;
    if (what.on)
        (void)schedule.wait_begin(l.request);
    else
        (void)schedule.wait_end(l.request); // it goes on at once, whoever has its cpus
}

/// Its room stays taken until the agent says that the worker has ended.
SKEIN_INLINE void head::state::stop_worker(detail::head_lease& l, bool at_once) {
    l.state = detail::lease_state::stopping;
    (void)schedule.set_leaving(l.request);
    tell_stop(l, at_once);
}

SKEIN_INLINE void head::state::tell_stop(const detail::head_lease& l, bool at_once) {
    l.at->session->tell(stop_worker_order{{l.of->incarnation, l.number}, at_once});
}

/// It has been asked back, and nothing was heard of it yet.
SKEIN_INLINE bool head::state::is_coming(const detail::head_lease& l) const {
    return l.recalled_at != time_point{} &&
           on_loop.now() < deadline_after(l.recalled_at, how.recall_grace);
}

SKEIN_INLINE void head::state::recall(detail::head_lease& l, const std::string& why) {
    if (l.state != detail::lease_state::granted || is_coming(l) || l.of->session == nullptr) return;
    l.recalled_at = on_loop.now();
    l.drained = l.drained || l.at->draining;
    (void)schedule.set_leaving(l.request); // others may count on its room
    l.of->session->tell(lease_recalled{l.number, why, false});
}

/// Nobody may count on its end any more.
SKEIN_INLINE void head::state::not_recalled(detail::head_lease& l) {
    l.recalled_at = {};
    if (l.state == detail::lease_state::granted) (void)schedule.set_leaving(l.request, false);
}

/// Its worker may go on. If this is lost with the link, the driver hears it over the next one.
SKEIN_INLINE void head::state::tell_withdrawn(const detail::head_lease& l) {
    if (l.drained && l.state == detail::lease_state::granted && l.of->session)
        l.of->session->tell(lease_recalled{l.number, {}, true});
}

SKEIN_INLINE bool head::state::is_feasible(const sched::resources& demand) const {
    return std::any_of(nodes.begin(), nodes.end(), [&](const auto& n) {
        return !n.second->draining && sched::fits(demand, n.second->total);
    });
}

/// What each driver has, wants and should have. Gives the cpus that are on their way back.
SKEIN_INLINE std::int64_t head::state::take_stock(std::vector<detail::head_share>& into) const {
    std::map<sched::resources, bool> feasible;
    std::int64_t coming = 0;
    for (const auto& [number, d] : drivers) {
        detail::head_share p{d.get(), 0, 0, 0, {}};
        for (const auto& [k, l] : d->leases) {
            if (l->label.starts_with('@')) continue; // its room is that of its group
            const auto cpus = l->blocked ? 0 : l->demand.cpu.in_steps();
            if (l->state == detail::lease_state::waits) {
                const auto [known, is_new] = feasible.try_emplace(l->demand, false);
                if (is_new) known->second = is_feasible(l->demand);
                if (known->second) p.wanted += cpus;
            } else if (l->at == nullptr || l->at->draining) {
                continue;
            } else if (l->state == detail::lease_state::stopping || is_coming(*l)) {
                coming += cpus;
            } else {
                p.held += cpus;
                if (on_loop.now() >= l->keep_until && cpus > 0 && d->attempt_of.empty())
                    p.may_give.push_back(l.get()); // nobody could be asked for that of a job
            }
        }
        for (const auto& [k, g] : d->groups) (g.placed ? p.held : p.wanted) += group_cpus(g);
        if (p.held == 0 && p.wanted == 0) continue;
        into.push_back(std::move(p));
    }
    std::int64_t total = 0;
    double weights = 0;
    for (const auto& [number, n] : nodes)
        if (!n->draining) total += n->total.cpu.in_steps();
    for (const auto& p : into) weights += p.of->hello.weight;
    for (auto& p : into) p.fair = static_cast<double>(total) * p.of->hello.weight / weights;
    return coming;
}

/// Asks those that hold more than their share of the cpus for as many leases as others are short
/// of. Nobody is asked for what would leave him short: leases are whole, and would go round for
/// ever. But who has nothing at all gets something.
SKEIN_INLINE void head::state::share_out() {
    std::vector<detail::head_share> parts;
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
                recall(l, "other programs have less than their share");
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

/// It has just asked: nobody waits for the next look at all of them.
SKEIN_INLINE void head::state::make_room(const detail::head_driver& d, bool of_groups) {
    const auto waits = [](const auto& one) {
        const auto& l = *one.second;
        return l.own && l.state == detail::lease_state::waits && !l.label.starts_with('@');
    };
    if (!of_groups && std::none_of(d.leases.begin(), d.leases.end(), waits)) return;
    std::vector<detail::head_share> parts;
    (void)take_stock(parts);
    for (const auto& p : parts)
        if (p.of == &d) of_groups ? make_group_room(p) : make_room(p);
}

/// A driver waits for a lease of its own kind, and others of its leases are in the way: it is asked
/// for as many of those as one node needs. They come back one by one: what is there already is kept
/// from others meanwhile.
SKEIN_INLINE void head::state::make_room(const detail::head_share& of) {
    std::vector<sched::scheduler::place_info> places;
    for (const auto& [number, l] : of.of->leases) {
        if (!l->own || l->state != detail::lease_state::waits || l->label.starts_with('@'))
            continue;
        if (places.empty()) places = schedule.places();
        if (l->label == sched::spread_label) spread_order(*of.of, places);
        for (const auto& now : places) {
            auto* n = node_at(now.id.value());
            if (n == nullptr || now.draining || now.resting || !make_room(*l, *n, now)) continue;
            if (of.may_have(l->demand.cpu.in_steps())) (void)schedule.keep_room(l->request);
            return; // one at a time
        }
    }
}

/// The nodes with the fewest leases of this driver that are to be spread come first.
SKEIN_INLINE void head::state::spread_order(const detail::head_driver& d,
                                            std::vector<sched::scheduler::place_info>& nodes_now) {
    std::map<sched::place_id, std::pair<int, std::size_t>> order; // how many it has, when it came
    for (std::size_t i = 0; i < nodes_now.size(); ++i) order[nodes_now[i].id] = {0, i};
    for (const auto& [number, l] : d.leases)
        if (l->at != nullptr && l->label == sched::spread_label) ++order[l->at->place()].first;
    std::sort(nodes_now.begin(), nodes_now.end(),
              [&](const auto& a, const auto& b) { return order[a.id] < order[b.id]; });
}

/// False: this node could not hold it, whatever the driver gave back.
SKEIN_INLINE bool head::state::make_room(const detail::head_lease& l, detail::head_node& n,
                                         const sched::scheduler::place_info& now) {
    const auto has = [&](const std::string& label) {
        return label == "node=" + n.name ||
               std::find(n.labels.begin(), n.labels.end(), label) != n.labels.end();
    };
    const bool anywhere = l.label.empty() || l.label == sched::spread_label;
    if (!sched::fits(l.demand, n.total) || (!anywhere && !has(l.label))) return false;
    std::vector<detail::head_lease*> may_go;
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
        if (other->state == detail::lease_state::stopping || is_coming(*other)) {
            missing -= cpus;
        } else if (other->state == detail::lease_state::granted &&
                   on_loop.now() >= other->actors_until) {
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
        recall(**at, fmt::format("room for {} on {}", sched::to_string(l.demand), n.name));
    }
    return true;
}

// ---- grants -------------------------------------------------------------------------------------

SKEIN_INLINE void head::state::pump() {
    if (over) return;
    std::vector<sched::grant> grants;
    std::vector<sched::notice> notices;
    schedule.take_grants(grants);
    schedule.take_notices(notices);
    for (const auto& g : grants) granted(g);
    for (const auto& n : notices) {
        if (n.group && !n.id) {
            on_group(n);
            continue;
        }
        const auto found = by_tag.find(n.tag);
        if (found == by_tag.end()) continue;
        auto& l = *found->second;
        if (n.what == sched::notice::kind::refused) {
            l.request = {};
            end(l, false, n.why.what());
        } else if (n.what == sched::notice::kind::infeasible && l.of->session) {
            l.of->session->tell(lease_waits{l.number, n.why.what()});
        }
    }
}

SKEIN_INLINE void head::state::granted(const sched::grant& g) {
    ++node_changes;
    if (g.resumed) return; // see rest()
    const auto found = by_tag.find(g.tag);
    auto* n = node_at(g.place.value());
    if (found == by_tag.end() || n == nullptr) {
        (void)schedule.release(g.id);
        return;
    }
    auto& l = *found->second;
    const auto& d = *l.of;
    l.state = detail::lease_state::granted;
    l.at = n;
    l.gpus = g.gpus;
    l.keep_until = deadline_after(on_loop.now(), how.share_quantum);
    n->leases.emplace(lease_name{d.incarnation, l.number}, &l);
    if (!d.attempt_of.empty())
        return runner.placed(d.attempt_of, {{d.incarnation, l.number},
                                            sched::to_string(l.demand),
                                            l.gpus.bits(),
                                            n->incarnation,
                                            n->name});
    n->session->tell(order_of(l));
    runner.rank_placed(d.hello.job, l.rank, n->name);
    l.rank = {}; // told once
    tell_granted(l);
}

SKEIN_INLINE void head::state::tell_granted(const detail::head_lease& l) {
    if (!l.of->session) return;
    auto labels = l.at->labels;
    labels.push_back("node=" + l.at->name);
    l.of->session->tell(lease_granted{l.number, l.at->incarnation, l.at->name, std::move(labels)});
}

SKEIN_INLINE void head::state::on_ended(const ended_lease& what, detail::head_node& from) {
    given_up.over(what.lease.driver);
    auto* const found = find_lease(what.lease);
    if (found == nullptr) return;
    auto& l = *found;
    const bool is_there = l.at == &from || (l.state == detail::lease_state::expected &&
                                            l.expected_node == unknown_node);
    if (!is_there) return;
    if (what.started)
        node_works(from);
    else if (what.of_node)
        node_failed(from, what.how.substr(0, 1024));
    end(l, what.started, what.how.substr(0, 4096), what);
}

// ---- what those say who come back ---------------------------------------------------------------

/// Books a lease that a node holds. False: its group is not there any more; its worker is to be
/// stopped, and has its room until it has ended.
SKEIN_INLINE bool head::state::take_over(detail::head_node& n, const held_lease& held,
                                         detail::head_lease* l, detail::lease_state as) {
    const auto demand = sched::parse_resources(held.demand);
    if (!demand) return false;
    auto& d = driver_of(held.lease.driver);
    sched::request r;
    r.job = d.id();
    r.demand = held.job.empty() ? *demand : detail::with_entry_share(*demand);
    r.for_life = true;
    const bool in_group = l != nullptr && group_of(*l) != nullptr && where_of(*l);
    if (in_group) r.where = *where_of(*l);
    r.tag = l != nullptr ? l->tag : last_tag + 1; // that of the next one
    auto taken = schedule.adopt(r, n.place(), sched::gpu_set(held.gpus));
    const bool is_homeless = !taken && in_group;
    if (is_homeless) {
        r.where = {};
        as = detail::lease_state::stopping; // its driver is told by the agent when it has ended
        taken = schedule.adopt(r, n.place(), sched::gpu_set(held.gpus));
    }
    if (!taken) {
        logging::warn("head", "a worker cannot be taken over",
                      {{"node", n.name}, {"why", taken.error().what()}});
        if (l != nullptr) end(*l, true, taken.error().what());
        return false;
    }
    auto& mine = l != nullptr ? *l : add_lease(d, held.lease.number, *demand);
    mine.request = *taken;
    mine.gpus = sched::gpu_set(held.gpus);
    mine.state = as;
    mine.at = &n;
    mine.is_ordered = true;
    if (mine.blocked) (void)schedule.wait_begin(mine.request);
    if (as == detail::lease_state::stopping) (void)schedule.set_leaving(mine.request);
    mine.keep_until = deadline_after(on_loop.now(), how.share_quantum);
    n.leases.emplace(held.lease, &mine);
    return !is_homeless;
}

/// Takes over a lease that a node holds. False: nobody wants it; its room is taken until its worker
/// has ended.
SKEIN_INLINE bool head::state::hold(detail::head_node& n, const held_lease& held) {
    const bool is_other =
        (!held.space.empty() && !claim_space(held)) || (!held.job.empty() && !runner.claims(held));
    const auto driver = drivers.find(held.lease.driver);
    auto* const d = driver == drivers.end() ? nullptr : driver->second.get();
    auto* const l = find_lease(held.lease);
    if (l != nullptr && l->at == &n) {
        if (l->state == detail::lease_state::stopping)
            stop_worker(*l, l->at_once); // the order may be lost
        return true;
    }
    using phase = detail::lease_state;
    if (l != nullptr && l->state == phase::waits) { // its driver has not heard of the grant
        (void)schedule.cancel(std::exchange(l->request, {}));
        if (!take_over(n, held, l, phase::granted)) return false;
        tell_granted(*l);
        return true;
    }
    if (l != nullptr && l->state != phase::expected) return false;
    if (l != nullptr && l->at_once) {
        if (!take_over(n, held, l, phase::stopping)) return false;
        tell_stop(*l, true);
        return true;
    }
    if (l == nullptr && d != nullptr && d->session == nullptr && !d->ending) // as of one not known
        d->away_until = std::max(d->away_until, deadline_after(on_loop.now(), how.driver_grace));
    const bool is_unwanted =
        is_other || (l == nullptr && d != nullptr && (d->session != nullptr || d->ending));
    const bool is_news = l != nullptr && l->expected_node == unknown_node;
    const bool taken = take_over(n, held, l, is_unwanted ? phase::stopping : phase::granted);
    if (taken && is_news) tell_granted(*l);
    if (!taken || is_unwanted) return false;
    if (held.job.empty()) return true;
    runner.runs(held.job, held.lease.driver, held.pid);
    if (l != nullptr && jobs.called(held.job)->is_stopping) stop_worker(*l);
    return true;
}

SKEIN_INLINE void head::state::reconcile(detail::head_node& n, const node_hello& h,
                                         std::vector<lease_name>& stop) {
    for (const auto& e : h.ended) on_ended(e, n);
    std::set<lease_name> held;
    for (const auto& one : h.holds) {
        held.insert(one.lease);
        if (!hold(n, one)) stop.push_back(one.lease);
    }
    given_up.node_came(n.incarnation, n.name, held);
    // What it was to start or to hold, and does not: an order, or the news of an end, was lost with
    // a link.
    std::vector<detail::head_lease*> lost;
    for (const auto& [name, l] : n.leases)
        if (!held.contains(name)) lost.push_back(l);
    for (auto& [number, d] : drivers)
        for (auto& [k, l] : d->leases)
            if (l->state == detail::lease_state::expected && is_expected_of(*l, n))
                lost.push_back(l.get());
    for (auto* l : lost) end_lost(*l, n);
}

SKEIN_INLINE void head::state::reconcile(detail::head_driver& d, const driver_hello& h) {
    std::set<std::uint64_t> known, groups;
    schedule.say_again(d.id()); // that no node could hold it may be lost with the last link
    for (const auto& g : h.groups) {
        groups.insert(g.number);
        want_group(d, g);
    }
    for (const auto& k : h.leases) {
        known.insert(k.number);
        const auto found = d.leases.find(k.number);
        if (found != d.leases.end()) {
            auto& l = *found->second;
            l.label = k.label; // news, if a node has told of it alone
            l.own = k.own;
            // A lease that was granted while its driver was away, or before this head's time: its
            // labels are news.
            if (l.state == detail::lease_state::granted) {
                tell_granted(l);
                if (!is_coming(l) && !l.at->draining) tell_withdrawn(l);
            }
            continue;
        }
        if (k.node == 0) {
            want(d, {k.number, k.demand, k.label, k.own, k.env, k.cwd});
            continue;
        }
        const auto demand = sched::parse_resources(k.demand);
        if (!demand || node_at(k.node) != nullptr || d.leases.size() >= how.most_leases) {
            d.session->tell(lease_ended{k.number, true, "its node does not have it any more"});
            continue;
        }
        auto& l = add_lease(d, k.number, *demand);
        l.own = k.own;
        l.label = k.label;
        l.state = detail::lease_state::expected;
        l.expected_node = k.node;
        l.until = deadline_after(on_loop.now(), how.driver_grace);
    }
    std::vector<std::uint64_t> unknown;
    for (const auto& [number, l] : d.leases)
        if (!known.contains(number)) unknown.push_back(number);
    for (const auto number : unknown) give_back(d, number);
    take_groups_over(false);
    for (auto& [number, g] : d.groups)
        if (!groups.contains(number)) g.closing = true;
    close_groups(d);
}

} // namespace skein::cluster
