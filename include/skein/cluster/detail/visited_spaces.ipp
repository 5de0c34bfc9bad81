// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/detail/visited_spaces.hpp.

#include <skein/cluster/detail/cluster_link.hpp>
#include <skein/cluster/detail/head_client.hpp>
#include <skein/cluster/detail/order_keys.hpp>
#include <skein/core/backoff.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/timeout.hpp>
#include <skein/rt/runtime.hpp>
#include <skein/rt/worker_link.hpp>

#include <algorithm>

#include <fmt/format.h>

namespace skein::cluster::detail {

SKEIN_INLINE task<rt::space_place> visited_spaces::find_place(visited_spaces* self,
                                                              std::string space,
                                                              std::uint64_t space_server) {
    const auto limit = self->how_.enter_within;
    const auto last = deadline_after(self->on_loop_.now(), limit);
    std::string why = "the head was not reached";
    backoff pauses(std::chrono::milliseconds(5), std::chrono::milliseconds(200));
    for (;;) {
        if (self->gave_up_why_) throw error(*self->gave_up_why_);
        if (self->stopping_->is_set())
            throw error(errc::closed, "a namespace was asked for while the program ends");
        if (self->on_loop_.now() >= last)
            throw error(errc::timeout,
                        fmt::format("namespace \"{}\" was not reached within {:.0f} s: {}", space,
                                    to_seconds(limit), why));
        if (self->head_.is_asking()) {
            auto asking = as_result(with_timeout(
                self->head_.ask<space_entered>(enter_space{space, space_server}), limit));
            const auto there = co_await asking;
            if (there) co_return self->place_of(space, *there);
            const auto code = there.error().code();
            if (is_final(code) || code == errc::worker_lost || code == errc::exhausted ||
                code == errc::cancelled)
                throw error(there.error());
            why = there.error().what();
        }
        auto waiting = self->stopping_->wait_for(pauses.next());
        co_await waiting;
    }
}

SKEIN_INLINE rt::space_place visited_spaces::place_of(const std::string& space,
                                                      const space_entered& there) {
    const bool is_new = std::none_of(visits_.begin(), visits_.end(), [&](const auto& v) {
        return v.space == space && v.space_server == there.space_server;
    });
    if (is_new) visits_.push_back({space, there.space_server});
    if (visits_.size() > most) visits_.erase(visits_.begin()); // its link tells, too
    rt::space_place out;
    out.space_server = there.space_server;
    out.host = there.host;
    out.port = there.port;
    out.address = there.address;
    out.head_host = how_.head.host;
    out.via = &network_;
    if (there.sealed.size() != net::token::size)
        throw error(errc::malformed, "the head has sent no key for the namespace")
            .with_hint("use one release of skein for head, nodes and programs");
    out.secret = sealed(how_.secret, sealed_space, there.space_server, there.sealed);
    out.sealed = rt::seal_secret(job_secret(how_.secret, driver_.incarnation()), there.space_server,
                                 out.secret);
    return out;
}

SKEIN_INLINE void visited_spaces::end(const space_lost& m) {
    std::erase_if(visits_, [&](const auto& v) {
        return v.space == m.space && v.space_server == m.space_server;
    });
    rt::tell_space_server_ended(driver_, m.space, m.space_server, m.how);
}

} // namespace skein::cluster::detail
