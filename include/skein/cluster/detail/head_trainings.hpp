// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a head does for trainings whose workers come and go. A part of head::state, which is only
// known to files that come after it.

#include <skein/cluster/detail/hello_checks.hpp>
#include <skein/cluster/detail/training_messages.hpp>
#include <skein/core/error.hpp>
#include <skein/core/task.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/requests.hpp>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster::detail {

/// Its driver answers for its training: the head knows nothing of it but leases.
template <class State>
task<scale_reply> scale_training_of(State* self, ask_scale m, std::string peer) {
    check_version(m.version, peer);
    (void)self->jobs.called(m.job); // or says that there is no such job
    net::requests::handle way;
    for (const auto& [number, d] : self->drivers)
        if (d->hello.job == m.job && d->holder->has_ranks && !d->holder->ending && d->session)
            way = d->session->way;
    if (way == nullptr || !way->is_open())
        throw error(errc::not_found,
                    fmt::format("job {} has no training with workers on nodes now", m.job))
            .with_hint("skein job status shows how far it has come; a training has a range of "
                       "workers by --workers 1:4, or by skein job submit --elastic 1:4");
    scale_training wish;
    wish.workers = m.workers;
    constexpr auto within = std::chrono::seconds(5);
    auto asking = with_timeout(way->template call<training_scaled>(wish), within);
    auto reply = co_await asking;
    scale_reply out;
    out.said = std::move(reply.said);
    co_return out;
}

/// Over the link of that session, which ends before `self`.
template <class State, class Session>
void serve_trainings(State* self, net::request_service& of, const std::shared_ptr<Session>& s) {
    const std::weak_ptr<Session> weak = s; // the session owns the service
    of.on_tell<loosen_group>([self, weak](const loosen_group& m, const net::caller& who) {
        const auto here = weak.lock();
        if (here == nullptr || here->driver == nullptr)
            throw error(errc::malformed, who.peer + " has not said which driver it is");
        self->leases.loosen_group(*here->driver->holder, m.group);
        self->leases.pump();
    });
    of.on<ask_scale, scale_reply>([self](ask_scale m, const net::caller& who) {
        return scale_training_of(self, std::move(m), who.peer);
    });
}

} // namespace skein::cluster::detail
