// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/head.hpp: namespaces. Each has one space server at most, a driver
// that the head has started: its process is lease 0 of its own job. What this head does not know of
// it must not take for free: one that was started again waits until a space server that lives has
// come back, or surely lives no more.

#include <skein/cluster/detail/head_state.hpp>
#include <skein/core/known_names.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::cluster {

namespace detail {
inline constexpr std::string_view space_was_stopped = "it was ended by skein stop";
}

SKEIN_INLINE void head::state::serve_spaces(net::request_service& of, const session_ptr& s) {
    const std::weak_ptr<detail::head_session> weak = s;
    of.on<enter_space, space_entered>([this, weak](enter_space m, const net::caller&) {
        return on_enter(this, weak.lock(), std::move(m));
    });
    of.on<ask_stop_space, stop_space_reply>([this](ask_stop_space m, const net::caller& who) {
        return [](state* self, ask_stop_space asked, std::string peer) -> task<stop_space_reply> {
            detail::check_version(asked.version, peer);
            logging::at(self->how.news, "head", "asked to end a namespace",
                        {{"namespace", asked.space}, {"by", peer}});
            co_return self->stop_space(asked.space);
        }(this, std::move(m), who.peer);
    });
}

/// Waits for the space server, which it has started if there is none.
SKEIN_INLINE task<space_entered> head::state::on_enter(state* self, session_ptr s, enter_space m) {
    if (m.space.empty() || m.space.size() > detail::most_space_bytes)
        throw error(errc::malformed, fmt::format("a namespace of {} bytes", m.space.size()));
    std::uint64_t waits_for = 0; // which start
    for (;;) {
        if (s == nullptr || s->driver == nullptr)
            throw error(errc::malformed,
                        "who asks for a namespace has not said which driver it is");
        if (self->over) throw error(errc::closed, "the cluster was stopped");
        self->check_exact(m);
        if (self->spaces.size() >= detail::most_spaces && !self->spaces.contains(m.space))
            throw error(errc::exhausted,
                        fmt::format("a cluster has {} namespaces at most", detail::most_spaces));
        auto& sp = self->spaces[m.space];
        if (waits_for != 0 && sp.failed == waits_for)
            throw error(errc::worker_lost,
                        fmt::format("the space server of namespace \"{}\" did not start: {}",
                                    m.space, sp.how))
                .with_hint(std::string(detail::start_hint));
        const auto kept = self->drivers.find(sp.space_server);
        if (sp.space_server == 0) {
            if (m.space_server == 0 && self->on_loop.now() >= self->free_at(sp))
                self->start_space_server(m.space, sp, s->driver->hello);
        } else if (kept != self->drivers.end()) {
            const auto& k = *kept->second;
            if (k.hello.build != s->driver->hello.build && !k.hello.executable.empty())
                throw error(errc::mismatch,
                            fmt::format("namespace \"{}\" is kept by another program or build: {} "
                                        "({}{})",
                                        m.space, k.hello.name, k.hello.executable,
                                        k.hello.host.empty() ? "" : " on " + k.hello.host))
                    .with_hint("run that program, or use another namespace; it ends a minute "
                               "after its last actor");
            if (k.session != nullptr && !k.ending) {
                auto& visits = s->driver->hello.visits;
                std::erase_if(visits, [&](const auto& v) { return v.space == m.space; });
                visits.push_back({m.space, sp.space_server});
                co_return space_entered{
                    sp.space_server,
                    fmt::format("{} (pid {} at {})", k.hello.name, k.hello.pid, k.hello.host),
                    k.seen_from, k.hello.port, k.hello.address};
            }
        }
        waits_for = sp.started;
        co_await sleep_for(std::chrono::milliseconds(20));
    }
}

/// Who asks for one space server and no other hears when that lives no more.
SKEIN_INLINE void head::state::check_exact(const enter_space& m) const {
    if (m.space_server == 0) return;
    const auto found = spaces.find(m.space);
    const detail::head_space unknown;
    const auto& sp = found == spaces.end() ? unknown : found->second;
    if (sp.space_server == m.space_server || (!sp.is_known && on_loop.now() < free_at(sp))) return;
    throw error(errc::worker_lost,
                fmt::format("the space server of namespace \"{}\" was lost: {}", m.space,
                            sp.space_server != 0 ? "another one has taken its place"
                            : sp.how.empty()     ? "it is not in the cluster any more"
                                                 : sp.how));
}

/// Who visits that space server hears of its end.
SKEIN_INLINE void head::state::tell_space_lost(const std::string& name, std::uint64_t space_server,
                                               const std::string& why) {
    for (const auto& [number, d] : drivers) {
        if (d->session == nullptr) continue;
        const auto gone = std::erase_if(d->hello.visits, [&](const visited_space& v) {
            return v.space == name && v.space_server == space_server;
        });
        if (gone > 0) d->session->tell(space_lost{name, space_server, why});
    }
}

/// Ends a space server, and with it all of its actors. Another one can be had when its process has
/// ended.
SKEIN_INLINE stop_space_reply head::state::stop_space(const std::string& name) {
    const auto found = spaces.find(name);
    const auto kept =
        found == spaces.end() ? drivers.end() : drivers.find(found->second.space_server);
    if (kept == drivers.end()) {
        name_list there;
        for (const auto& [other, sp] : spaces)
            if (sp.space_server != 0) there.add(other);
        const bool is_new = on_loop.now() < free_at(detail::head_space());
        throw error(errc::not_found, fmt::format("there is no namespace \"{}\" in this cluster; {}",
                                                 name, there.text("none has a space server")))
            .with_hint(is_new ? "this head has just been started and may not know it yet: ask again"
                              : "skein status lists them");
    }
    auto& sp = found->second;
    auto& d = *kept->second;
    const auto own = d.leases.find(space_server_lease);
    if (own != d.leases.end() && own->second->state == detail::lease_state::expected)
        throw error(
            errc::peer_lost,
            fmt::format("namespace \"{}\" cannot be ended now: the node of its space server is "
                        "away",
                        name))
            .with_hint("ask again when it is back, or when it is lost");
    stop_space_reply out;
    for (const auto& [number, l] : d.leases) out.workers += number != space_server_lease ? 1U : 0U;
    sp.is_stopped = true;
    const auto space_server = sp.space_server;
    tell_space_lost(name, space_server, std::string(detail::space_was_stopped));
    if (const auto s = std::exchange(d.session, nullptr)) {
        s->driver = nullptr;
        s->below->abort(error(errc::aborted, "its namespace was ended by skein stop"));
    }
    leave(d, job_end::stopped);
    pump();
    return out;
}

/// Of the program that asks first; its process is lease 0 of a job of its own.
SKEIN_INLINE void head::state::start_space_server(const std::string& name, detail::head_space& sp,
                                                  const driver_hello& by) {
    auto incarnation = on_loop.random().next();
    while (incarnation == 0 || drivers.contains(incarnation)) incarnation = on_loop.random().next();
    auto& d = driver_of(incarnation);
    d.space = name;
    d.hello.name = by.name;
    d.hello.executable = by.executable;
    d.hello.program = by.program;
    d.hello.folder = by.folder;
    d.hello.build = by.build;
    d.away_until = deadline_after(on_loop.now(), how.times.start_timeout);
    sp.space_server = incarnation;
    sp.is_known = true;
    ++sp.started;
    schedule.set_weight(d.id(), 1);
    logging::at(how.news, "head", "a namespace begins",
                {{"namespace", name}, {"program", by.name}});
    want(d, {space_server_lease, {}, {}, true, {}, {}});
    pump();
}

/// When a space server may be started, if there is none.
SKEIN_INLINE time_point head::state::free_at(const detail::head_space& sp) const {
    if (sp.is_known) return sp.free_at;
    return deadline_after(since, is_restarted ? space_fence() : duration(how.times.space_settle));
}

/// A driver says that it is the space server of a namespace.
SKEIN_INLINE void head::state::check_space_server(const std::string& space,
                                                  std::uint64_t incarnation) {
    if (spaces.size() >= detail::most_spaces && !spaces.contains(space))
        throw error(errc::exhausted,
                    fmt::format("a cluster has {} namespaces at most", detail::most_spaces));
    auto& sp = spaces[space];
    if (sp.space_server == incarnation) return;
    if (sp.space_server != 0)
        throw error(errc::already_exists,
                    fmt::format("namespace \"{}\" has another space server meanwhile", space));
    sp.space_server = incarnation;
    sp.is_known = true;
}

/// A node holds a space server's process. False: that of another one than the namespace has.
SKEIN_INLINE bool head::state::claim_space(const held_lease& held) {
    const auto known = drivers.find(held.lease.driver);
    if (known != drivers.end() && !known->second->space.empty() &&
        known->second->space != held.space)
        return false;
    auto& sp = spaces[held.space];
    if (sp.space_server == 0) {
        sp.space_server = held.lease.driver;
        sp.is_known = true;
    }
    if (sp.space_server != held.lease.driver) return false;
    driver_of(sp.space_server).space = held.space;
    return true;
}

/// is_seen: its process has ended for sure.
SKEIN_INLINE void head::state::space_server_over(const detail::head_driver& d,
                                                 const std::string& why, bool is_seen) {
    const auto found = spaces.find(d.space);
    if (found == spaces.end() || found->second.space_server != d.incarnation) return;
    auto& sp = found->second;
    sp.space_server = 0;
    sp.how = std::exchange(sp.is_stopped, false) ? std::string(detail::space_was_stopped) : why;
    sp.free_at = deadline_after(on_loop.now(), is_seen ? duration(0) : space_fence());
    if (!d.has_come() && !d.hello.executable.empty()) sp.failed = sp.started;
    logging::at(how.news, "head", "a namespace has no space server any more",
                {{"namespace", d.space}, {"why", why}});
}

SKEIN_INLINE void head::state::look_at_spaces() {
    for (auto& [name, sp] : spaces) {
        if (sp.space_server == 0) continue;
        const auto d = drivers.find(sp.space_server);
        if (d != drivers.end() && d->second->space == name) continue;
        sp.space_server = 0; // nobody has said how it ended
        sp.how = "it is not in the cluster any more";
        sp.free_at = deadline_after(on_loop.now(), space_fence());
    }
    const detail::head_space unknown;
    const auto space_of = [&](const std::string& name) -> const detail::head_space& {
        const auto found = spaces.find(name);
        return found == spaces.end() ? unknown : found->second;
    };
    std::vector<detail::head_driver*> gone;
    for (const auto& [number, d] : drivers) {
        if (!d->space.empty() && !d->ending && space_of(d->space).space_server != number)
            gone.push_back(d.get());
        if (d->session == nullptr) continue;
        std::erase_if(d->hello.visits, [&, job = d.get()](const visited_space& v) {
            const auto& sp = space_of(v.space);
            if (sp.space_server == v.space_server || (!sp.is_known && on_loop.now() < free_at(sp)))
                return false;
            job->session->tell(space_lost{v.space, v.space_server, sp.how});
            return true;
        });
    }
    for (auto* d : gone) {
        if (const auto s = std::exchange(d->session, nullptr)) {
            s->driver = nullptr;
            s->below->abort(error(errc::aborted, "its namespace does not count on it any more"));
        }
        leave(*d, job_end::lost);
    }
    constexpr std::chrono::seconds remembered{10}; // for those who wait for a start
    std::erase_if(spaces, [&](const auto& one) {
        const auto& sp = one.second;
        return sp.space_server == 0 && on_loop.now() >= deadline_after(free_at(sp), remembered);
    });
}

} // namespace skein::cluster
