// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of cluster/detail/namespaces.hpp.

#include <skein/cluster/detail/cluster_link.hpp>
#include <skein/core/known_names.hpp>
#include <skein/core/sleep.hpp>

#include <algorithm>
#include <chrono>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster::detail {

inline constexpr std::string_view space_was_stopped = "it was ended by skein stop";

SKEIN_INLINE void namespaces::serve(net::request_service& service,
                                    std::function<std::uint64_t()> asker) {
    service.on<enter_space, space_entered>(
        [this, asker = std::move(asker)](enter_space m, const net::caller&) {
            return enter(this, asker, std::move(m));
        });
}

// ---- visitors -----------------------------------------------------------------------------------

/// Waits for the space server, which it has started if there is none.
SKEIN_INLINE task<space_entered> namespaces::enter(namespaces* self,
                                                   std::function<std::uint64_t()> asker,
                                                   enter_space m) {
    if (m.space.empty() || m.space.size() > most_space_bytes)
        throw error(errc::malformed, fmt::format("a namespace of {} bytes", m.space.size()));
    std::uint64_t waits_for = 0; // which start
    for (;;) {
        const auto driver = asker();
        if (driver == 0)
            throw error(errc::malformed,
                        "who asks for a namespace has not said which driver it is");
        if (self->drivers_.is_closed()) throw error(errc::closed, "the cluster was stopped");
        self->check_exact(m);
        self->check_room(m.space);
        auto& space = self->by_name_[m.space];
        if (waits_for != 0 && space.failed == waits_for)
            throw error(errc::worker_lost,
                        fmt::format("the space server of namespace \"{}\" did not start: {}",
                                    m.space, space.why))
                .with_hint(std::string(start_hint));
        if (auto there = self->entered(m, space, driver)) co_return std::move(*there);
        waits_for = space.started;
        co_await sleep_for(std::chrono::milliseconds(20));
    }
}

/// Nothing: a driver has to wait for the space server, which begins to start if there is none.
SKEIN_INLINE std::optional<space_entered> namespaces::entered(const enter_space& m, entry& space,
                                                              std::uint64_t driver) {
    const auto by = drivers_.find_driver(driver);
    if (!by) return std::nullopt;
    if (space.server == 0) {
        if (m.space_server == 0 && loop_.now() >= free_at(space)) start(m.space, space, *by->hello);
        return std::nullopt;
    }
    const auto server = drivers_.find_driver(space.server);
    if (!server) return std::nullopt;
    const auto& hello = *server->hello;
    if (hello.build != by->hello->build && !hello.executable.empty())
        throw error(errc::mismatch,
                    fmt::format("namespace \"{}\" is kept by another program or build: {} "
                                "({}{})",
                                m.space, hello.name, hello.executable,
                                hello.host.empty() ? "" : " on " + hello.host))
            .with_hint("run that program, or use another namespace; it ends a minute "
                       "after its last actor");
    if (!server->is_connected || server->is_ending) return std::nullopt;
    auto& visits = visits_[driver];
    std::erase_if(visits, [&](const auto& v) { return v.space == m.space; });
    visits.push_back({m.space, space.server});
    return space_entered{space.server,
                         fmt::format("{} (pid {} at {})", hello.name, hello.pid, hello.host),
                         *server->seen_from,
                         hello.port,
                         hello.address,
                         options_.secret_for ? options_.secret_for(driver, space.server)
                                             : byte_buffer()};
}

/// Who asks for one space server and no other hears when that lives no more.
SKEIN_INLINE void namespaces::check_exact(const enter_space& m) const {
    if (m.space_server == 0) return;
    const auto found = by_name_.find(m.space);
    const entry unknown;
    const auto& space = found == by_name_.end() ? unknown : found->second;
    if (space.server == m.space_server || (!space.is_known && loop_.now() < free_at(space))) return;
    throw error(errc::worker_lost,
                fmt::format("the space server of namespace \"{}\" was lost: {}", m.space,
                            space.server != 0   ? "another one has taken its place"
                            : space.why.empty() ? "it is not in the cluster any more"
                                                : space.why));
}

/// Visitors of that space server hear of its end.
SKEIN_INLINE void namespaces::tell_lost(const std::string& name, std::uint64_t server,
                                        const std::string& why) {
    for (auto& [driver, visits] : visits_) {
        const auto visitor = drivers_.find_driver(driver);
        if (!visitor || !visitor->is_connected) continue;
        const auto gone = std::erase_if(visits, [&](const visited_space& v) {
            return v.space == name && v.space_server == server;
        });
        if (gone > 0) drivers_.tell_space_lost(driver, {name, server, why});
    }
}

// ---- space servers ------------------------------------------------------------------------------

SKEIN_INLINE void namespaces::start(const std::string& name, entry& space, const driver_hello& by) {
    const auto program = by.name;
    const auto driver = drivers_.make_server(by);
    names_[driver] = name;
    space.server = driver;
    space.is_known = true;
    ++space.started;
    logging::at(options_.news, "head", "a namespace begins",
                {{"namespace", name}, {"program", program}});
    drivers_.start_server(driver);
}

SKEIN_INLINE stop_space_reply namespaces::stop(const std::string& name) {
    const auto found = by_name_.find(name);
    if (found == by_name_.end() || !drivers_.find_driver(found->second.server)) {
        name_list there;
        for (const auto& [other, space] : by_name_)
            if (space.server != 0) there.add(other);
        const bool is_new = loop_.now() < free_at(entry());
        throw error(errc::not_found, fmt::format("there is no namespace \"{}\" in this cluster; {}",
                                                 name, there.text("none has a space server")))
            .with_hint(is_new ? "this head has just been started and may not know it yet: ask again"
                              : "skein status lists them");
    }
    auto& space = found->second;
    const auto server = space.server;
    if (drivers_.is_out_of_reach(server))
        throw error(
            errc::peer_lost,
            fmt::format("namespace \"{}\" cannot be ended now: the node of its space server is "
                        "away",
                        name))
            .with_hint("ask again when it is back, or when it is lost");
    stop_space_reply out;
    out.workers = drivers_.workers_of(server);
    space.is_stopped = true;
    tell_lost(name, server, std::string(space_was_stopped));
    drivers_.end_server(server, job_end::stopped,
                        error(errc::aborted, "its namespace was ended by skein stop"));
    return out;
}

SKEIN_INLINE time_point namespaces::free_at(const entry& space) const {
    if (space.is_known) return space.free_at;
    return deadline_after(begun_, had_head_ ? options_.fence : options_.settle);
}

SKEIN_INLINE void namespaces::check_room(const std::string& name) const {
    if (by_name_.size() >= most_spaces && !by_name_.contains(name))
        throw error(errc::exhausted,
                    fmt::format("a cluster has {} namespaces at most", most_spaces));
}

SKEIN_INLINE void namespaces::check(const std::string& name, std::uint64_t driver) {
    check_room(name);
    auto& space = by_name_[name];
    if (space.server == driver) return;
    if (space.server != 0)
        throw error(errc::already_exists,
                    fmt::format("namespace \"{}\" has another space server meanwhile", name));
    space.server = driver;
    space.is_known = true;
}

SKEIN_INLINE void namespaces::came(std::uint64_t driver, const std::string& name,
                                   std::vector<visited_space> visits) {
    if (name.empty())
        names_.erase(driver);
    else
        names_[driver] = name;
    visits_[driver] = std::move(visits);
}

SKEIN_INLINE bool namespaces::claim(const std::string& name, std::uint64_t driver) {
    if (const auto& known = name_of(driver); !known.empty() && known != name) return false;
    auto& space = by_name_[name];
    if (space.server == 0) {
        space.server = driver;
        space.is_known = true;
    }
    if (space.server != driver) return false;
    names_[driver] = name;
    return true;
}

SKEIN_INLINE void namespaces::over(std::uint64_t driver, const std::string& why, bool is_seen) {
    const auto& name = name_of(driver);
    const auto found = by_name_.find(name);
    if (found == by_name_.end() || found->second.server != driver) return;
    auto& space = found->second;
    space.server = 0;
    space.why = std::exchange(space.is_stopped, false) ? std::string(space_was_stopped) : why;
    space.free_at = deadline_after(loop_.now(), is_seen ? duration(0) : options_.fence);
    const auto server = drivers_.find_driver(driver);
    if (server && !server->has_come && !server->hello->executable.empty())
        space.failed = space.started;
    logging::at(options_.news, "head", "a namespace has no space server any more",
                {{"namespace", name}, {"why", why}});
}

SKEIN_INLINE void namespaces::forget_driver(std::uint64_t driver) {
    names_.erase(driver);
    visits_.erase(driver);
}

SKEIN_INLINE const std::string& namespaces::name_of(std::uint64_t driver) const {
    static const std::string none;
    const auto found = names_.find(driver);
    return found == names_.end() ? none : found->second;
}

// ---- what time brings ---------------------------------------------------------------------------

SKEIN_INLINE bool namespaces::is_lost(const visited_space& visit) const {
    const auto found = by_name_.find(visit.space);
    const entry unknown;
    const auto& space = found == by_name_.end() ? unknown : found->second;
    return space.server != visit.space_server && (space.is_known || loop_.now() >= free_at(space));
}

SKEIN_INLINE void namespaces::look() {
    for (auto& [name, space] : by_name_) {
        if (space.server == 0 || name_of(space.server) == name) continue;
        space.server = 0; // nobody has said how it ended
        space.why = "it is not in the cluster any more";
        space.free_at = deadline_after(loop_.now(), options_.fence);
    }
    for (auto& [driver, visits] : visits_) {
        const auto visitor = drivers_.find_driver(driver);
        if (!visitor || !visitor->is_connected) continue;
        std::erase_if(visits, [&, to = driver](const visited_space& v) {
            if (!is_lost(v)) return false;
            const auto found = by_name_.find(v.space);
            drivers_.tell_space_lost(
                to, {v.space, v.space_server, found == by_name_.end() ? "" : found->second.why});
            return true;
        });
    }
    std::vector<std::uint64_t> gone;
    for (const auto& [driver, name] : names_) {
        const auto server = drivers_.find_driver(driver);
        const auto found = by_name_.find(name);
        const bool is_counted_on = found != by_name_.end() && found->second.server == driver;
        if (server && !server->is_ending && !is_counted_on) gone.push_back(driver);
    }
    for (const auto driver : gone)
        drivers_.end_server(driver, job_end::lost,
                            error(errc::aborted, "its namespace does not count on it any more"));
    constexpr std::chrono::seconds remembered{10}; // for those who wait for a start
    std::erase_if(by_name_, [&](const auto& one) {
        const auto& space = one.second;
        return space.server == 0 && loop_.now() >= deadline_after(free_at(space), remembered);
    });
}

} // namespace skein::cluster::detail
