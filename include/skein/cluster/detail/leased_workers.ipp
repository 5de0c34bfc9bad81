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

SKEIN_INLINE leased_workers::state::state(loop& on, net::network& via, rt::runtime& of,
                                          leased_workers_options given)
    : on_loop(on), network(via), driver(of), how(std::move(given)),
      head(on, via, link_options(), how.print, "workers", &stopping, *this) {
    if (how.demand.empty()) how.demand.cpu = 1;
}

SKEIN_INLINE detail::head_link_options leased_workers::state::link_options() {
    detail::head_link_options o;
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
    tell_calls_now();
    auto parted = shield(head.part());
    co_await parted;
    if (failure) std::rethrow_exception(failure);
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
    net::acceptor_options bounds; // all workers of a cluster may come at once; they try again
    bounds.places = 64;
    bounds.places_per_address = 32;
    bounds.grace_to_prove = std::chrono::milliseconds(200); // for a driver that computes
    bounds.deadline = 2 * how.times.handshake_timeout;      // a start may take much longer
    door = std::make_unique<net::link_endpoint>(network, at, std::move(options),
                                                rt::worker_links(driver, how.times.worker_computes),
                                                net::link_table_bounds{65'536, 65'536}, bounds);
    served.spawn(watch_broken(this));
    served.spawn(tell_calls(this));
    served.spawn(
        door->serve([this](net::link::handle wire) { return serve_one(this, std::move(wire)); }));
}

SKEIN_INLINE void leased_workers::state::give_up(error why) {
    if (std::exchange(gave_up, true)) return;
    gave_up_why = why;
    if (!stopping.is_set()) driver.give_up(std::move(why));
    if (how.on_give_up) how.on_give_up();
}

// ---- the link to the head -----------------------------------------------------------------------

SKEIN_INLINE void leased_workers::state::on_waits(const lease_waits& m) {
    const auto found = leases.find(m.lease);
    if (found == leases.end()) return;
    if (m.is_held_up) return say_held_up(m.why);
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
    h.visits = visits;
    return h;
}

SKEIN_INLINE want_lease leased_workers::state::wish(const lease& l) const {
    if (l.beside != 0) return {l.number, {}, l.where, true, {}, {}, {}}; // it takes no room there
    if (!l.demand) return {l.number, sched::to_string(how.demand), {}, false, {}, {}, {}};
    const auto& own = demands.at(l.demand);
    const auto& env = own.what.env;
    return {l.number,   own.text, own.what.label, true, sched::variables_as_text(env),
            env.folder, {}};
}

SKEIN_INLINE void leased_workers::state::on_welcome(const driver_welcome& m) {
    cluster_cpus = m.cpus;
    cluster_nodes = m.nodes;
    knows_size = nodes_return = true;
    fill();
}

// ---- leases -------------------------------------------------------------------------------------

SKEIN_INLINE std::size_t leased_workers::state::target() const noexcept {
    if (visits_only || !how.space.empty()) return 0;
    const auto each = std::max<std::int64_t>(how.demand.cpu.in_steps(), sched::amount::steps);
    std::int64_t own = 0; // cpus of leases for one demand
    bool any_own = false;
    // Who waits for calls that it has made must get them done, before others of its kind may have
    // the room.
    const bool any_blocked = std::any_of(leases.begin(), leases.end(),
                                         [](const auto& one) { return one.second->blocked; });
    for (const auto& [number, l] : leases) {
        if (!l->demand || demands.at(l->demand).what.group != 0) continue; // see group_cpus()
        if (l->blocked || l->impossible || (any_blocked && l->node == 0)) continue;
        any_own = true;
        own += demands.at(l->demand).what.need.cpu.in_steps();
    }
    own += group_cpus(any_blocked);
    any_own = any_own || own > 0;
    const auto all = static_cast<std::int64_t>(cluster_cpus) * sched::amount::steps;
    auto fitting = (std::max<std::int64_t>(all - own, 0)) / each;
    if (how.workers > 0)
        fitting = std::min<std::int64_t>(how.workers, any_own ? fitting : how.workers);
    return static_cast<std::size_t>(
        std::clamp<std::int64_t>(fitting, any_own ? 0 : 1, how.most_workers));
}

/// Leases for all tasks. One that is given back when what its tasks wait for has ended needs
/// another in its place: what they wait for may have no other worker to run on.
SKEIN_INLINE std::size_t leased_workers::state::shared() const noexcept {
    return static_cast<std::size_t>(
        std::count_if(leases.begin(), leases.end(), [](const auto& one) {
            return one.second->is_shared() && !one.second->blocked;
        }));
}

/// Asks for what is missing, and takes back what was asked for in vain.
SKEIN_INLINE void leased_workers::state::fill() {
    if (stopping.is_set() || gave_up) return;
    for (auto& [demand, one] : demands) fill_own(one);
    auto have = shared();
    for (const auto wanted = target(); have < wanted; ++have) {
        auto l = std::make_shared<lease>();
        l->number = ++last_number;
        leases.emplace(l->number, l);
        want(l);
    }
    for (auto at = leases.end(); have > target() && at != leases.begin();) {
        --at;
        if (at->second->node != 0 || at->second->wire || !at->second->is_shared()) continue;
        --have;
        const auto l = at->second;
        at = leases.erase(at);
        head.give_back(l->number);
    }
    take_back_withdrawn();
    count_expected();
    say_what_waits();
}

/// What waits for this demand has changed.
SKEIN_INLINE void leased_workers::state::want_workers(const rt::worker_demand& what) {
    auto& own = demands[what.demand];
    if (own.text.empty()) own.text = sched::to_string(what.need);
    own.what = what;
    own.idle_since = on_loop.now();
    if (!stopping.is_set()) fill();
}

/// One lease of a demand is asked for at a time; those above what is wanted go when they have been
/// idle for a while.
SKEIN_INLINE void leased_workers::state::fill_own(own_leases& own) {
    std::size_t all = 0;
    std::vector<lease_ptr> waiting;
    for (const auto& [number, l] : leases) {
        if (l->demand != own.what.demand) continue;
        ++all;
        if (l->node == 0 && !l->wire)
            waiting.push_back(l); // its worker may be before the news of it
    }
    if (own.what.wanted > all && waiting.empty()) {
        auto l = std::make_shared<lease>();
        l->number = ++last_number;
        l->demand = own.what.demand;
        leases.emplace(l->number, l);
        want(l);
    }
    for (; !waiting.empty() && all > own.what.wanted; waiting.pop_back(), --all) {
        leases.erase(waiting.back()->number);
        head.give_back(waiting.back()->number);
    }
    if (all > own.what.wanted && !std::exchange(own.watched, true))
        later.spawn(release_idle(this, own.what.demand));
}

SKEIN_INLINE task<void> leased_workers::state::release_idle(state* self, sched::demand_id demand) {
    auto& own = self->demands.at(demand);
    for (;;) {
        const auto due = deadline_after(own.idle_since, self->how.times.idle_worker);
        if (self->on_loop.now() < due) {
            co_await sleep_for(due - self->on_loop.now());
            continue;
        }
        std::size_t all = 0;
        lease_ptr last;
        for (const auto& [k, l] : self->leases) {
            if (l->demand != demand) continue;
            ++all;
            if (l->wire && !l->retiring && self->driver.is_idle(l->wire)) last = l;
        }
        if (all <= own.what.wanted) break;
        if (!last) { // the calls there have not ended for all they are not counted: cancelled ones
            co_await sleep_for(self->how.times.idle_worker);
            continue;
        }
        last->retiring = true;
        auto going = retire(self, last, "nothing waits for it");
        co_await going;
        co_await sleep_for(self->how.times.last_word);
    }
    own.watched = false;
}

SKEIN_INLINE void leased_workers::state::want(const lease_ptr& l) { head.want(wish(*l)); }

SKEIN_INLINE std::string leased_workers::state::worker_of(std::uint64_t number) const {
    return fmt::format("worker-{}", number);
}

/// New actors wait for workers that are about to come.
SKEIN_INLINE void leased_workers::state::count_expected() {
    std::size_t n = 0;
    for (const auto& [number, l] : leases) n += l->node != 0 && l->is_shared();
    driver.expect_workers(n);
}

SKEIN_INLINE void leased_workers::state::on_granted(const lease_granted& m) {
    const auto found = leases.find(m.lease);
    if (found == leases.end()) return; // it was given back; the head hears so
    found->second->node = m.node;
    found->second->node_name = m.node_name;
    found->second->labels = m.labels;
    found->second->impossible = false;
    if (const auto k = wish(*found->second); !said_why.empty())
        said_why.erase(k.demand + ' ' + k.label);
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
    if (m.of_node && !m.started) return on_other_node(*l);
    on_failed_start(l, m.is_lasting, m.started);
}

namespace detail {

/// How the text begins that says why; on which node, if it is known.
[[nodiscard]] inline std::string failed_start_text(const std::string& node) {
    return fmt::format("a worker did not start{}{}: ", node.empty() ? "" : " on ", node);
}

} // namespace detail

/// Its worker has ended before it came.
SKEIN_INLINE void leased_workers::state::on_failed_start(const lease_ptr& l, bool is_lasting,
                                                         bool has_run) {
    count_expected();
    if (stopping.is_set() || refuse_own(*l, is_lasting)) return;
    if (++failed_starts == 1) first_failure = on_loop.now();
    const auto reason = detail::failed_start_text(l->node_name) + l->how;
    const bool no_folder = l->how.find("change to its folder") != l->how.npos;
    const auto hint = no_folder ? detail::folder_hint
                      : has_run ? detail::ended_hint
                                : detail::start_hint;
    const bool is_counted = said_failures.size() < most_said || said_failures.contains(reason);
    const auto times = ++said_failures[is_counted ? reason : std::string()];
    if (std::has_single_bit(times)) // ever fewer of many
        logging::warn("cluster", reason, {{"times", times}, {"hint", hint}});
    const bool any = std::any_of(leases.begin(), leases.end(),
                                 [](const auto& one) { return one.second->wire != nullptr; });
    constexpr int most_failures = 3;
    if (!any && failed_starts >= most_failures &&
        on_loop.now() >= deadline_after(first_failure, how.start_within))
        return give_up(error(errc::worker_lost, reason).with_hint(std::string(hint)));
    const auto pause =
        pause_after(failed_starts + 1, how.times.child_restart_first, how.start_within / 4);
    later.spawn(fill_later(this, pause));
}

/// With the environment that its tasks ask for: what cannot be had, or has not been three times, is
/// no use to wait for.
SKEIN_INLINE bool leased_workers::state::refuse_own(const lease& l, bool is_lasting) {
    const auto found = demands.find(l.demand);
    if (found == demands.end() || found->second.what.env.empty()) return false;
    auto& own = found->second;
    constexpr int most_failures = 3;
    const bool no_folder = is_lasting && !own.what.env.folder.empty();
    if (++own.failures < most_failures && !no_folder) return false;
    own.failures = 0;
    error why(no_folder ? errc::not_found : errc::worker_lost,
              detail::failed_start_text(l.node_name) + l.how);
    if (no_folder)
        why.with_hint(std::string(detail::folder_hint));
    else
        why.with_hint(std::string(detail::start_hint));
    driver.refuse_demand(l.demand, why);
    return true;
}

SKEIN_INLINE task<void> leased_workers::state::fill_later(state* self, duration pause) {
    co_await sleep_for(pause);
    self->fill();
}

/// The process has ended, but its connection does not say so: the host has gone, or is cut off.
SKEIN_INLINE task<void> leased_workers::state::cut_later(state* self, lease_ptr l) {
    if (l->wire && l->wire->is_connected()) co_await sleep_for(self->how.times.last_word);
    if (l->wire) l->wire->abort(error(errc::peer_lost, l->how));
}

SKEIN_INLINE leased_workers::state::lease_ptr leased_workers::state::lease_of(
    const std::string& worker) const {
    constexpr std::string_view start = "worker-";
    std::uint64_t number = 0;
    if (!worker.starts_with(start)) return nullptr;
    const auto* const first = worker.data() + start.size();
    const auto* const last = worker.data() + worker.size();
    const auto [end, bad] = std::from_chars(first, last, number);
    if (bad != std::errc() || end != last) return nullptr;
    const auto found = leases.find(number);
    return found == leases.end() ? nullptr : found->second;
}

/// A worker, from its handshake to the end of its lease.
SKEIN_INLINE task<void> leased_workers::state::serve_one(state* self, net::link::handle wire) {
    const bool is_space_client = wire->peer().name.starts_with(rt::space_client_name);
    if (is_space_client && !self->how.space.empty() && !self->stopping.is_set()) {
        auto served = serve_space_client(self, std::move(wire));
        co_await served;
        co_return;
    }
    const auto l = self->lease_of(wire->peer().name);
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
    self->failed_starts = 0;
    const auto of_node = detail::failed_start_text(l->node_name);
    std::erase_if(self->said_failures,
                  [&](const auto& one) { return one.first.starts_with(of_node); });
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
        auto told = detail::wait_at_most(&l->end_told, self->how.times.suspect_after);
        co_await told;
        auto printed = // its last words
            self->head.output().until_printed(self->how.times.exit_grace_stopping);
        co_await printed;
    }
    if (!left) self->say_lost(*l, pid);
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
SKEIN_INLINE void leased_workers::want_group(const rt::worker_group& what) { state_->want(what); }
SKEIN_INLINE void leased_workers::drop_group(std::uint64_t number) { state_->drop(number); }
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
