// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/leased_workers.hpp: where the space servers of namespaces are, for
// this driver and its workers, and, where it keeps one itself, its space clients: workers on which
// nothing runs.

#include <skein/cluster/detail/leased_workers_state.hpp>
#include <skein/core/backoff.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/rt/runtime.hpp>
#include <skein/rt/worker_link.hpp>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster {

inline constexpr std::size_t most_visits = 4096; ///< that a head takes in a hello

/// Where a space server is. As long as the head is away it is asked again.
SKEIN_INLINE task<rt::space_place> leased_workers::state::find(state* self, std::string space,
                                                               std::uint64_t space_server) {
    const auto most = self->how.times.space_enter;
    const auto last = deadline_after(self->on_loop.now(), most);
    std::string why = "the head was not reached";
    backoff pauses(std::chrono::milliseconds(5), std::chrono::milliseconds(200));
    for (;;) {
        if (self->gave_up) throw error(*self->gave_up_why);
        if (self->stopping.is_set())
            throw error(errc::closed, "a namespace was asked for while the program ends");
        if (self->on_loop.now() >= last)
            throw error(errc::timeout,
                        fmt::format("namespace \"{}\" was not reached within {:.0f} s: {}", space,
                                    to_seconds(most), why));
        if (self->head.is_asking()) {
            auto asking = as_result(with_timeout(
                self->head.ask<cluster::space_entered>(enter_space{space, space_server}), most));
            const auto there = co_await asking;
            if (there) co_return self->place_of(space, *there);
            const auto code = there.error().code();
            if (detail::is_final(code) || code == errc::worker_lost || code == errc::exhausted ||
                code == errc::cancelled)
                throw error(there.error());
            why = there.error().what();
        }
        auto waiting = detail::wait_at_most(&self->stopping, pauses.next());
        co_await waiting;
    }
}

/// The head tells this driver of the space server's end, also a head that was started again.
SKEIN_INLINE rt::space_place leased_workers::state::place_of(const std::string& space,
                                                             const space_entered& there) {
    const bool is_new = std::none_of(visits.begin(), visits.end(), [&](const auto& v) {
        return v.space == space && v.space_server == there.space_server;
    });
    if (is_new) visits.push_back({space, there.space_server});
    if (visits.size() > most_visits) visits.erase(visits.begin()); // its link tells, too
    rt::space_place out;
    out.space_server = there.space_server;
    out.host = there.host;
    out.port = there.port;
    out.address = there.address;
    out.head_host = how.head.host;
    out.via = &network;
    out.secret = to_buffer(detail::job_secret(how.secret, there.space_server).bytes());
    out.sealed = rt::seal_secret(detail::job_secret(how.secret, driver.incarnation()),
                                 there.space_server, out.secret);
    return out;
}

SKEIN_INLINE void leased_workers::state::on_space_lost(const space_lost& m) {
    std::erase_if(visits, [&](const auto& v) {
        return v.space == m.space && v.space_server == m.space_server;
    });
    rt::tell_space_server_ended(driver, m.space, m.space_server, m.how);
}

SKEIN_INLINE task<rt::space_place> leased_workers::find_space(std::string space,
                                                              std::uint64_t space_server) {
    return state::find(state_.get(), std::move(space), space_server);
}
SKEIN_INLINE void leased_workers::serve_spaces_only() {
    if (state_->leases.empty() && !state_->door) state_->visits_only = true;
}
SKEIN_INLINE void leased_workers::need() {
    state_->visits_only = false;
    state_->fill();
}

// ---- a space server's space clients -------------------------------------------------------------

SKEIN_INLINE task<void> leased_workers::state::serve_space_client(state* self,
                                                                  net::link::handle wire) {
    self->space_clients.push_back({wire, {}});
    std::exception_ptr failure;
    try {
        rt::worker_info info;
        info.is_space_client = true;
        auto served = self->driver.serve_worker(wire, {}, {}, info);
        co_await served;
    } catch (...) {
        failure = std::current_exception();
    }
    std::erase_if(self->space_clients, [&](const auto& one) { return one.wire == wire; });
    if (failure) std::rethrow_exception(failure);
}

/// One that has not come back for long is gone: nobody else tells so.
SKEIN_INLINE void leased_workers::state::look_at_space_clients(time_point now) {
    for (auto& one : space_clients) {
        if (one.wire->is_connected()) {
            one.broken_since.reset();
        } else if (!one.broken_since) {
            one.broken_since = now;
        } else if (now - *one.broken_since >= how.times.worker_resume) {
            one.wire->abort(error(errc::peer_lost, "it has not come back for long"));
        }
    }
}

} // namespace skein::cluster
