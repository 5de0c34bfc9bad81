// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/leased_workers.hpp: what workers print.

#include <skein/cluster/detail/cluster_link.hpp>
#include <skein/cluster/detail/leased_workers_state.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/timeout.hpp>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster {

/// The head sends as much as it was told that has been printed: few of these are here at a time.
SKEIN_INLINE void leased_workers::state::on_output(worker_output m) {
    if (!how.print || is_deaf) return;
    std::vector<proc::worker_lines> all;
    for (auto& some : m.from) {
        auto& before = heard[some.lease];
        before.node = m.node_name;
        proc::worker_lines out;
        out.worker = fmt::format("worker-{}", some.lease);
        out.node = m.node_name;
        out.left_out = some.first > before.next ? some.first - before.next : 0;
        before.next = some.first + some.lines.size();
        out.lines = std::move(some.lines);
        all.push_back(std::move(out));
    }
    ++printing_now;
    printing.spawn(print(this, std::move(all), m.node));
}

/// The worker has ended; what it has printed and nobody has sent is missing.
SKEIN_INLINE void leased_workers::state::hear_end(const lease_ended& m) {
    const auto found = heard.find(m.lease);
    if (!how.print || is_deaf || (found == heard.end() && m.lines == 0)) return;
    const auto before = found == heard.end() ? heard_lines{} : found->second;
    heard.erase(m.lease);
    all_heard.set();
    if (m.lines < before.next) return;
    proc::worker_lines rest;
    rest.worker = fmt::format("worker-{}", m.lease);
    rest.node = before.node;
    rest.left_out = m.lines + 1 - before.next;
    std::vector<proc::worker_lines> all;
    all.push_back(std::move(rest));
    ++printing_now;
    printing.spawn(print(this, std::move(all), 0));
}

/// The head has said again which leases there are: no end of others will be told.
SKEIN_INLINE void leased_workers::state::mark_unknown() {
    for (auto& [number, before] : heard) before.is_lost = !leases.contains(number);
    all_heard.set();
}

SKEIN_INLINE task<void> leased_workers::state::print(state* self,
                                                     std::vector<proc::worker_lines> what,
                                                     std::uint64_t node) {
    auto printed = as_result(self->how.print(std::move(what)));
    (void)co_await printed;
    if (node != 0) (void)self->head.tell(output_printed{node});
    if (--self->printing_now == 0) self->all_printed.set();
}

SKEIN_INLINE task<void> leased_workers::state::until_printed(state* self, duration most) {
    const auto until = deadline_after(self->on_loop.now(), most);
    while (self->printing_now != 0 && self->on_loop.now() < until) {
        self->all_printed.reset();
        auto printed = detail::wait_at_most(&self->all_printed, until - self->on_loop.now());
        co_await printed;
    }
}

/// Workers have left: what they said last is on its way. Not for long: a terminal may be slow, or a
/// node cut off.
SKEIN_INLINE task<void> leased_workers::state::hear_out(state* self, bool waits) {
    const auto until = deadline_after(self->on_loop.now(), self->how.times.suspect_after);
    const auto is_coming = [](const auto& one) { return !one.second.is_lost; };
    while (waits && self->head.is_joined() && self->on_loop.now() < until &&
           std::any_of(self->heard.begin(), self->heard.end(), is_coming)) {
        self->all_heard.reset();
        auto heard = detail::wait_at_most(&self->all_heard, until - self->on_loop.now());
        co_await heard;
    }
    if (waits) {
        auto printed = until_printed(self, self->how.times.suspect_after);
        co_await printed;
    }
    self->is_deaf = true;
    self->printing.cancel();
    auto ended = as_result(self->printing.join());
    (void)co_await ended;
}

} // namespace skein::cluster
