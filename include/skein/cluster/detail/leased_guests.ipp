// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/leased_workers.hpp: this driver as a guest of namespaces, and, where it keeps one itself,
// its guests. A guest is a second runtime on the driver's loop: a worker of the keeper on which nothing runs.

#include <skein/cluster/detail/leased_workers_books.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/rt/build_id.hpp>
#include <skein/rt/runtime.hpp>
#include <skein/rt/worker_link.hpp>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster {

inline constexpr std::string_view guest_name = "guest-";

/// Who asks first starts the way there; it goes on also if he does not wait for it.
SKEIN_INLINE task<rt::runtime*> leased_workers::books::enter(books* self, std::string space) {
    if (const auto last = self->visits[space];
        last && last->settled.is_set() && last->wire && !last->wire->is_open()) {
        auto ending = detail::wait_for(&last->over);
        co_await ending;
    }
    auto& known = self->visits[space];
    if (known != nullptr && known->is_over) {
        if (known->self) self->past_visits.push_back(known);
        known = nullptr;
    }
    if (known == nullptr) {
        if (self->stopping.is_set())
            throw error(errc::closed, "a namespace was asked for while the program ends");
        known = std::make_shared<visit>();
        known->space = space;
        const task_context::use none(nullptr); // it belongs to nobody who asks
        self->visiting.spawn(reach(self, known));
    }
    const auto v = known;
    auto waiting = detail::wait_for(&v->settled);
    co_await waiting;
    if (v->failed) throw *v->failed;
    co_return v->self.get();
}

/// From the first question to the end of the visit.
SKEIN_INLINE task<void> leased_workers::books::reach(books* self, visit_ptr v) {
    const auto last = deadline_after(self->on_loop.now(), self->how.times.space_enter);
    std::string why = "the head was not reached";
    duration pause = std::chrono::milliseconds(5);
    try {
        while (!v->settled.is_set()) {
            if (self->gave_up) throw *self->gave_up_why;
            if (self->stopping.is_set()) throw error(errc::closed, "the program ends");
            if (self->on_loop.now() >= last)
                throw error(errc::timeout,
                            fmt::format("namespace \"{}\" was not reached within {:.0f} s: {}",
                                        v->space, to_seconds(self->how.times.space_enter), why));
            if (self->is_joined()) {
                auto trying = as_result(try_once(self, v));
                const auto tried = co_await trying;
                if (!tried) {
                    const auto code = tried.error().code();
                    const bool is_final = detail::is_final(code) || code == errc::worker_lost ||
                                          code == errc::exhausted || code == errc::cancelled;
                    if (is_final) throw tried.error();
                    why = tried.error().what();
                }
            }
            if (v->wire != nullptr) {
                auto living = live(self, v);
                co_await living;
                if (v->settled.is_set()) co_return;
                v->self.reset(); // its keeper was just ending: the next one
                why = "its keeper has ended";
            }
            auto waiting = detail::wait_at_most(&self->stopping, pause);
            co_await waiting;
            pause = std::min<duration>(2 * pause, std::chrono::milliseconds(200));
        }
    } catch (...) {
        if (v->settled.is_set()) co_return;
        v->failed = to_error(std::current_exception());
        v->is_over = true;
        v->over.set();
        v->settled.set();
    }
}

SKEIN_INLINE task<void> leased_workers::books::try_once(books* self, visit_ptr v) {
    auto asking = with_timeout(self->head.ask<space_entered>(enter_space{v->space}),
                               self->how.times.space_enter);
    const auto there = co_await asking;
    net::address at;
    if (!there.address.empty()) {
        auto read = net::address::parse(there.address);
        if (!read) throw read.error();
        at = *read;
    } else {
        at = net::address::tcp(there.host.empty() ? self->how.head.host : there.host, there.port);
    }
    rt::runtime_options who;
    who.name = fmt::format("{}{}", guest_name, self->how.name);
    who.host = self->driver.name().host;
    who.pid = self->driver.name().pid;
    while (who.incarnation == 0) who.incarnation = self->on_loop.random().next();
    auto made = std::make_unique<rt::runtime>(who);
    rt::worker_link ours{detail::job_secret(self->how.secret, there.keeper)};
    ours.start = self->how.times.handshake_timeout;
    made->open_to_workers(self->network, ours.secret, {}, {}); // it calls, and is not called
    auto links = rt::worker_links(*made, self->how.times.worker_resume);
    links.first.max_tries = 3;
    auto dialling =
        net::link::connect(self->network, at, rt::worker_connection(*made, ours), std::move(links));
    auto wire = co_await dialling;
    v->keeper = there.keeper;
    v->self = std::move(made);
    v->wire = std::move(wire);
}

SKEIN_INLINE task<void> leased_workers::books::live(books* self, visit_ptr v) {
    if (self->stopping.is_set()) // leave_spaces() may have looked already
        v->wire->abort(error(errc::closed, "the program ends"));
    v->how.clear();
    v->told.reset();
    auto visited = as_result(v->self->visit(
        v->wire, v->space, [v = v.get()] { v->settled.set(); },
        [self, v = v.get()](const rt::peer&) {
            return how_it_ended(self, v->shared_from_this());
        }));
    (void)co_await visited;
    if (v->settled.is_set()) {
        v->is_over = true;
        v->over.set();
    }
    auto closed = shield(v->wire->close());
    co_await closed;
    v->wire = nullptr;
}

/// As the head says; it hears it from the agent.
SKEIN_INLINE task<std::string> leased_workers::books::how_it_ended(books* self, visit_ptr v) {
    if (!self->is_joined()) co_return std::string();
    auto told = detail::wait_at_most(&v->told, self->how.times.suspect_after);
    co_await told;
    co_return v->how;
}

SKEIN_INLINE void leased_workers::books::on_space_lost(const space_lost& m) {
    const auto found = visits.find(m.space);
    if (found == visits.end() || found->second->keeper != m.keeper) return;
    const auto& v = found->second;
    v->how = m.how;
    v->told.set();
    if (v->wire && !v->wire->is_connected()) v->wire->abort(error(errc::peer_lost, m.how));
}

/// The program ends: says goodbye to keepers.
SKEIN_INLINE task<void> leased_workers::books::leave_spaces(books* self) {
    std::vector<net::link::handle> open;
    for (const auto& [space, v] : self->visits)
        if (v->wire) open.push_back(v->wire);
    for (const auto& wire : open) {
        if (!wire->is_connected()) wire->abort(error(errc::closed, "the program has ended"));
        auto closing = wire->close();
        co_await closing;
    }
    auto gone = as_result(self->visiting.join());
    (void)co_await gone;
}

/// What a hello says of namespaces: the one that is kept here, and those that are visited.
SKEIN_INLINE void leased_workers::books::tell_spaces(driver_hello& h) const {
    h.again = head.was_welcomed();
    h.build = rt::build_id();
    h.space = how.space;
    if (!how.space.empty())
        h.leases.push_back({keeper_lease, {}, how.space_node, {}, true, {}, {}});
    for (const auto& [space, v] : visits)
        if (v->wire && !v->is_over) h.visits.push_back({space, v->keeper});
}

SKEIN_INLINE task<rt::runtime*> leased_workers::enter(std::string space) {
    // Called before serve(): then that gets no workers until need().
    if (books_->leases.empty() && !books_->door) books_->visits_only = true;
    return books::enter(books_.get(), std::move(space));
}
SKEIN_INLINE void leased_workers::need() {
    books_->visits_only = false;
    books_->fill();
}

// ---- a keeper's guests ---------------------------------------------------------------------------------------

SKEIN_INLINE task<void> leased_workers::books::serve_guest(books* self, net::link::handle wire) {
    self->guests.push_back({wire, {}});
    std::exception_ptr failure;
    try {
        rt::worker_room room;
        room.is_guest = true;
        auto served = self->driver.serve_worker(wire, {}, {}, room);
        co_await served;
    } catch (...) {
        failure = std::current_exception();
    }
    std::erase_if(self->guests, [&](const auto& one) { return one.wire == wire; });
    if (failure) std::rethrow_exception(failure);
}

/// One that has not come back for long is gone: nobody else tells so.
SKEIN_INLINE void leased_workers::books::look_at_guests(time_point now) {
    for (auto& one : guests) {
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
