// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/head.hpp: namespaces. Each has one keeper at most, a driver that the head has started: its
// process is lease 0 of its own job. What this head does not know of it must not take for free: one that was started
// again waits until a keeper that lives has come back, or surely lives no more.

#include <skein/cluster/detail/head_books.hpp>
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

SKEIN_INLINE void head::books::serve_spaces(net::request_service& of, const session_ptr& s) {
    const std::weak_ptr<detail::head_session> weak = s;
    of.on<enter_space, space_entered>([this, weak](enter_space m, const net::caller&) {
        return on_enter(this, weak.lock(), std::move(m));
    });
    of.on<ask_stop_space, stop_space_reply>([this](ask_stop_space m, const net::caller& who) {
        return [](books* self, ask_stop_space asked, std::string peer) -> task<stop_space_reply> {
            detail::check_version(asked.version, peer);
            logging::at(self->how.news, "head", "asked to end a namespace",
                        {{"namespace", asked.space}, {"by", peer}});
            co_return self->stop_space(asked.space);
        }(this, std::move(m), who.peer);
    });
}

/// Waits for the keeper, which it has started if there is none.
SKEIN_INLINE task<space_entered> head::books::on_enter(books* self, session_ptr s, enter_space m) {
    if (m.space.empty() || m.space.size() > detail::most_space_bytes)
        throw error(errc::malformed, fmt::format("a namespace of {} bytes", m.space.size()));
    std::uint64_t waits_for = 0; // which start
    for (;;) {
        if (s == nullptr || s->job == nullptr)
            throw error(errc::malformed,
                        "who asks for a namespace has not said which driver it is");
        if (self->over) throw error(errc::closed, "the cluster was stopped");
        self->check_exact(m);
        if (self->spaces.size() >= detail::most_spaces && !self->spaces.contains(m.space))
            throw error(errc::exhausted,
                        fmt::format("a cluster has {} namespaces at most", detail::most_spaces));
        auto& sp = self->spaces[m.space];
        if (waits_for != 0 && sp.failed == waits_for)
            throw error(
                errc::worker_lost,
                fmt::format("the keeper of namespace \"{}\" did not start: {}", m.space, sp.how))
                .with_hint(std::string(detail::start_hint));
        const auto kept = self->jobs.find(sp.keeper);
        if (sp.keeper == 0) {
            if (m.keeper == 0 && self->on_loop.now() >= self->free_at(sp))
                self->start_keeper(m.space, sp, s->job->hello);
        } else if (kept != self->jobs.end()) {
            const auto& k = *kept->second;
            if (k.hello.build != s->job->hello.build && !k.hello.executable.empty())
                throw error(errc::mismatch,
                            fmt::format("namespace \"{}\" is kept by another program or build: {} "
                                        "({}{})",
                                        m.space, k.hello.name, k.hello.executable,
                                        k.hello.host.empty() ? "" : " on " + k.hello.host))
                    .with_hint("run that program, or use another namespace; it ends a minute "
                               "after its last actor");
            if (k.session != nullptr && !k.ending) {
                auto& visits = s->job->hello.visits;
                std::erase_if(visits, [&](const auto& v) { return v.space == m.space; });
                visits.push_back({m.space, sp.keeper});
                co_return space_entered{
                    sp.keeper,
                    fmt::format("{} (pid {} at {})", k.hello.name, k.hello.pid, k.hello.host),
                    k.seen_from, k.hello.port, k.hello.address};
            }
        }
        waits_for = sp.started;
        co_await sleep_for(std::chrono::milliseconds(20));
    }
}

/// Who asks for one keeper and no other hears when that lives no more.
SKEIN_INLINE void head::books::check_exact(const enter_space& m) const {
    if (m.keeper == 0) return;
    const auto found = spaces.find(m.space);
    const detail::head_space unknown;
    const auto& sp = found == spaces.end() ? unknown : found->second;
    if (sp.keeper == m.keeper || (!sp.is_known && on_loop.now() < free_at(sp))) return;
    throw error(errc::worker_lost,
                fmt::format("the keeper of namespace \"{}\" was lost: {}", m.space,
                            sp.keeper != 0   ? "another one has taken its place"
                            : sp.how.empty() ? "it is not in the cluster any more"
                                             : sp.how));
}

/// Who visits that keeper hears of its end.
SKEIN_INLINE void head::books::tell_space_lost(const std::string& name, std::uint64_t keeper,
                                               const std::string& why) {
    for (const auto& [number, j] : jobs) {
        if (j->session == nullptr) continue;
        const auto gone = std::erase_if(j->hello.visits, [&](const visited_space& v) {
            return v.space == name && v.keeper == keeper;
        });
        if (gone > 0) j->session->tell(space_lost{name, keeper, why});
    }
}

/// Ends a keeper, and with it all of its actors. Another one can be had when its process has ended.
SKEIN_INLINE stop_space_reply head::books::stop_space(const std::string& name) {
    const auto found = spaces.find(name);
    const auto kept = found == spaces.end() ? jobs.end() : jobs.find(found->second.keeper);
    if (kept == jobs.end()) {
        name_list there;
        for (const auto& [other, sp] : spaces)
            if (sp.keeper != 0) there.add(other);
        const bool is_new = on_loop.now() < free_at(detail::head_space());
        throw error(errc::not_found, fmt::format("there is no namespace \"{}\" in this cluster; {}",
                                                 name, there.text("none has a keeper")))
            .with_hint(is_new ? "this head has just been started and may not know it yet: ask again"
                              : "skein status lists them");
    }
    auto& sp = found->second;
    auto& j = *kept->second;
    const auto own = j.leases.find(keeper_lease);
    if (own != j.leases.end() && own->second->state == detail::lease_state::expected)
        throw error(errc::peer_lost,
                    fmt::format("namespace \"{}\" cannot be ended now: the node of its keeper is "
                                "away",
                                name))
            .with_hint("ask again when it is back, or when it is lost");
    stop_space_reply out;
    for (const auto& [number, l] : j.leases) out.workers += number != keeper_lease ? 1U : 0U;
    sp.is_stopped = true;
    const auto keeper = sp.keeper;
    tell_space_lost(name, keeper, std::string(detail::space_was_stopped));
    if (const auto s = std::exchange(j.session, nullptr)) {
        s->job = nullptr;
        s->below->abort(error(errc::aborted, "its namespace was ended by skein stop"));
    }
    leave(j, job_end::stopped);
    pump();
    return out;
}

/// Of the program that asks first; its process is lease 0 of a job of its own.
SKEIN_INLINE void head::books::start_keeper(const std::string& name, detail::head_space& sp,
                                            const driver_hello& by) {
    auto incarnation = on_loop.random().next();
    while (incarnation == 0 || jobs.contains(incarnation)) incarnation = on_loop.random().next();
    auto& j = job_of(incarnation);
    j.space = name;
    j.hello.name = by.name;
    j.hello.executable = by.executable;
    j.hello.program = by.program;
    j.hello.folder = by.folder;
    j.hello.build = by.build;
    j.away_until = deadline_after(on_loop.now(), how.times.start_timeout);
    sp.keeper = incarnation;
    sp.is_known = true;
    ++sp.started;
    schedule.set_weight(j.id(), 1);
    logging::at(how.news, "head", "a namespace begins",
                {{"namespace", name}, {"program", by.name}});
    want(j, {keeper_lease, {}, {}, true, {}, {}});
    pump();
}

/// When a keeper may be started, if there is none.
SKEIN_INLINE time_point head::books::free_at(const detail::head_space& sp) const {
    if (sp.is_known) return sp.free_at;
    return deadline_after(since, is_restarted ? how.times.space_fence : how.times.space_settle);
}

/// A driver says that it is the keeper of a namespace.
SKEIN_INLINE void head::books::check_keeper(const std::string& space, std::uint64_t incarnation) {
    if (spaces.size() >= detail::most_spaces && !spaces.contains(space))
        throw error(errc::exhausted,
                    fmt::format("a cluster has {} namespaces at most", detail::most_spaces));
    auto& sp = spaces[space];
    if (sp.keeper == incarnation) return;
    if (sp.keeper != 0)
        throw error(errc::already_exists,
                    fmt::format("namespace \"{}\" has another keeper meanwhile", space));
    sp.keeper = incarnation;
    sp.is_known = true;
}

/// A node holds a keeper's process. False: that of another one than the namespace has.
SKEIN_INLINE bool head::books::claim_space(const held_lease& held) {
    const auto known = jobs.find(held.lease.driver);
    if (known != jobs.end() && !known->second->space.empty() && known->second->space != held.space)
        return false;
    auto& sp = spaces[held.space];
    if (sp.keeper == 0) {
        sp.keeper = held.lease.driver;
        sp.is_known = true;
    }
    if (sp.keeper != held.lease.driver) return false;
    job_of(sp.keeper).space = held.space;
    return true;
}

/// is_seen: its process has ended for sure.
SKEIN_INLINE void head::books::keeper_over(const detail::head_job& j, const std::string& why,
                                           bool is_seen) {
    const auto found = spaces.find(j.space);
    if (found == spaces.end() || found->second.keeper != j.incarnation) return;
    auto& sp = found->second;
    sp.keeper = 0;
    sp.how = std::exchange(sp.is_stopped, false) ? std::string(detail::space_was_stopped) : why;
    sp.free_at = deadline_after(on_loop.now(), is_seen ? duration(0) : how.times.space_fence);
    if (!j.has_come() && !j.hello.executable.empty()) sp.failed = sp.started;
    logging::at(how.news, "head", "a namespace has no keeper any more",
                {{"namespace", j.space}, {"why", why}});
}

SKEIN_INLINE void head::books::look_at_spaces() {
    for (auto& [name, sp] : spaces) {
        if (sp.keeper == 0) continue;
        const auto j = jobs.find(sp.keeper);
        if (j != jobs.end() && j->second->space == name) continue;
        sp.keeper = 0; // nobody has said how it ended
        sp.how = "it is not in the cluster any more";
        sp.free_at = deadline_after(on_loop.now(), how.times.space_fence);
    }
    const detail::head_space unknown;
    const auto space_of = [&](const std::string& name) -> const detail::head_space& {
        const auto found = spaces.find(name);
        return found == spaces.end() ? unknown : found->second;
    };
    std::vector<detail::head_job*> gone;
    for (const auto& [number, j] : jobs) {
        if (!j->space.empty() && !j->ending && space_of(j->space).keeper != number)
            gone.push_back(j.get());
        if (j->session == nullptr) continue;
        std::erase_if(j->hello.visits, [&, job = j.get()](const visited_space& v) {
            const auto& sp = space_of(v.space);
            if (sp.keeper == v.keeper || (!sp.is_known && on_loop.now() < free_at(sp)))
                return false;
            job->session->tell(space_lost{v.space, v.keeper, sp.how});
            return true;
        });
    }
    for (auto* j : gone) {
        if (const auto s = std::exchange(j->session, nullptr)) {
            s->job = nullptr;
            s->below->abort(error(errc::aborted, "its namespace does not count on it any more"));
        }
        leave(*j, job_end::lost);
    }
    constexpr std::chrono::seconds remembered{10}; // for those who wait for a start
    std::erase_if(spaces, [&](const auto& one) {
        const auto& sp = one.second;
        return sp.keeper == 0 && on_loop.now() >= deadline_after(free_at(sp), remembered);
    });
}

} // namespace skein::cluster
