// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/leased_workers.hpp: leases that the head asks back.

#include <skein/cluster/detail/leased_workers_state.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/log.hpp>
#include <skein/rt/runtime.hpp>

#include <string>
#include <utility>

namespace skein::cluster {

SKEIN_INLINE void leased_workers::state::on_recalled(const lease_recalled& m) {
    if (m.lease == space_server_lease && !m.withdrawn) head.keep(m.lease);
    const auto found = leases.find(m.lease);
    if (found == leases.end() || stopping.is_set()) return;
    const auto l = found->second;
    l->is_withdrawn = m.withdrawn && l->retirement;
    if (m.withdrawn) return take_back_withdrawn();
    if (l->wire) {
        if (!std::exchange(l->retiring, true)) later.spawn(retire(this, l, m.why));
        return;
    }
    if (l->beside != 0) return refuse_beside(*l, m.why);
    leases.erase(found); // its worker has not come yet
    head.give_back(m.lease);
    later.spawn(fill_later(this, how.times.child_restart_first));
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
    for (bool once_more = true; std::exchange(once_more, false);) {
        l->retirement.emplace();
        auto asking = as_result(with_cancel(l->retirement->token(), self->driver.retire(l->wire)));
        const auto outcome = co_await asking;
        const bool was_withdrawn = l->retirement->requested();
        l->retirement.reset();
        if (!outcome && !was_withdrawn) throw outcome.error();
        left = outcome && *outcome;
        goes_on = !outcome && l->is_withdrawn;
        once_more = !outcome && !goes_on; // it was asked back again meanwhile
    }
    l->retiring = l->is_withdrawn = false;
    if (!left && !goes_on && l->wire) self->head.keep(l->number);
    logging::debug("cluster",
                   left      ? "a worker was given back"
                   : goes_on ? "a worker is not asked back any more"
                             : "a worker with actors is kept",
                   {{"node", l->node_name}, {"why", why}});
}

} // namespace skein::cluster
