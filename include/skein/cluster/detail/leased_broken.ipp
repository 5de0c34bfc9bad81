// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/leased_workers.hpp: workers whose connection is broken.

#include <skein/cluster/detail/cluster_link.hpp>
#include <skein/cluster/detail/leased_workers_state.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/network.hpp>
#include <skein/rt/runtime.hpp>
#include <skein/rt/worker_link.hpp>

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster {

/// A worker that does not come back may compute: then its host says that it is there still.
SKEIN_INLINE task<void> leased_workers::state::watch_broken(state* self) {
    while (!self->stopping.is_set()) {
        auto pause = detail::wait_at_most(&self->stopping, self->how.times.idle_probe);
        co_await pause;
        const auto now = self->on_loop.now();
        // Without a cluster nobody tells how a worker has ended.
        self->look_at_space_clients(now);
        const duration patience = self->gave_up ? duration(0) : self->how.times.worker_resume;
        for (const auto& [number, l] : self->leases) {
            if (!l->wire || l->wire->is_connected()) {
                l->broken_since.reset();
            } else if (!l->broken_since) {
                l->broken_since = now;
            } else if (now - *l->broken_since >= patience) {
                l->broken_since = now;
                self->served.spawn(ask_host(self, l));
            }
        }
    }
}

SKEIN_INLINE task<void> leased_workers::state::ask_host(state* self, lease_ptr l) {
    if (!l->wire) co_return;
    const auto at = rt::door_of(*l->wire);
    std::string why = "it cannot be dialled";
    if (at) {
        auto asked =
            as_result(with_timeout(self->network.connect(*at), self->how.times.connect_timeout));
        const auto answer = co_await asked;
        if (answer) co_return;
        why = answer.error().what();
    }
    if (!l->wire || l->wire->is_connected()) co_return;
    l->wire->abort(error(errc::peer_lost,
                         self->gave_up
                             ? std::string("its connection broke, and the cluster has gone")
                             : fmt::format("its connection broke, and it has not come back for "
                                           "{:.0f} s",
                                           to_seconds(self->how.times.worker_resume)))
                       .with_cause(why));
}

} // namespace skein::cluster
