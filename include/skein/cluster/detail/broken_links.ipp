// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/detail/broken_links.hpp.

#include <skein/cluster/detail/cluster_link.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/network.hpp>
#include <skein/rt/worker_link.hpp>

#include <exception>
#include <string>

#include <fmt/format.h>

namespace skein::cluster::detail {

SKEIN_INLINE bool broken_links::watched::is_broken_for(duration patience, time_point now) {
    if (wire->is_connected()) {
        broken_since.reset();
    } else if (!broken_since) {
        broken_since = now;
    } else {
        return now - *broken_since >= patience;
    }
    return false;
}

SKEIN_INLINE task<void> broken_links::watch_all(broken_links* self, event* stopping) {
    scope asking;
    std::exception_ptr failure;
    try {
        auto looking = look(self, stopping, &asking);
        co_await looking;
    } catch (...) {
        failure = std::current_exception();
    }
    if (failure) asking.cancel();
    auto asked = as_result(shield(asking.join()));
    (void)co_await asked;
    if (failure) std::rethrow_exception(failure);
}

SKEIN_INLINE task<void> broken_links::look(broken_links* self, event* stopping, scope* asking) {
    const duration resume = self->times_.worker_resume;
    while (!stopping->is_set()) {
        auto pause = stopping->wait_for(self->times_.idle_probe);
        co_await pause;
        const auto now = self->on_loop_.now();
        for (auto& one : self->clients_)
            if (one.is_broken_for(resume, now))
                one.wire->abort(error(errc::peer_lost, "it has not come back for long"));
        for (auto& [lease, one] : self->workers_) {
            if (!one.is_broken_for(self->has_cluster_ ? resume : duration(0), now)) continue;
            one.broken_since = now;
            asking->spawn(ask_host(self, lease));
        }
    }
}

SKEIN_INLINE task<void> broken_links::ask_host(broken_links* self, std::uint64_t lease) {
    const auto found = self->workers_.find(lease);
    if (found == self->workers_.end()) co_return;
    const auto wire = found->second.wire;
    const auto at = rt::door_of(*wire);
    std::string why = "it cannot be dialled";
    if (at) {
        auto asked =
            as_result(with_timeout(self->network_.connect(*at), self->times_.connect_timeout));
        const auto answer = co_await asked;
        if (answer) co_return;
        why = answer.error().what();
    }
    if (!self->workers_.contains(lease) || wire->is_connected()) co_return;
    wire->abort(error(errc::peer_lost,
                      !self->has_cluster_
                          ? std::string("its connection broke, and the cluster has gone")
                          : fmt::format("its connection broke, and it has not come back for "
                                        "{:.0f} s",
                                        to_seconds(self->times_.worker_resume)))
                    .with_cause(why));
}

} // namespace skein::cluster::detail
