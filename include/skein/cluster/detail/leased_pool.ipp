// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/leased_workers.hpp: which leases there are. Those for all tasks fill
// the cluster, others are for one demand. A second process of a worker, for plain tasks while others
// wait in the first (rt/detail/runtime_room.ipp), has a lease of no cores on the node of the first:
// it uses those of the first, and so head and agent need to know nothing of what it is for.

#include <skein/cluster/detail/leased_workers_state.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/rt/runtime.hpp>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster {

SKEIN_INLINE want_lease leased_workers::state::wish(const lease& l) const {
    if (l.beside != 0) return {l.number, {}, l.where, true, {}, {}, {}}; // it takes no room there
    if (!l.demand) return {l.number, sched::to_string(how.demand), {}, false, {}, {}, {}};
    const auto& own = demands.at(l.demand);
    const auto& env = own.what.env;
    return {l.number,   own.text, own.what.label, true, sched::variables_as_text(env),
            env.folder, {}};
}

SKEIN_INLINE std::size_t leased_workers::state::target() const noexcept {
    if (visits_only || !how.space.empty()) return 0;
    const auto each = std::max<std::int64_t>(how.demand.cpu.in_steps(), sched::amount::steps);
    std::int64_t own = 0; // cpus of leases for one demand
    bool any_own = false;
    // Who waits for calls that it has made must get them done, before others of its kind may have
    // the room.
    const bool any_blocked = std::any_of(leases.begin(), leases.end(),
                                         [](const auto& one) { return one.second->blocked; });
    for (const auto& [number, l] : leases) {
        if (!l->demand || demands.at(l->demand).what.group != 0) continue; // see leased_groups
        if (l->blocked || l->impossible || (any_blocked && l->node == 0)) continue;
        any_own = true;
        own += demands.at(l->demand).what.need.cpu.in_steps();
    }
    own += groups.cpus_in_steps(any_blocked);
    any_own = any_own || own > 0;
    const auto all = static_cast<std::int64_t>(cluster_cpus) * sched::amount::steps;
    auto fitting = (std::max<std::int64_t>(all - own, 0)) / each;
    if (how.workers > 0)
        fitting = std::min<std::int64_t>(how.workers, any_own ? fitting : how.workers);
    return static_cast<std::size_t>(
        std::clamp<std::int64_t>(fitting, any_own ? 0 : 1, how.most_workers));
}

/// Leases for all tasks. One that is given back when what its tasks wait for has ended needs
/// another in its place: what they wait for may have no other worker to run on.
SKEIN_INLINE std::size_t leased_workers::state::shared() const noexcept {
    return static_cast<std::size_t>(
        std::count_if(leases.begin(), leases.end(), [](const auto& one) {
            return one.second->is_shared() && !one.second->blocked;
        }));
}

/// Asks for what is missing, and takes back what was asked for in vain.
SKEIN_INLINE void leased_workers::state::fill() {
    if (!is_filling()) return;
    for (auto& [demand, one] : demands) fill_own(one);
    auto have = shared();
    for (const auto wanted = target(); have < wanted; ++have) {
        auto l = std::make_shared<lease>();
        l->number = ++last_number;
        leases.emplace(l->number, l);
        head.want(wish(*l));
    }
    for (auto at = leases.end(); have > target() && at != leases.begin();) {
        --at;
        if (at->second->node != 0 || at->second->wire || !at->second->is_shared()) continue;
        --have;
        const auto l = at->second;
        at = leases.erase(at);
        head.give_back(l->number);
    }
    take_back_withdrawn();
    count_expected();
    say_what_waits();
}

/// What waits for this demand has changed.
SKEIN_INLINE void leased_workers::state::want_workers(const rt::worker_demand& what) {
    auto& own = demands[what.demand];
    if (own.text.empty()) own.text = sched::to_string(what.need);
    own.what = what;
    own.idle_since = on_loop.now();
    if (!stopping.is_set()) fill();
}

/// One lease of a demand is asked for at a time; those above what is wanted go when they have been
/// idle for a while.
SKEIN_INLINE void leased_workers::state::fill_own(own_leases& own) {
    std::size_t all = 0;
    std::vector<lease_ptr> waiting;
    for (const auto& [number, l] : leases) {
        if (l->demand != own.what.demand) continue;
        ++all;
        if (l->node == 0 && !l->wire)
            waiting.push_back(l); // its worker may be before the news of it
    }
    if (own.what.wanted > all && waiting.empty()) {
        auto l = std::make_shared<lease>();
        l->number = ++last_number;
        l->demand = own.what.demand;
        leases.emplace(l->number, l);
        head.want(wish(*l));
    }
    for (; !waiting.empty() && all > own.what.wanted; waiting.pop_back(), --all) {
        leases.erase(waiting.back()->number);
        head.give_back(waiting.back()->number);
    }
    if (all > own.what.wanted && !std::exchange(own.watched, true))
        later.spawn(release_idle(this, own.what.demand));
}

SKEIN_INLINE task<void> leased_workers::state::release_idle(state* self, sched::demand_id demand) {
    auto& own = self->demands.at(demand);
    for (;;) {
        const auto due = deadline_after(own.idle_since, self->how.times.idle_worker);
        if (self->on_loop.now() < due) {
            co_await sleep_for(due - self->on_loop.now());
            continue;
        }
        std::size_t all = 0;
        lease_ptr last;
        for (const auto& [k, l] : self->leases) {
            if (l->demand != demand) continue;
            ++all;
            if (l->wire && !l->retiring && self->driver.is_idle(l->wire)) last = l;
        }
        if (all <= own.what.wanted) break;
        if (!last) { // the calls there have not ended for all they are not counted: cancelled ones
            co_await sleep_for(self->how.times.idle_worker);
            continue;
        }
        last->retiring = true;
        auto going = retire(self, last, "nothing waits for it");
        co_await going;
        co_await sleep_for(self->how.times.last_word);
    }
    own.watched = false;
}

/// New actors wait for workers that are about to come.
SKEIN_INLINE void leased_workers::state::count_expected() {
    std::size_t n = 0;
    for (const auto& [number, l] : leases) n += l->node != 0 && l->is_shared();
    driver.expect_workers(n);
}

/// With the environment that its tasks ask for: what cannot be had, or has not been three times, is
/// no use to wait for.
SKEIN_INLINE bool leased_workers::state::refuse_own(const lease& l, bool is_lasting) {
    const auto found = demands.find(l.demand);
    if (found == demands.end() || found->second.what.env.empty()) return false;
    auto& own = found->second;
    constexpr int most_failures = 3;
    const bool no_folder = is_lasting && !own.what.env.folder.empty();
    if (++own.failures < most_failures && !no_folder) return false;
    own.failures = 0;
    error why(no_folder ? errc::not_found : errc::worker_lost,
              detail::failed_start_text(l.node_name) + l.how);
    if (no_folder)
        why.with_hint(std::string(detail::folder_hint));
    else
        why.with_hint(std::string(detail::start_hint));
    driver.refuse_demand(l.demand, why);
    return true;
}

SKEIN_INLINE task<void> leased_workers::state::fill_later(state* self, duration pause) {
    co_await sleep_for(pause);
    self->fill();
}

/// They take new work again, but for those that have nothing to do, which are told goodbye just
/// now, and those in whose place another one has come while they waited for others.
SKEIN_INLINE void leased_workers::state::take_back_withdrawn() {
    if (!knows_size) return;
    for (const auto& [number, l] : leases) {
        if (!l->is_withdrawn || !l->retirement || l->blocked) continue;
        if (!l->demand && shared() > target()) continue;
        if (l->wire && l->wire->is_open() && !driver.is_idle(l->wire)) l->retirement->request();
    }
}

SKEIN_INLINE task<void> leased_workers::state::retire(state* self, lease_ptr l, std::string why) {
    bool left = false, goes_on = false;
    std::string stays;
    for (bool once_more = true; std::exchange(once_more, false);) {
        l->retirement.emplace();
        auto asking = as_result(with_cancel(l->retirement->token(), self->driver.retire(l->wire)));
        const auto outcome = co_await asking;
        const bool was_withdrawn = l->retirement->requested();
        l->retirement.reset();
        if (!outcome && !was_withdrawn) throw outcome.error();
        left = outcome && outcome->empty();
        stays = outcome ? *outcome : std::string();
        goes_on = !outcome && l->is_withdrawn;
        once_more = !outcome && !goes_on; // it was asked back again meanwhile
    }
    l->retiring = l->is_withdrawn = false;
    if (!left && !goes_on && l->wire) self->head.keep(l->number, std::move(stays));
    logging::debug("cluster",
                   left      ? "a worker was given back"
                   : goes_on ? "a worker is not asked back any more"
                             : "a worker with actors is kept",
                   {{"node", l->node_name}, {"why", why}});
}

/// Of each demand once: that no node could hold it.
SKEIN_INLINE void leased_workers::state::say_what_waits() {
    if (!knows_size || !head.is_asking()) return; // when the size of the cluster is known
    if (cluster_nodes == 0) {
        bool any = visits_only && spaces.all().empty(); // a space server is waited for, too
        bool here = false;
        for (const auto& [number, l] : leases) {
            l->why.clear(); // with the first node the head says something else
            here = here || l->node != 0;
            any = any || (l->node == 0 && !l->wire);
        }
        groups.say_nothing();
        return news.no_nodes(any || groups.any_waits(), here);
    }
    news.nodes();
    for (const auto& [number, l] : leases) {
        const auto why = std::exchange(l->why, {});
        if (!why.empty() && l->node == 0) news.waits(wish(*l), why);
    }
    groups.say_impossible();
}

SKEIN_INLINE bool leased_workers::state::leave_group(std::uint64_t number) {
    const auto is_of = [&](const auto& k) { return k.second.what.group == number; };
    std::vector<lease_ptr> idle;
    bool any = false;
    for (const auto& [n, l] : leases) {
        const auto own = demands.find(l->demand);
        if (own == demands.end() || !is_of(*own)) continue;
        any = true;
        if (!l->wire || (!l->retiring && driver.is_idle(l->wire))) idle.push_back(l);
    }
    for (const auto& l : idle) {
        if (!l->wire) { // its worker has not come yet
            leases.erase(l->number);
            head.give_back(l->number);
        } else {
            l->retiring = true;
            later.spawn(retire(this, l, "its placement group is over"));
        }
    }
    const bool is_watched = std::any_of(demands.begin(), demands.end(), [&](const auto& k) {
        return is_of(k) && k.second.watched;
    });
    if (any || is_watched) return false;
    std::erase_if(demands, is_of);
    return true;
}

// ---- second processes of workers ----------------------------------------------------------------

/// False: none can stand in for it. Without cores it would have no gpus either.
SKEIN_INLINE bool leased_workers::state::want_beside(const net::channel& worker) {
    const auto found = std::find_if(leases.begin(), leases.end(), [&](const auto& one) {
        return one.second->wire.get() == &worker && one.second->is_shared();
    });
    if (found == leases.end() || stopping.is_set() || gave_up || how.demand.gpu) return false;
    const auto of = found->second;
    auto l = std::make_shared<lease>();
    l->number = ++last_number;
    l->beside = of->number;
    leases.emplace(l->number, l);
    ask_beside(*of);
    return true;
}

/// On its node, once that is known: a worker may come before the news of its grant.
SKEIN_INLINE void leased_workers::state::ask_beside(const lease& of) {
    if (of.node_name.empty()) return;
    for (const auto& [number, l] : leases) {
        if (l->beside != of.number || !l->where.empty()) continue;
        l->where = "node=" + of.node_name;
        head.want(wish(*l));
    }
}

/// The connection of the first process; none: it is no second one, or that has ended.
SKEIN_INLINE const net::channel* leased_workers::state::stands_beside(const lease& l) const {
    const auto found = leases.find(l.beside);
    return found == leases.end() ? nullptr : found->second->wire.get();
}

/// It does not come, or has ended before it came: tasks of the first run in that.
SKEIN_INLINE void leased_workers::state::refuse_beside(const lease& l, const std::string& why) {
    const auto* const first = stands_beside(l);
    const auto found = leases.find(l.number);
    if (found == leases.end() || l.wire) return;
    const auto gone = found->second;
    leases.erase(found);
    head.give_back(gone->number);
    if (first == nullptr || stopping.is_set()) return;
    logging::warn(
        "cluster", "a worker has no second process: its tasks hold up those who wait there",
        {{"worker", fmt::format("worker-{}", gone->beside)}, {"node", gone->where}, {"why", why}});
    driver.refuse_aside(*first);
}

/// The first one has ended. One that serves already leaves by itself.
SKEIN_INLINE void leased_workers::state::drop_beside(const lease& of) {
    std::vector<lease_ptr> waiting;
    for (const auto& [number, l] : leases)
        if (l->beside == of.number && !l->wire) waiting.push_back(l);
    for (const auto& l : waiting) {
        leases.erase(l->number);
        head.give_back(l->number);
    }
}

SKEIN_INLINE task<void> leased_workers::state::leave_when_idle(state* self, lease_ptr l) {
    auto busy_at = self->on_loop.now();
    while (self->on_loop.now() - busy_at < self->how.times.idle_aside) {
        co_await sleep_for(self->how.times.suspect_after);
        if (!l->wire || l->retiring) co_return;
        if (!self->driver.is_idle(l->wire)) busy_at = self->on_loop.now();
    }
    l->retiring = true;
    auto going = retire(self, l, "nothing has run there for long");
    co_await going;
}

} // namespace skein::cluster
