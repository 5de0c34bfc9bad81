// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of cluster/detail/lease_table.hpp: leases, from what a driver wants to the end of its
// worker, and placement groups.

#include <skein/cluster/detail/entry_share.hpp>
#include <skein/cluster/detail/submitted_job.hpp>
#include <skein/core/error.hpp>
#include <skein/rt/worker_source.hpp>

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster::detail {

/// With its group it is one of many.
inline constexpr std::size_t most_rank_bytes = std::size_t{256} << 10;

/// "NAME=value", and no zero byte, which would end it in a process.
[[nodiscard]] inline bool is_variable(std::string_view text) {
    const auto split = text.find('=');
    return split != 0 && split != text.npos && text.find('\0') == text.npos;
}

/// What is wrong with what a driver wants started as a rank.
[[nodiscard]] inline std::optional<error> objection(const rank_order& rank) {
    std::size_t bytes = 0;
    for (const auto* all : {&rank.place, &rank.argv, &rank.env})
        for (const auto& text : *all) bytes += text.size() + 1;
    if (bytes > most_rank_bytes)
        return error(errc::too_large,
                     fmt::format("place, arguments and environment of a rank have {} bytes, at "
                                 "most {} are taken",
                                 bytes, most_rank_bytes));
    const bool are_good = std::all_of(rank.place.begin(), rank.place.end(), is_variable) &&
                          std::all_of(rank.env.begin(), rank.env.end(), is_variable);
    const bool no_zero = std::all_of(rank.argv.begin(), rank.argv.end(),
                                     [](const auto& text) { return text.find('\0') == text.npos; });
    if (!are_good || !no_zero || (rank.is_there() && (rank.argv.empty() || rank.port == 0)))
        return error(errc::malformed, "an order for a rank with which no process could be started");
    return std::nullopt;
}

SKEIN_INLINE lease_table::lease_table(loop& on, lease_events& events, lease_options options)
    : loop_(on), events_(events), options_(options) {}

// ---- who comes and goes -------------------------------------------------------------------------

SKEIN_INLINE lease_holder& lease_table::holder(std::uint64_t incarnation) {
    auto& d = holders_[incarnation];
    if (d == nullptr) {
        d = std::make_unique<lease_holder>();
        d->incarnation = incarnation;
    }
    return *d;
}

SKEIN_INLINE lease_node* lease_table::find_node(std::uint64_t incarnation) const {
    const auto found = nodes_.find(incarnation);
    return found == nodes_.end() ? nullptr : found->second.get();
}

SKEIN_INLINE lease_node& lease_table::add_node(std::uint64_t incarnation, std::string name,
                                               const sched::resources& total,
                                               std::vector<std::string> labels) {
    auto made = std::make_unique<lease_node>();
    made->incarnation = incarnation;
    made->name = std::move(name);
    made->total = total;
    made->labels = labels;
    labels.push_back("node=" + made->name);
    const auto placed =
        schedule_.add_place(made->place(), made->name, with_entry_share(total), std::move(labels));
    if (!placed) throw placed.error();
    return *nodes_.emplace(incarnation, std::move(made)).first->second;
}

SKEIN_INLINE void lease_table::remove_node(lease_node& gone, const std::string& why) {
    const auto mine = std::exchange(gone.leases, {});
    (void)schedule_.remove_place(gone.place());
    for (const auto& [name, l] : mine) {
        l->at = nullptr;
        by_tag_.erase(l->tag);
        l->request = {};
        end(*l, true, why);
    }
    nodes_.erase(gone.incarnation);
}

SKEIN_INLINE void lease_table::leave(lease_holder& d) {
    std::vector<lease*> all;
    for (auto& [n, l] : d.leases) all.push_back(l.get());
    for (auto* l : all) { // erasing the last one would erase the job
        if (l->state == lease_state::granted) stop(*l);
        if (l->state != lease_state::stopping) erase(*l);
    }
    for (auto& [number, g] : d.groups) g.closing = true;
    close_groups(d);
    forget(d);
}

SKEIN_INLINE lease& lease_table::add(lease_holder& d, std::uint64_t number,
                                     const sched::resources& demand) {
    auto made = std::make_unique<lease>();
    auto& l = *made;
    l.of = &d;
    l.number = number;
    l.demand = demand;
    l.tag = ++last_tag_;
    l.asked_at = loop_.now();
    by_tag_.emplace(l.tag, &l);
    d.leases.emplace(number, std::move(made));
    return l;
}

SKEIN_INLINE lease* lease_table::find(const lease_name& name) const {
    const auto d = holders_.find(name.driver);
    if (d == holders_.end()) return nullptr;
    const auto found = d->second->leases.find(name.number);
    return found == d->second->leases.end() ? nullptr : found->second.get();
}

/// Gives back what it holds, and forgets it. Its job stays: forget().
SKEIN_INLINE void lease_table::erase(lease& l) {
    ++changes_;
    if (l.request && !schedule_.cancel(l.request)) (void)schedule_.release(l.request);
    if (l.at != nullptr) l.at->leases.erase({l.of->incarnation, l.number});
    by_tag_.erase(l.tag);
    auto& d = *l.of;
    d.leases.erase(l.number);
    close_groups(d);
}

SKEIN_INLINE void lease_table::forget(lease_holder& d) {
    if (!d.ending || !d.leases.empty()) return;
    events_.holder_over(d.incarnation);
    (void)schedule_.remove_job(d.id());
    holders_.erase(d.incarnation);
}

SKEIN_INLINE void lease_table::end(lease& l, bool started, const std::string& why,
                                   const ended_lease& news) {
    auto& d = *l.of;
    events_.tell_driver(d.incarnation,
                        lease_ended{l.number, started, why, news.lines, news.is_lasting, news.code,
                                    news.signal, news.of_node, l.is_forced});
    events_.lease_ends(l, why);
    const auto submitted_as = d.attempt_of;
    const bool was_ordered = l.is_ordered;
    auto end = news; // also one that was killed before it was asked has not failed
    end.was_asked = end.was_asked || (l.is_forced && end.code != 0);
    if (!submitted_as.empty()) d.ending = true; // an attempt: it has nothing else
    erase(l);
    forget(d);
    if (!submitted_as.empty()) events_.entry_ended(submitted_as, started, why, end, was_ordered);
}

SKEIN_INLINE void lease_table::want(lease_holder& d, const want_lease& what) {
    const auto number = what.lease;
    if (d.leases.contains(number)) return; // said again after a lost link
    const auto refuse = [&](const error& why) {
        events_.tell_driver(d.incarnation, lease_ended{number, false, why.what()});
    };
    if (d.leases.size() >= options_.most_leases)
        return refuse(error(errc::exhausted, fmt::format("a driver may have {} leases at a time",
                                                         options_.most_leases)));
    const auto wanted = sched::parse_resources(what.demand);
    if (!wanted) return refuse(wanted.error());
    if (what.label.size() > most_label_bytes)
        return refuse(
            error(errc::too_large, fmt::format("a label of {} bytes", what.label.size())));
    if (const auto env = sched::parse_task_environment(what.env, what.cwd); !env)
        return refuse(env.error());
    if (const auto wrong = objection(what.rank)) return refuse(*wrong);
    auto& l = add(d, number, *wanted);
    l.rank = what.rank;
    l.label = what.label;
    l.own = what.own;
    l.env = what.env;
    l.cwd = what.cwd;
    ask_room(l);
}

SKEIN_INLINE void lease_table::give_back(lease_holder& d, std::uint64_t number, bool at_once) {
    const auto found = d.leases.find(number);
    if (found == d.leases.end()) return; // its end has crossed this
    auto& l = *found->second;
    l.at_once = l.at_once || at_once;
    if (l.state == lease_state::granted) return stop(l, l.at_once);
    if (l.state == lease_state::stopping && at_once) return events_.stop_process(l, true);
    if (l.state == lease_state::expected && l.at_once) return; // when its node comes
    if (l.state == lease_state::stopping) return;
    // A worker's driver knows its end by their link; a rank's has this alone.
    events_.tell_driver(d.incarnation, lease_ended{number, false, "it was given back"});
    erase(l);
}

SKEIN_INLINE void lease_table::block(lease_holder& d, const lease_blocked& what) {
    const auto found = d.leases.find(what.lease);
    if (found == d.leases.end()) return;
    auto& l = *found->second;
    if (std::exchange(l.blocked, what.on) == what.on || !l.request) return;
    if (what.on)
        (void)schedule_.wait_begin(l.request);
    else
        (void)schedule_.wait_end(l.request); // it goes on at once, whoever has its cpus
}

/// Its room stays taken until the agent says that the worker has ended.
SKEIN_INLINE void lease_table::stop(lease& l, bool at_once) {
    l.state = lease_state::stopping;
    (void)schedule_.set_leaving(l.request);
    events_.stop_process(l, at_once);
}

SKEIN_INLINE void lease_table::pump() {
    if (is_closed_) return;
    std::vector<sched::grant> grants;
    std::vector<sched::notice> notices;
    schedule_.take_grants(grants);
    schedule_.take_notices(notices);
    for (const auto& g : grants) granted(g);
    for (const auto& n : notices) {
        if (n.group && !n.id) {
            on_group(n);
            continue;
        }
        const auto found = by_tag_.find(n.tag);
        if (found == by_tag_.end()) continue;
        auto& l = *found->second;
        if (n.what == sched::notice::kind::refused) {
            l.request = {};
            end(l, false, n.why.what());
        } else if (n.what == sched::notice::kind::infeasible) {
            events_.tell_driver(l.of->incarnation, lease_waits{l.number, n.why.what()});
        }
    }
}

SKEIN_INLINE void lease_table::granted(const sched::grant& g) {
    ++changes_;
    if (g.resumed) return; // see block()
    const auto found = by_tag_.find(g.tag);
    auto* const n = find_node(g.place.value());
    if (found == by_tag_.end() || n == nullptr) {
        (void)schedule_.release(g.id);
        return;
    }
    auto& l = *found->second;
    l.state = lease_state::granted;
    l.at = n;
    l.gpus = g.gpus;
    l.keep_until = deadline_after(loop_.now(), options_.share_quantum);
    n->leases.emplace(lease_name{l.of->incarnation, l.number}, &l);
    events_.start_process(l);
}

SKEIN_INLINE void lease_table::tell_granted(const lease& l) {
    auto labels = l.at->labels;
    labels.push_back("node=" + l.at->name);
    events_.tell_driver(l.of->incarnation,
                        lease_granted{l.number, l.at->incarnation, l.at->name, std::move(labels)});
}

// ---- groups ---------------------------------------------------------------------------------------

[[nodiscard]] inline sched::group_request request_of(const lease_group& g) {
    sched::group_request r;
    r.job = g.of->id();
    r.strategy = g.strategy;
    r.bundles = g.bundles;
    r.tag = g.number;
    return r;
}

SKEIN_INLINE void lease_table::ask_room(lease& l) {
    const auto* const g = group_of(l);
    if (l.label.starts_with('@') && (g == nullptr || g->closing))
        return end(l, false, "its placement group is not there (any more)");
    const auto where = where_of(l);
    if (!where) return; // when its group has been taken over
    sched::request r;
    r.where = *where;
    r.job = l.of->id();
    r.demand = l.of->attempt_of.empty() ? l.demand : with_entry_share(l.demand);
    r.tag = l.tag;
    r.for_life = true; // nobody can count on the end of a worker
    const auto asked = schedule_.submit(r);
    if (!asked) return end(l, false, asked.error().what());
    l.request = *asked;
}

inline constexpr std::size_t most_word_bytes = 1024; ///< of what a driver says of a lease
/// A lease that its driver keeps is asked back again after so long, where its node is to be empty
/// by a deadline.
inline constexpr duration drain_again = std::chrono::seconds(1);

SKEIN_INLINE void lease_table::answered(lease_holder& d, std::uint64_t number, leave_word word,
                                        const std::string& why) {
    const auto found = d.leases.find(number);
    if (found == d.leases.end()) return;
    auto& l = *found->second;
    l.word = word;
    l.word_why = why.substr(0, most_word_bytes);
    if (word != leave_word::stays) return;
    const auto now = loop_.now();
    const bool has_deadline =
        l.at != nullptr && l.at->draining && l.at->drained_by != time_point::max();
    l.actors_until = deadline_after(now, options_.keep_grace);
    l.keep_until =
        has_deadline ? std::min(l.actors_until, deadline_after(now, drain_again)) : l.actors_until;
    l.drained = false;
    not_recalled(l);
    pump();
}

SKEIN_INLINE void lease_table::want_group(lease_holder& d, const known_group& what) {
    if (const auto known = d.groups.find(what.number); known != d.groups.end())
        return known->second.placed // said again after a lost link, as may be the answer
                   ? events_.tell_driver(d.incarnation,
                                         group_placed{what.number, known->second.places})
                   : void();
    const auto refuse = [&](const error& why) {
        events_.tell_driver(d.incarnation, group_refused{what.number, why.what()});
    };
    std::size_t all = what.bundles.size();
    for (const auto& [number, g] : d.groups) all += g.bundles.size();
    if (d.groups.size() >= most_groups || all > most_bundles)
        return refuse(error(errc::exhausted,
                            fmt::format("a driver may have {} placement groups with {} bundles",
                                        most_groups, most_bundles)));
    if (what.strategy > static_cast<std::uint8_t>(sched::group_strategy::strict_spread))
        return refuse(error(errc::malformed, "a placement group of an unknown strategy"));
    lease_group g;
    g.of = &d;
    g.number = what.number;
    g.strategy = static_cast<sched::group_strategy>(what.strategy);
    g.asked_at = loop_.now();
    for (const auto& text : what.bundles) {
        auto read = sched::parse_resources(text);
        if (!read) return refuse(read.error());
        g.bundles.push_back(std::move(*read));
    }
    if (d.has_ranks && what.placed.empty())
        if (const auto why = too_many_gpus(g.bundles, nodes_)) return refuse(*why);
    if (what.placed.size() == what.bundles.size()) {
        g.places = what.placed;
        g.until = deadline_after(loop_.now(), options_.driver_grace);
    }
    auto& kept = d.groups.emplace(what.number, std::move(g)).first->second;
    if (kept.places.empty()) create(kept);
}

SKEIN_INLINE void lease_table::create(lease_group& g) {
    const auto made = schedule_.create_group(request_of(g));
    if (made) {
        g.id = *made;
        return;
    }
    events_.tell_driver(g.of->incarnation, group_refused{g.number, made.error().what()});
    g.of->groups.erase(g.number);
}

SKEIN_INLINE void lease_table::drop_group(lease_holder& d, std::uint64_t number) {
    const auto found = d.groups.find(number);
    if (found == d.groups.end()) return;
    found->second.closing = true;
    std::vector<std::uint64_t> waiting;
    for (const auto& [n, l] : d.leases)
        if (group_of(*l) == &found->second && l->state == lease_state::waits) waiting.push_back(n);
    for (const auto n : waiting) give_back(d, n);
    close_groups(d);
}

SKEIN_INLINE void lease_table::loosen_group(lease_holder& d, std::uint64_t number) {
    const auto found = d.groups.find(number);
    if (found == d.groups.end()) return;
    std::vector<lease*> inside;
    for (const auto& [n, l] : d.leases)
        if (group_of(*l) == &found->second) inside.push_back(l.get());
    for (auto* l : inside) {
        l->label.clear();
        if (!l->request) continue;
        if (!schedule_.cancel(l->request)) (void)schedule_.release(l->request);
        l->request = {};
    }
    if (found->second.id) (void)schedule_.remove_group(found->second.id);
    d.groups.erase(found);
    for (auto* l : inside) { // nothing is granted in between: their room is free
        if (l->state == lease_state::waits) {
            ask_room(*l);
            continue;
        }
        if (l->at == nullptr) continue; // its node is to come
        sched::request r;
        r.job = d.id();
        r.demand = l->demand;
        r.for_life = true;
        r.tag = l->tag;
        const auto taken = schedule_.adopt(r, l->at->place(), l->gpus);
        if (!taken) continue; // not so: it was there
        l->request = *taken;
        if (l->blocked) (void)schedule_.wait_begin(l->request);
        if (l->state == lease_state::stopping || is_coming(*l))
            (void)schedule_.set_leaving(l->request);
    }
}

SKEIN_INLINE void lease_table::close_groups(lease_holder& d) {
    for (auto at = d.groups.begin(); at != d.groups.end();) {
        const auto& g = at->second;
        const bool used =
            !g.closing || std::any_of(d.leases.begin(), d.leases.end(),
                                      [&](const auto& one) { return group_of(*one.second) == &g; });
        if (used) {
            ++at;
            continue;
        }
        if (g.id) (void)schedule_.remove_group(g.id);
        at = d.groups.erase(at);
    }
}

SKEIN_INLINE void lease_table::on_group(const sched::notice& n) {
    for (auto& [incarnation, d] : holders_) {
        for (auto& [number, g] : d->groups) {
            if (g.id != n.group) continue;
            const bool was_placed =
                std::exchange(g.placed, n.what == sched::notice::kind::group_placed);
            if (was_placed && !g.placed) g.asked_at = loop_.now();
            if (g.placed) {
                g.places.clear();
                for (std::size_t b = 0; b < n.bundles.size(); ++b)
                    g.places.push_back({n.bundles[b].value(), n.gpus[b].bits()});
                return events_.tell_driver(incarnation, group_placed{g.number, g.places});
            }
            for (std::size_t b = 0; b < std::min(g.places.size(), n.bundles.size()); ++b)
                if (!n.bundles[b]) g.places[b] = {};
            const bool impossible = n.what != sched::notice::kind::group_broken;
            events_.tell_driver(incarnation, group_waits{number, impossible, n.why.what()});
            return;
        }
    }
}

// ---- a head that was started again --------------------------------------------------------------

SKEIN_INLINE bool lease_table::take_over(lease_node& n, const held_lease& held,
                                         const sched::resources& demand, lease* l, lease_state as) {
    auto& d = holder(held.lease.driver);
    sched::request r;
    r.job = d.id();
    r.demand = held.job.empty() ? demand : with_entry_share(demand);
    r.for_life = true;
    const bool in_group = l != nullptr && group_of(*l) != nullptr && where_of(*l);
    if (in_group) r.where = *where_of(*l);
    r.tag = l != nullptr ? l->tag : last_tag_ + 1; // that of the next one
    auto taken = schedule_.adopt(r, n.place(), sched::gpu_set(held.gpus));
    const bool is_homeless = !taken && in_group;
    if (is_homeless) {
        r.where = {};
        as = lease_state::stopping; // its driver is told by the agent when it has ended
        taken = schedule_.adopt(r, n.place(), sched::gpu_set(held.gpus));
    }
    if (!taken) {
        logging::warn("head", "a worker cannot be taken over",
                      {{"node", n.name}, {"why", taken.error().what()}});
        if (l != nullptr) end(*l, true, taken.error().what());
        return false;
    }
    auto& mine = l != nullptr ? *l : add(d, held.lease.number, demand);
    mine.request = *taken;
    mine.gpus = sched::gpu_set(held.gpus);
    mine.state = as;
    mine.at = &n;
    mine.is_ordered = true;
    if (mine.blocked) (void)schedule_.wait_begin(mine.request);
    if (as == lease_state::stopping) (void)schedule_.set_leaving(mine.request);
    mine.keep_until = deadline_after(loop_.now(), options_.share_quantum);
    n.leases.emplace(held.lease, &mine);
    return !is_homeless;
}

SKEIN_INLINE void lease_table::take_groups_over() {
    for (auto& [number, d] : holders_) {
        std::vector<std::uint64_t> ready;
        for (auto& [n, g] : d->groups) {
            if (g.id || g.closing) continue;
            const bool here = std::all_of(g.places.begin(), g.places.end(), [&](const auto& b) {
                return b.node == 0 || find_node(b.node) != nullptr;
            });
            if (here || loop_.now() >= g.until) ready.push_back(n);
        }
        for (const auto n : ready) adopt(d->groups.at(n));
    }
}

/// Its leases are on their nodes, or not yet granted: they get their room out of its bundles from
/// now on.
SKEIN_INLINE void lease_table::adopt(lease_group& g) {
    const auto made = schedule_.create_group(request_of(g));
    if (!made) return; // it could not have been placed before
    g.id = *made;
    std::vector<lease*> inside, waiting;
    for (const auto& [number, l] : g.of->leases) {
        if (group_of(*l) != &g) continue;
        if (l->at != nullptr && l->request)
            inside.push_back(l.get());
        else if (l->state == lease_state::waits && !l->request)
            waiting.push_back(l.get());
    }
    for (std::size_t b = 0; b < g.places.size(); ++b)
        if (!adopt_bundle(g, b, inside)) g.places[b] = {};
    const bool all =
        std::all_of(g.places.begin(), g.places.end(), [](const auto& b) { return b.node != 0; });
    if (!all)
        events_.tell_driver(
            g.of->incarnation,
            group_waits{g.number, false, "the head was started again, and its places are taken"});
    for (auto* l : inside) { // they keep their room until they have ended
        if (l->state != lease_state::granted) continue;
        logging::warn("head", "a worker has lost its placement group",
                      {{"group", g.number}, {"node", l->at->name}});
        stop(*l); // the driver is told of its end once, by the agent
    }
    for (auto* l : waiting) ask_room(*l);
}

/// Puts a bundle where it was, around those of the leases that live in it, and takes these out of
/// `inside`. What does not work leaves all as it was: room that a worker uses is never anybody
/// else's.
SKEIN_INLINE bool lease_table::adopt_bundle(lease_group& g, std::size_t bundle,
                                            std::vector<lease*>& inside) {
    const auto place = sched::place_id(g.places[bundle].node);
    const sched::gpu_set gpus(g.places[bundle].gpus);
    auto room = g.bundles[bundle];
    std::vector<lease*> mine;
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
    for (auto* l : mine) (void)schedule_.release(std::exchange(l->request, {}));
    const bool is_there = schedule_.adopt_bundle(g.id, bundle, place, gpus);
    const auto where =
        is_there ? sched::constraint::in(g.id, static_cast<int>(bundle)) : sched::constraint();
    for (auto* l : mine) {
        sched::request r;
        r.job = l->of->id();
        r.demand = l->demand;
        r.for_life = true;
        r.tag = l->tag;
        r.where = where;
        const auto taken = schedule_.adopt(r, place, l->gpus);
        if (taken) l->request = *taken;
        if (taken && l->blocked) (void)schedule_.wait_begin(l->request);
        if (is_there) std::erase(inside, l);
    }
    return is_there;
}

} // namespace skein::cluster::detail
