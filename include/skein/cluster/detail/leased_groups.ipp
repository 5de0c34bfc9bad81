// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/leased_workers.hpp: a driver's placement groups.

#include <skein/cluster/detail/leased_workers_state.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/rt/runtime.hpp>

#include <algorithm>
#include <utility>
#include <vector>

namespace skein::cluster {

SKEIN_INLINE void leased_workers::state::want(const rt::worker_group& what) {
    auto& g = groups[what.number];
    known_group known;
    known.number = what.number;
    known.strategy = static_cast<std::uint8_t>(what.strategy);
    for (const auto& b : what.bundles) {
        known.bundles.push_back(sched::to_string(b));
        g.cpus += b.cpu;
    }
    head.want_group(std::move(known));
    if (!stopping.is_set()) fill();
}

SKEIN_INLINE void leased_workers::state::drop(std::uint64_t number) {
    const auto found = groups.find(number);
    if (found == groups.end() || std::exchange(found->second.closing, true)) return;
    if (stopping.is_set() || gave_up) { // all ends
        groups.erase(found);
        head.forget_group(number);
        return driver.group_gone(number);
    }
    later.spawn(close_group(this, number));
}

/// Its leases are given back when what runs there has ended, then the group.
SKEIN_INLINE task<void> leased_workers::state::close_group(state* self, std::uint64_t number) {
    const auto is_of = [&](const auto& k) { return k.second.what.group == number; };
    for (;; co_await sleep_for(self->how.times.last_word / 8)) {
        std::vector<lease_ptr> idle;
        bool any = false;
        for (const auto& [n, l] : self->leases) {
            const auto own = self->demands.find(l->demand);
            if (own == self->demands.end() || !is_of(*own)) continue;
            any = true;
            if (!l->wire || (!l->retiring && self->driver.is_idle(l->wire))) idle.push_back(l);
        }
        for (const auto& l : idle) {
            if (!l->wire) { // its worker has not come yet
                self->leases.erase(l->number);
                self->head.give_back(l->number);
            } else {
                l->retiring = true;
                self->later.spawn(retire(self, l, "its placement group is over"));
            }
        }
        const bool watched =
            std::any_of(self->demands.begin(), self->demands.end(),
                        [&](const auto& k) { return is_of(k) && k.second.watched; });
        if (!any && !watched) break;
    }
    std::erase_if(self->demands, is_of);
    self->groups.erase(number);
    self->head.drop_group(number);
    self->driver.group_gone(number);
    self->fill();
}

SKEIN_INLINE void leased_workers::state::on_group_placed(const group_placed& m) {
    auto& g = groups.at(m.group);
    g.placed = true;
    g.impossible = g.is_said = false;
    g.why.clear();
    driver.group_placed(m.group, true);
    fill();
}

SKEIN_INLINE void leased_workers::state::on_group_waits(const group_waits& m) {
    auto& g = groups.at(m.group);
    g.placed = false;
    g.impossible = m.impossible;
    driver.group_placed(m.group, false);
    if (m.impossible)
        g.why = m.why;
    else
        logging::warn("cluster", "a placement group has lost places and gets others",
                      {{"group", m.group}, {"why", m.why}});
    fill();
}

SKEIN_INLINE void leased_workers::state::on_group_refused(const group_refused& m) {
    groups.erase(m.group);
    driver.group_refused(m.group, error(errc::exhausted, m.why));
}

/// Cpus that the groups take, in steps; those that cannot be had count for nothing.
SKEIN_INLINE std::int64_t leased_workers::state::group_cpus(bool any_blocked) const noexcept {
    std::int64_t cpus = 0;
    for (const auto& [number, g] : groups)
        if (g.placed || (!g.impossible && !any_blocked)) cpus += g.cpus.in_steps();
    return cpus;
}

} // namespace skein::cluster
