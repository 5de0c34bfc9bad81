// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/leased_workers.hpp: second processes of workers, for plain tasks
// while others wait in the first (rt/detail/runtime_room.ipp). Such a one has a lease of its own,
// of no cores, on the node of the first: it uses those of the first, and so head and agent need to
// know nothing of what it is for.

#include <skein/cluster/detail/leased_workers_state.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/rt/runtime.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace skein::cluster {

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
        want(l);
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
