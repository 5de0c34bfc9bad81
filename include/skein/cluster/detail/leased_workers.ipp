// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/leased_workers.hpp.

#include <skein/cluster/detail/cluster_link.hpp>
#include <skein/cluster/detail/leased_workers_state.hpp>
#include <skein/core/backoff.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/network.hpp>
#include <skein/proc/build_id.hpp>
#include <skein/rt/runtime.hpp>
#include <skein/rt/worker_link.hpp>

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster {

namespace detail {

[[nodiscard]] inline head_link_options link_of(const leased_workers_options& how,
                                               const rt::runtime& driver) {
    head_link_options o;
    o.head = how.head;
    o.secret = how.secret;
    o.name = how.name;
    o.host = driver.name().host;
    o.pid = driver.name().pid;
    o.incarnation = driver.incarnation();
    o.join_within = how.join_within;
    o.abandons = !how.space.empty();
    o.times = how.times;
    return o;
}

[[nodiscard]] inline driver_calls calls_of(const rt::runtime& driver) {
    const auto& now = driver.stats();
    return {now.submitted, now.done, now.failed};
}

/// The lease that a worker has, by its name; 0: none.
[[nodiscard]] inline std::uint64_t lease_number_of(std::string_view worker) {
    constexpr std::string_view start = "worker-";
    std::uint64_t number = 0;
    if (!worker.starts_with(start)) return 0;
    const auto* const last = worker.data() + worker.size();
    const auto [end, bad] = std::from_chars(worker.data() + start.size(), last, number);
    return bad == std::errc() && end == last ? number : 0;
}

} // namespace detail

SKEIN_INLINE leased_workers::state::state(loop& on, net::network& via, rt::runtime& of,
                                          leased_workers_options given)
    : on_loop(on), network(via), driver(of), how(std::move(given)),
      groups(of, head, *this, how.times.last_word / 8),
      head(on, via, detail::link_of(how, of), how.print, "workers", &stopping, *this, groups),
      spaces(on, via, head, of, {how.head, how.secret, how.times.space_enter}, &stopping),
      links(on, via, how.times), failures(how.start_within, how.times.child_restart_first),
      news(to_string(how.head)) {
    if (how.demand.empty()) how.demand.cpu = 1;
}

SKEIN_INLINE task<void> leased_workers::state::serve() {
    std::exception_ptr failure;
    try {
        fill();
        auto joining = head.serve();
        co_await joining;
    } catch (const error& e) {
        if (e.code() == errc::cancelled) {
            failure = std::current_exception();
        } else {
            give_up(e);
        }
    }
    if (failure) served.cancel();
    later.cancel();
    auto nothing = as_result(shield(later.join()));
    (void)co_await nothing;
    auto closed = groups.stop();
    co_await closed;
    // stop() has been called, or will be: the runtime's close() ends those that are served.
    if (door) {
        if (!failure) {
            auto waiting = as_result(detail::wait_for(&stopping));
            (void)co_await waiting;
        }
        door->close();
    }
    auto gone = as_result(shield(served.join()));
    (void)co_await gone;
    auto said =
        as_result(shield(head.output().hear_out(!failure && !gave_up, how.times.suspect_after)));
    (void)co_await said;
    head.tell_calls(detail::calls_of(driver));
    auto parted = shield(head.part());
    co_await parted;
    if (failure) std::rethrow_exception(failure);
}

/// For the head's numbers: once a second.
SKEIN_INLINE task<void> leased_workers::state::tell_calls(state* self) {
    while (!self->stopping.is_set()) {
        auto woken = self->stopping.wait_for(std::chrono::seconds(1));
        co_await woken;
        self->head.tell_calls(detail::calls_of(self->driver));
    }
}

/// Where workers connect: on this host alone if the head listens there alone.
SKEIN_INLINE void leased_workers::state::open_door() {
    rt::worker_link ours{detail::job_secret(how.secret, driver.incarnation())};
    ours.start = how.times.start_timeout;
    auto options = rt::worker_connection(driver, ours);
    options.bounds.close_deadline = how.times.shutdown_grace;
    auto at = how.listen;
    if (at.host.empty())
        at = detail::driver_door(head.link().notice().this_host_only, how.head, at.port);
    stores_at = at;
    if (stores_at.kind == net::scheme::tcp) stores_at.port = 0;
    net::acceptor_options bounds; // all workers of a cluster may come at once; they try again
    bounds.places = 64;
    bounds.places_per_address = 32;
    bounds.grace_to_prove = std::chrono::milliseconds(200); // for a driver that computes
    bounds.deadline = 2 * how.times.handshake_timeout;      // a start may take much longer
    door = std::make_unique<net::link_endpoint>(network, at, std::move(options),
                                                rt::worker_links(driver, how.times.worker_computes),
                                                net::link_table_bounds{65'536, 65'536}, bounds);
    served.spawn(links.watch(&stopping));
    served.spawn(tell_calls(this));
    served.spawn(
        door->serve([this](net::link::handle wire) { return serve_one(this, std::move(wire)); }));
}

SKEIN_INLINE void leased_workers::state::give_up(error why) {
    if (std::exchange(gave_up, true)) return;
    links.lose_cluster();
    spaces.give_up(why);
    if (!stopping.is_set()) driver.give_up(std::move(why));
    if (how.on_give_up) how.on_give_up();
}

// ---- the link to the head -----------------------------------------------------------------------

SKEIN_INLINE void leased_workers::state::on_waits(const lease_waits& m) {
    const auto found = leases.find(m.lease);
    if (found == leases.end()) return;
    if (m.is_held_up) return detail::worker_news::held_up(m.why);
    if (found->second->beside != 0) return refuse_beside(*found->second, m.why);
    found->second->why = m.why;
    if (!std::exchange(found->second->impossible, true)) fill();
    say_what_waits();
}

SKEIN_INLINE void leased_workers::state::on_cluster_changed(const cluster_changed& m) {
    cluster_cpus = m.cpus;
    cluster_nodes = m.nodes;
    if (head.is_asking()) fill();
}

SKEIN_INLINE driver_hello leased_workers::state::describe() {
    if (!door) open_door();
    knows_size = false;
    const auto& who = driver.name();
    driver_hello h;
    h.name = how.name;
    h.host = who.host;
    h.pid = who.pid;
    h.weight = how.weight;
    h.executable = how.executable;
    h.program = how.program;
    h.folder = how.folder;
    h.job = how.job;
    const auto at = door->local();
    h.address = how.advertise;
    const bool is_own = at.kind != net::scheme::tcp ||
                        (!how.listen.host.empty() && how.listen.host != "*" && !at.is_loopback());
    if (h.address.empty() && is_own) h.address = to_string(at);
    h.port = at.port;
    // What it says of namespaces: the one that is kept here, and those that are visited.
    h.build = proc::build_id();
    h.space = how.space;
    if (!how.space.empty())
        h.leases.push_back({space_server_lease, {}, how.space_node, {}, true, {}, {}});
    h.visits = spaces.all();
    return h;
}

SKEIN_INLINE void leased_workers::state::on_welcome(const driver_welcome& m) {
    cluster_cpus = m.cpus;
    cluster_nodes = m.nodes;
    knows_size = true;
    news.welcomed();
    fill();
}

// ---- leases -------------------------------------------------------------------------------------

SKEIN_INLINE std::string leased_workers::state::worker_of(std::uint64_t number) const {
    return fmt::format("worker-{}", number);
}

SKEIN_INLINE void leased_workers::state::on_granted(const lease_granted& m) {
    const auto found = leases.find(m.lease);
    if (found == leases.end()) return; // it was given back; the head hears so
    found->second->node = m.node;
    found->second->node_name = m.node_name;
    found->second->labels = m.labels;
    found->second->impossible = false;
    news.has_room(wish(*found->second));
    if (const auto wire = found->second->wire) driver.set_labels(*wire, m.labels);
    if (found->second->demand) fill(); // there may be room for one more
    ask_beside(*found->second);
    count_expected();
}

SKEIN_INLINE void leased_workers::state::on_ended(const lease_ended& m) {
    if (m.lease == space_server_lease && !how.space.empty())
        return give_up(
            error(errc::aborted, "the cluster does not count on this space server: " + m.how));
    const auto found = leases.find(m.lease);
    if (found == leases.end()) return;
    const auto l = found->second;
    l->how = m.how;
    l->end_told.set();
    if (l->wire) { // its last replies may be on the way
        later.spawn(cut_later(this, l));
        return;
    }
    if (l->beside != 0) return refuse_beside(*l, m.how);
    leases.erase(found);
    head.give_back(m.lease);
    count_expected();
    if (stopping.is_set()) return;
    if (m.of_node && !m.started) {
        failures.on_other_node(l->node_name, l->how);
        later.spawn(fill_later(this, how.times.child_restart_first));
        return;
    }
    if (refuse_own(*l, m.is_lasting)) return;
    const bool any = std::any_of(leases.begin(), leases.end(),
                                 [](const auto& one) { return one.second->wire != nullptr; });
    auto next = failures.failed({l->node_name, l->how, m.started}, any, on_loop.now());
    if (next.gives_up) return give_up(std::move(*next.gives_up));
    later.spawn(fill_later(this, next.pause));
}

SKEIN_INLINE void leased_workers::state::on_recalled(const lease_recalled& m) {
    if (m.lease == space_server_lease && !m.withdrawn)
        head.keep(m.lease, "the actors of its namespace cannot move");
    const auto found = leases.find(m.lease);
    if (found == leases.end() || stopping.is_set()) return;
    const auto l = found->second;
    l->is_withdrawn = m.withdrawn && l->retirement;
    if (m.withdrawn) return take_back_withdrawn();
    if (l->wire) {
        if (!std::exchange(l->retiring, true)) later.spawn(retire(this, l, m.why));
        head.leave(m.lease, false, "when the calls that run there have ended");
        return;
    }
    if (l->beside != 0) return refuse_beside(*l, m.why);
    leases.erase(found); // its worker has not come yet
    head.give_back(m.lease);
    later.spawn(fill_later(this, how.times.child_restart_first));
}

/// The process has ended, but its connection does not say so: the host has gone, or is cut off.
SKEIN_INLINE task<void> leased_workers::state::cut_later(state* self, lease_ptr l) {
    if (l->wire && l->wire->is_connected()) co_await sleep_for(self->how.times.last_word);
    if (l->wire) l->wire->abort(error(errc::peer_lost, l->how));
}

/// For a space server: another program, on which nothing runs.
SKEIN_INLINE task<void> leased_workers::state::serve_space_client(state* self,
                                                                  net::link::handle wire) {
    self->links.add_client(wire);
    std::exception_ptr failure;
    try {
        rt::worker_info info;
        info.is_space_client = true;
        auto served = self->driver.serve_worker(wire, {}, {}, info);
        co_await served;
    } catch (...) {
        failure = std::current_exception();
    }
    self->links.remove_client(wire);
    if (failure) std::rethrow_exception(failure);
}

/// A worker, from its handshake to the end of its lease.
SKEIN_INLINE task<void> leased_workers::state::serve_one(state* self, net::link::handle wire) {
    const bool is_space_client = wire->peer().name.starts_with(rt::space_client_name);
    if (is_space_client && !self->how.space.empty() && !self->stopping.is_set()) {
        auto served = serve_space_client(self, std::move(wire));
        co_await served;
        co_return;
    }
    const auto found = self->leases.find(detail::lease_number_of(wire->peer().name));
    const auto l = found == self->leases.end() ? nullptr : found->second;
    if (l == nullptr || l->wire != nullptr || l->end_told.is_set() || self->stopping.is_set()) {
        wire->abort(error(errc::refused, wire->peer_name() + " has no lease (any more)"));
        co_return;
    }
    const auto* const first = self->stands_beside(*l);
    if (l->beside != 0 && first == nullptr) {
        wire->abort(error(errc::refused, wire->peer_name() + ": its first process has ended"));
        co_return;
    }
    l->wire = wire;
    self->head.has_come(l->number);
    if (l->beside != 0) self->later.spawn(leave_when_idle(self, l));
    self->head.output().expect(l->number, l->node_name);
    self->links.add_worker(l->number, wire);
    self->failures.came(l->node_name);
    if (l->demand) self->demands.at(l->demand).failures = 0;
    std::exception_ptr failure;
    try {
        auto served = self->driver.serve_worker(
            std::move(wire), [self, l](const rt::peer&) { return how_it_ended(self, l); }, {},
            rt::worker_info{l->demand, l->labels, false, l->node == 0, first});
        co_await served;
    } catch (...) {
        failure = std::current_exception();
    }
    l->wire = nullptr;
    self->links.remove_worker(l->number);
    self->leases.erase(l->number);
    self->head.give_back(l->number);
    self->drop_beside(*l);
    self->fill();
    if (failure) std::rethrow_exception(failure);
}

/// As the head says; it hears it from the agent, at once if the process has ended.
SKEIN_INLINE task<std::string> leased_workers::state::how_it_ended(state* self, lease_ptr l) {
    const auto pid = l->wire ? l->wire->peer().pid : 0;
    const bool left = l->wire && l->wire->ending() == net::link_end::orderly;
    if (self->head.is_asking()) {
        auto told = l->end_told.wait_for(self->how.times.suspect_after);
        co_await told;
        auto printed = // its last words
            self->head.output().until_printed(self->how.times.exit_grace_stopping);
        co_await printed;
    }
    const auto workers_there = [&] {
        return static_cast<std::size_t>(
            std::count_if(self->leases.begin(), self->leases.end(),
                          [&](const auto& other) { return other.second->node == l->node; }));
    };
    if (!left && self->is_filling() && !l->ends_now)
        self->news.lost({l->number, l->node, l->node_name, pid, l->how}, workers_there);
    const bool of_its_process = l->how.starts_with("killed by") || l->how.starts_with("exited") ||
                                l->how.starts_with("it was ended after");
    co_return of_its_process && !l->node_name.empty()
        ? fmt::format("{} on {}", l->how, l->node_name)
        : l->how;
}

SKEIN_INLINE leased_workers::leased_workers(loop& on, net::network& via, rt::runtime& driver,
                                            leased_workers_options how)
    : state_(std::make_unique<state>(on, via, driver, std::move(how))) {}
SKEIN_INLINE leased_workers::~leased_workers() = default;
SKEIN_INLINE task<void> leased_workers::serve() { return state_->serve(); }
SKEIN_INLINE void leased_workers::stop() noexcept { state_->stopping.set(); }
SKEIN_INLINE void leased_workers::want(const rt::worker_demand& what) {
    state_->want_workers(what);
}
SKEIN_INLINE void leased_workers::want_group(const rt::worker_group& what) {
    state_->groups.want(what);
}
SKEIN_INLINE void leased_workers::drop_group(std::uint64_t number) { state_->groups.drop(number); }
SKEIN_INLINE void leased_workers::blocked(const net::channel& worker, bool on) {
    for (const auto& [number, l] : state_->leases) {
        if (l->wire.get() != &worker || l->beside != 0 || std::exchange(l->blocked, on) == on)
            continue;
        state_->head.set_blocked(number, on);
        state_->fill();
        return;
    }
}
SKEIN_INLINE void leased_workers::end_now(const net::channel& worker) {
    for (const auto& [number, l] : state_->leases) {
        if (l->wire.get() != &worker || std::exchange(l->ends_now, true)) continue;
        state_->head.end(number, true);
        return;
    }
}
SKEIN_INLINE bool leased_workers::want_beside(const net::channel& worker) {
    return state_->want_beside(worker);
}
SKEIN_INLINE std::optional<rt::store_meeting> leased_workers::stores() const {
    const auto& how = state_->how;
    if (!how.space.empty() || !how.advertise.empty()) return std::nullopt;
    return rt::store_meeting{detail::job_secret(how.secret, state_->driver.incarnation()),
                             state_->stores_at};
}
SKEIN_INLINE task<rt::space_place> leased_workers::find_space(std::string space,
                                                              std::uint64_t space_server) {
    return state_->spaces.find(std::move(space), space_server);
}
SKEIN_INLINE void leased_workers::serve_spaces_only() {
    if (state_->leases.empty() && !state_->door) state_->visits_only = true;
}
SKEIN_INLINE void leased_workers::need() {
    state_->visits_only = false;
    state_->fill();
}
SKEIN_INLINE std::size_t leased_workers::connected() const noexcept {
    std::size_t n = 0;
    for (const auto& [number, l] : state_->leases) n += l->wire != nullptr;
    return n;
}
SKEIN_INLINE std::size_t leased_workers::granted() const noexcept {
    std::size_t n = 0;
    for (const auto& [number, l] : state_->leases) n += l->node != 0;
    return n;
}
SKEIN_INLINE std::size_t leased_workers::wanted() const noexcept { return state_->leases.size(); }

} // namespace skein::cluster
