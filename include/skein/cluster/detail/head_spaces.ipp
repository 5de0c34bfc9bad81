// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/head.hpp: what namespaces ask for. A space server is a driver of its
// own that the head has started: its process is lease 0 of that driver.

#include <skein/cluster/detail/head_state.hpp>
#include <skein/cluster/detail/hello_checks.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>

#include <utility>

namespace skein::cluster {

SKEIN_INLINE void head::state::serve_spaces(net::request_service& of, const session_ptr& s) {
    spaces.serve(of, [weak = std::weak_ptr<detail::head_session>(s)]() -> std::uint64_t {
        const auto here = weak.lock();
        return here != nullptr && here->driver != nullptr ? here->driver->incarnation : 0;
    });
    of.on<ask_stop_space, stop_space_reply>([this](ask_stop_space m, const net::caller& who) {
        return [](state* self, ask_stop_space asked, std::string peer) -> task<stop_space_reply> {
            detail::check_version(asked.version, peer);
            logging::at(self->how.news, "head", "asked to end a namespace",
                        {{"namespace", asked.space}, {"by", peer}});
            auto out = self->spaces.stop(asked.space);
            self->leases.pump();
            co_return out;
        }(this, std::move(m), who.peer);
    });
}

SKEIN_INLINE std::optional<detail::space_drivers::driver_now> head::state::find_driver(
    std::uint64_t driver) const {
    const auto found = drivers.find(driver);
    if (found == drivers.end()) return std::nullopt;
    const auto& d = *found->second;
    return driver_now{&d.hello, &d.seen_from, d.has_come(), d.session != nullptr, d.holder->ending};
}

SKEIN_INLINE std::uint64_t head::state::make_server(const driver_hello& by) {
    auto incarnation = on_loop.random().next();
    while (incarnation == 0 || drivers.contains(incarnation)) incarnation = on_loop.random().next();
    auto& d = driver_of(incarnation);
    d.hello.name = d.holder->name = by.name;
    d.hello.executable = by.executable;
    d.hello.program = by.program;
    d.hello.folder = by.folder;
    d.hello.build = by.build;
    d.begun_by = by.job;
    d.key = {net::key_kind::space_server, incarnation};
    d.away_until = deadline_after(on_loop.now(), how.times.start_timeout);
    leases.schedule().set_weight(d.holder->id(), 1);
    return incarnation;
}

SKEIN_INLINE void head::state::start_server(std::uint64_t driver) {
    leases.want(*drivers.at(driver)->holder, {space_server_lease, {}, {}, true, {}, {}});
    leases.pump();
}

SKEIN_INLINE bool head::state::is_out_of_reach(std::uint64_t driver) const {
    const auto* const own = leases.find({driver, space_server_lease});
    return own != nullptr && own->state == detail::lease_state::expected;
}

SKEIN_INLINE std::uint32_t head::state::workers_of(std::uint64_t driver) const {
    std::uint32_t out = 0;
    for (const auto& [number, l] : drivers.at(driver)->holder->leases)
        out += number != space_server_lease ? 1U : 0U;
    return out;
}

SKEIN_INLINE void head::state::end_server(std::uint64_t driver, job_end as, const error& why) {
    auto& d = *drivers.at(driver);
    if (const auto s = std::exchange(d.session, nullptr)) {
        s->driver = nullptr;
        s->below->abort(why);
    }
    leave(d, as);
}

SKEIN_INLINE void head::state::tell_space_lost(std::uint64_t driver, const space_lost& news) {
    drivers.at(driver)->session->tell(news);
}

/// A node holds a space server's process. False: that of another one than the namespace has.
SKEIN_INLINE bool head::state::claim_space(const held_lease& held) {
    if (!spaces.claim(held.space, held.lease.driver)) return false;
    (void)driver_of(held.lease.driver);
    return true;
}

} // namespace skein::cluster
