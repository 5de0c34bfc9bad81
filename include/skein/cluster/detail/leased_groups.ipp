// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/detail/leased_groups.hpp.

#include <skein/core/cancel.hpp>
#include <skein/core/log.hpp>
#include <skein/core/sleep.hpp>
#include <skein/rt/runtime.hpp>

#include <algorithm>
#include <utility>

namespace skein::cluster::detail {

SKEIN_INLINE void leased_groups::want(const rt::worker_group& what) {
    auto& g = groups_[what.number];
    known_group known;
    known.number = what.number;
    known.strategy = static_cast<std::uint8_t>(what.strategy);
    for (const auto& b : what.bundles) {
        known.bundles.push_back(sched::to_string(b));
        g.cpus += b.cpu;
    }
    head_.want_group(std::move(known));
    leases_.fill();
}

SKEIN_INLINE void leased_groups::drop(std::uint64_t number) {
    const auto found = groups_.find(number);
    if (found == groups_.end() || std::exchange(found->second.closing, true)) return;
    if (!leases_.is_filling()) {
        groups_.erase(found);
        head_.forget_group(number);
        return driver_.group_gone(number);
    }
    closing_.spawn(close_group(this, number));
}

/// Its leases are given back when what runs there has ended, then the group.
SKEIN_INLINE task<void> leased_groups::close_group(leased_groups* self, std::uint64_t number) {
    while (!self->leases_.leave_group(number)) co_await sleep_for(self->pause_);
    self->groups_.erase(number);
    self->head_.drop_group(number);
    self->driver_.group_gone(number);
    self->leases_.fill();
}

SKEIN_INLINE task<void> leased_groups::stop_closing(leased_groups* self) {
    self->closing_.cancel();
    auto ended = as_result(shield(self->closing_.join()));
    (void)co_await ended;
}

SKEIN_INLINE void leased_groups::on_group_placed(const group_placed& m) {
    auto& g = groups_.at(m.group);
    g.placed = true;
    g.impossible = g.is_said = false;
    g.why.clear();
    driver_.group_placed(m.group, true);
    leases_.fill();
}

SKEIN_INLINE void leased_groups::on_group_waits(const group_waits& m) {
    auto& g = groups_.at(m.group);
    g.placed = false;
    g.impossible = m.impossible;
    driver_.group_placed(m.group, false);
    if (m.impossible)
        g.why = m.why;
    else
        logging::warn("cluster", "a placement group has lost places and gets others",
                      {{"group", m.group}, {"why", m.why}});
    leases_.fill();
}

SKEIN_INLINE void leased_groups::on_group_refused(const group_refused& m) {
    groups_.erase(m.group);
    driver_.group_refused(m.group, error(errc::exhausted, m.why));
}

SKEIN_INLINE std::int64_t leased_groups::cpus_in_steps(bool any_blocked) const noexcept {
    std::int64_t cpus = 0;
    for (const auto& [number, g] : groups_)
        if (g.placed || (!g.impossible && !any_blocked)) cpus += g.cpus.in_steps();
    return cpus;
}

SKEIN_INLINE void leased_groups::say_impossible() {
    for (auto& [number, g] : groups_) {
        const auto why = std::exchange(g.why, {});
        if (why.empty() || std::exchange(g.is_said, true)) continue;
        logging::warn("cluster", "no nodes could hold a placement group: it waits",
                      {{"group", number}, {"why", why}});
    }
}

SKEIN_INLINE void leased_groups::say_nothing() {
    for (auto& [number, g] : groups_) g.why.clear();
}

SKEIN_INLINE bool leased_groups::any_waits() const noexcept {
    return std::any_of(groups_.begin(), groups_.end(),
                       [](const auto& one) { return !one.second.placed; });
}

} // namespace skein::cluster::detail
