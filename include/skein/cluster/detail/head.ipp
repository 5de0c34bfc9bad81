// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/head.hpp: who comes and goes.

#include <skein/cluster/detail/cluster_link.hpp>
#include <skein/cluster/detail/head_keys.hpp>
#include <skein/cluster/detail/head_link.hpp>
#include <skein/cluster/detail/head_state.hpp>
#include <skein/cluster/detail/head_trainings.hpp>
#include <skein/cluster/detail/hello_checks.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/net/network.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster {

namespace detail {

/// A switch that was away for a moment brings thousands back at the same time.
[[nodiscard]] inline net::acceptor_options head_places() {
    net::acceptor_options o;
    o.places = 4096;
    o.places_per_address = 1024;
    return o;
}

[[nodiscard]] inline net::link_options head_links(loop& on, const head_options& how) {
    net::link_options o;
    o.incarnation = how.incarnation;
    while (o.incarnation == 0) o.incarnation = on.random().next(); // no loop may run yet
    o.resume_within = how.node_grace;
    return o;
}

/// Finds attempts that the node at the other end of a link runs.
[[nodiscard]] inline run_service::attempt_of attempts_of(std::weak_ptr<head_session> link,
                                                         const job_book& jobs) {
    return [link = std::move(link), &jobs](const lease_name& lease) {
        const auto here = link.lock();
        if (here == nullptr || here->node == nullptr)
            throw error(errc::malformed, "results come from a peer that is no node");
        const auto& leases = here->node->room->leases;
        const auto found = leases.find(lease);
        const auto job = found == leases.end() ? nullptr : jobs.find(found->second->of->attempt_of);
        if (job == nullptr || job->lease_of != lease.driver)
            throw error(errc::not_found,
                        "that attempt of a job does not run on this node any more");
        return running_attempt{job, here->node->name()};
    };
}

/// A space server that nobody saw end has ended: agents without a head wait as long as this one.
[[nodiscard]] inline duration space_fence(const head_options& how) {
    return std::max<duration>(how.times.space_fence,
                              duration(how.lost_after) + std::chrono::seconds(15));
}

} // namespace detail

SKEIN_INLINE head::state::state(loop& on, net::network& via, head_options given)
    : on_loop(on), how(std::move(given)),
      door(via, how.listen, detail::head_keys(*this).door(), detail::head_links(on, how),
           net::link_table_bounds{65'536, 65'536}, detail::head_places()),
      leases(
          on, *this,
          {how.driver_grace, how.share_quantum, how.keep_grace, how.recall_grace, how.most_leases}),
      shares(on, leases), memory(on),
      nodes(on, memory, leases, *this,
            {how.node_grace, how.lost_after, how.look_every, how.times.suspect_after, how.news}),
      since(on.now()), spaces(on, *this,
                              {how.times.space_settle, detail::space_fence(how), how.news,
                               [this](std::uint64_t driver, std::uint64_t server) {
                                   return detail::head_keys(*this).space_secret_for(driver, server);
                               }}),
      jobs(on, memory, given_up, *this), waits(on, {leases, shares, nodes, jobs}, *this),
      files{detail::package_service(how.storage),
            detail::run_service(on, how.storage, how.results_bytes, jobs)},
      runner(on, {jobs, memory, files.packages, given_up, leases}, *this,
             {how.runs, how.lost_after, how.times, how.news}),
      drained(on, {nodes, leases, jobs, runner, memory, spaces}, *this,
              {how.times.shutdown_grace, how.news}) {
    if (how.log) remember();
    introduce();
    memory.on_begun = [this] { introduce(); };
}

/// A generation that a crash could take back would lock out the heads after it: nobody hears of one
/// that is not durable.
SKEIN_INLINE void head::state::introduce() {
    detail::head_notice n{door.local().is_loopback()};
    if (memory.is_begun()) {
        n.state = memory.state();
        n.generation = memory.generation();
    }
    door.introduce(wire::encode(n));
}

/// What the head before has left. Drivers that were there may come back for so long as after a lost
/// link.
SKEIN_INLINE void head::state::remember() {
    memory.open(how.log, how.secret, on_loop.random());
    for (const auto& [driver, known] : memory.open_drivers()) {
        auto& d = driver_of(driver);
        d.holder->name = known.name;
        d.hello.host = known.host;
        d.hello.pid = known.pid;
        d.begun_by = known.begun_by;
    }
    const auto missing = memory.missing();
    if (!memory.open_drivers().empty() ||
        std::any_of(missing.begin(), missing.end(), [](const auto& n) { return !n.left; }))
        spaces.had_head();
    if (runner.remember()) spaces.had_head();
    drained.remember();
}

SKEIN_INLINE task<void> head::state::serve() {
    scope all;
    all.spawn(door.serve([this](net::link::handle l) { return serve_link(this, std::move(l)); }));
    scope looking, remembering;
    looking.spawn(watch(this));
    looking.spawn(files.results.tidy());
    remembering.spawn(detail::head_memory::keep(&memory));
    std::exception_ptr failure;
    try {
        co_await stopping.wait();
        for (const auto& [number, d] : drivers) // nobody waits for them any more
            if (d->session == nullptr) memory.driver_went(number, job_end::lost);
        auto ending = runner.end_all();
        co_await ending;
        auto keeping = memory.kept();
        (void)co_await keeping;
        auto showing = runner.show_all_ends();
        co_await showing;
        tell_all_to_leave();
        for (const auto& s : sessions) all.spawn(close_link(s->below));
    } catch (...) {
        failure = std::current_exception();
    }
    phase = failure ? detail::head_phase::crashed : detail::head_phase::over;
    leases.close();
    looking.cancel();
    runner.cancel();
    door.close();
    if (failure) all.cancel();
    auto looked = as_result(shield(looking.join()));
    (void)co_await looked;
    auto wrote = as_result(shield(runner.join()));
    (void)co_await wrote;
    auto ended = as_result(shield(all.join()));
    (void)co_await ended;
    memory.close();
    if (failure) remembering.cancel();
    auto remembered = as_result(shield(remembering.join()));
    (void)co_await remembered;
    if (failure) std::rethrow_exception(failure);
}

/// A link from its hello to its end; a peer that says no hello is a tool.
SKEIN_INLINE task<void> head::state::serve_link(state* self, net::link::handle l) {
    auto s = std::make_shared<detail::head_session>();
    s->incarnation = l->peer_incarnation();
    s->key = l->peer().key;
    s->below = l;
    const auto service = self->service_of(s);
    const auto from = l->peer_host();
    s->seen_from = from.empty() || net::address::tcp(from, 1).is_loopback() ? "" : from;
    s->way = net::requests::over(std::move(l), service, detail::cluster_requests());
    self->sessions.push_back(s);
    std::exception_ptr failure;
    try {
        if (self->is_closed()) throw error(errc::closed, "the cluster was stopped");
        auto ended = s->below->wait_closed();
        co_await ended;
    } catch (...) {
        failure = std::current_exception();
    }
    self->ended(s);
    const auto way = std::exchange(s->way, nullptr);
    if (self->phase == detail::head_phase::crashed)
        way->abort(error(errc::aborted, "the head was cancelled"));
    auto closing = shield(way->close());
    co_await closing;
    auto done = shield(service->close());
    co_await done;
    auto forwarded = shield(s->forwards.end());
    co_await forwarded;
    s->below.reset();
    if (failure) std::rethrow_exception(failure);
}

SKEIN_INLINE std::shared_ptr<net::request_service> head::state::service_of(const session_ptr& s) {
    auto out = std::make_shared<net::request_service>(net::request_service::bounds(), in_progress);
    out->set_gate(detail::head_keys(*this).gate(s->key, s->incarnation));
    const std::weak_ptr<detail::head_session> weak = s;
    out->on<node_hello, node_welcome>([this, weak](node_hello h, const net::caller&) {
        return on_node(this, weak.lock(), std::move(h));
    });
    out->on<driver_hello, driver_welcome>([this, weak](driver_hello h, const net::caller&) {
        return on_driver(this, weak.lock(), std::move(h));
    });
    serve_drivers(*out, s);
    serve_nodes(*out, s);
    serve_spaces(*out, s);
    runner.serve(*out);
    jobs.serve(*out, std::shared_ptr<bool>(s, &s->hears_more));
    files.packages.serve(*out, std::shared_ptr<detail::package_uploads>(s, &s->uploads));
    files.results.serve_nodes(*out, std::shared_ptr<detail::run_uploads>(s, &s->results),
                              detail::attempts_of(weak, jobs));
    files.results.serve_tools(*out);
    serve_tools(*out);
    detail::page_forwards::serve(*out, std::shared_ptr<detail::page_forwards>(s, &s->forwards),
                                 [this] { return web; });
    detail::serve_trainings(this, *out, s);
    return out;
}

/// What drivers ask for, and say of themselves.
SKEIN_INLINE void head::state::serve_drivers(net::request_service& of, const session_ptr& s) {
    // The session owns the service: a pointer, not a share, or neither would ever end.
    const std::weak_ptr<detail::head_session> weak = s;
    const auto as_driver = [weak](auto does) {
        return [weak, does](auto m, const net::caller& who) {
            const auto here = weak.lock();
            if (here == nullptr || here->driver == nullptr)
                throw error(errc::malformed, who.peer + " has not said which driver it is");
            does(*here->driver, m);
        };
    };
    of.on_tell<want_lease>(as_driver([this](detail::head_driver& d, const want_lease& m) {
        leases.want(*d.holder, m);
        waits.find_room(*d.holder, false);
    }));
    of.on_tell<return_lease>(as_driver([this](detail::head_driver& d, const return_lease& m) {
        leases.give_back(*d.holder, m.lease, m.at_once);
        leases.pump();
    }));
    of.on_tell<keep_lease>(as_driver([this](detail::head_driver& d, const keep_lease& m) {
        leases.answered(*d.holder, m.lease, leave_word::stays, m.why);
    }));
    of.on_tell<lease_leaves>(as_driver([this](detail::head_driver& d, const lease_leaves& m) {
        leases.answered(*d.holder, m.lease, m.moves ? leave_word::moves : leave_word::ends, m.why);
    }));
    of.on_tell<lease_blocked>(as_driver([this](detail::head_driver& d, const lease_blocked& m) {
        leases.block(*d.holder, m);
        leases.pump();
    }));
    of.on_tell<cluster::want_group>(
        as_driver([this](detail::head_driver& d, const cluster::want_group& m) {
            leases.want_group(*d.holder, {m.group, m.strategy, m.bundles, {}});
            waits.find_room(*d.holder, true);
        }));
    of.on_tell<cluster::drop_group>(
        as_driver([this](detail::head_driver& d, const cluster::drop_group& m) {
            leases.drop_group(*d.holder, m.group);
            leases.pump();
        }));
    of.on_tell<output_printed>(
        as_driver([this](const detail::head_driver& d, const output_printed& m) {
            output.printed(d.incarnation, m.node);
        }));
    of.on_tell<driver_calls>([weak](const driver_calls& m, const net::caller& who) {
        const auto here = weak.lock();
        if (here == nullptr || here->driver == nullptr)
            throw error(errc::malformed, who.peer + " has not said which driver it is");
        if (m.failed > m.done || m.done > m.submitted)
            throw error(errc::malformed, who.peer + " has ended more calls than it has begun");
        here->driver->calls = {m.submitted, m.done, m.failed};
    });
}

/// What agents say of their nodes.
SKEIN_INLINE void head::state::serve_nodes(net::request_service& of, const session_ptr& s) {
    const std::weak_ptr<detail::head_session> weak = s;
    const auto as_node = [weak](auto does) {
        return [weak, does](auto m, const net::caller& who) {
            const auto here = weak.lock();
            if (here == nullptr || here->node == nullptr)
                throw error(errc::malformed, who.peer + " has not said which node it is");
            does(*here->node, std::move(m));
        };
    };
    of.on_tell<worker_ended>(as_node([this](detail::known_node& n, const worker_ended& m) {
        on_ended(m.what, n);
        leases.pump();
    }));
    of.on_tell<output_waits>(as_node([this](const detail::known_node& n, const output_waits& m) {
        if (drivers.contains(m.driver)) // else its workers are being ended
            output.waits(m.driver, n.incarnation);
    }));
    of.on_tell<node_output>(as_node([this](const detail::known_node& n, node_output m) {
        if (detail::output_bytes(m.from) > most_output_bytes)
            throw error(errc::too_large, "a node sends more of what workers print than it may");
        output.arrived(m.driver, n.incarnation, std::move(m.from));
    }));
    of.on_tell<node_load>(as_node([this](const detail::known_node& n, const node_load& m) {
        const auto now = std::chrono::duration_cast<std::chrono::seconds>(on_loop.wall());
        loads.told(n.name(), m, now.count());
    }));
    of.on_tell<entry_started>(as_node([this](detail::known_node& n, const entry_started& m) {
        const auto found = n.room->leases.find(m.lease);
        if (found == n.room->leases.end()) return;
        nodes.worked(n);
        const auto& job = found->second->of->attempt_of;
        if (!job.empty()) runner.runs(job, m.lease.driver, m.pid);
    }));
    of.on_tell<node_leaves>(as_node([this](detail::known_node& n, const node_leaves& m) {
        drained.on_notice(n, m);
        leases.pump();
    }));
    of.on_tell<job_rows>(as_node([this](const detail::known_node& n, const job_rows& m) {
        const auto found = n.room->leases.find(m.lease);
        if (found == n.room->leases.end() || found->second->of->attempt_of.empty()) return;
        jobs.keep_rows(*jobs.called(found->second->of->attempt_of), m);
    }));
}

/// What a person asks.
SKEIN_INLINE void head::state::serve_tools(net::request_service& of) {
    of.on<ask_status, cluster_status>(
        [this](ask_status m, const net::caller& who) -> task<cluster_status> {
            return [](state* self, ask_status asked, std::string peer) -> task<cluster_status> {
                detail::check_version(asked.version, peer);
                auto out = self->status(asked.past);
                detail::keep_programs_of(out, asked.job);
                co_return out;
            }(this, std::move(m), who.peer);
        });
    of.on<ask_drain, drain_reply>([this](ask_drain m, const net::caller& who) -> task<drain_reply> {
        return [](state* self, ask_drain asked, std::string peer) -> task<drain_reply> {
            detail::check_version(asked.version, peer);
            auto reply = self->drained.ask(asked);
            auto keeping = self->memory.kept(); // who is told that it is so may rely on it
            reply.not_durable = co_await keeping;
            co_return reply;
        }(this, std::move(m), who.peer);
    });
    of.on<ask_stop, stop_reply>([this](ask_stop m, const net::caller& who) -> task<stop_reply> {
        return [](state* self, ask_stop asked, std::string peer) -> task<stop_reply> {
            detail::check_version(asked.version, peer);
            logging::at(self->how.news, "head", "asked to stop", {{"by", peer}});
            stop_reply r;
            r.nodes = static_cast<std::uint32_t>(self->nodes.all().size());
            r.jobs = static_cast<std::uint32_t>(self->programs().size());
            self->stopping.set();
            co_return r;
        }(this, m, who.peer);
    });
    of.on<ask_login, login_reply>([this](ask_login m, const net::caller& who) {
        return [](state* self, ask_login asked, std::string peer) -> task<login_reply> {
            detail::check_version(asked.version, peer);
            if (self->web == nullptr)
                throw error(errc::not_supported, "not supported: this head answers no browsers")
                    .with_hint("the program skein does, when it was built with Boost");
            login_reply out;
            out.path = self->web->login_link();
            co_return out;
        }(this, m, who.peer);
    });
}

SKEIN_INLINE void head::state::ended(const session_ptr& s) noexcept {
    std::erase(sessions, s);
    if (phase == detail::head_phase::crashed) return; // nobody is told anything
    const bool left = s->below->ending() == net::link_end::orderly;
    if (s->node != nullptr) link_ended(*std::exchange(s->node, nullptr), left);
    if (s->driver == nullptr) return;
    auto& d = *std::exchange(s->driver, nullptr);
    d.session = nullptr;
    output.link_ended(d.incarnation);
    d.away_until = deadline_after(on_loop.now(), how.driver_grace);
    if (left || is_closed()) {
        leave(d, is_closed() ? job_end::stopped : job_end::left);
    } else {
        const auto& why = s->below->failure();
        logging::warn("head", "a driver is away",
                      {{"job", d.holder->name},
                       {"host", d.hello.host},
                       {"why", why ? why->what() : "its link has ended"}});
    }
    leases.pump();
}

/// What runs out while nothing happens.
SKEIN_INLINE task<void> head::state::watch(state* self) {
    for (;;) {
        co_await sleep_for(self->how.look_every);
        self->look();
    }
}

SKEIN_INLINE void head::state::look() {
    const auto now = on_loop.now();
    std::vector<detail::head_driver*> gone;
    std::vector<detail::lease*> lost;
    for (auto& [number, d] : drivers) {
        if (d->session == nullptr && !d->holder->ending && now >= d->away_until)
            gone.push_back(d.get());
        for (auto& [n, l] : d->holder->leases)
            if (l->state == detail::lease_state::expected && now >= l->until)
                lost.push_back(l.get());
            else if (l->recalled_at != time_point{} && !leases.is_coming(*l))
                leases.not_recalled(*l); // its driver has not answered
            else if (detail::is_wanted_no_more(*l, now, how.recall_grace))
                leases.tell_withdrawn(*l);
    }
    for (auto* l : lost) leases.end(*l, true, "its node did not come back to the head");
    for (auto* d : gone) leave(*d, job_end::lost);
    memory.look();
    nodes.look();
    spaces.look();
    runner.look();
    detail::head_keys::end_shut_out(*this);
    leases.take_groups_over();
    leases.pump();
    drained.look();
    nodes.empty_draining();
    waits.lend_entries();
    leases.pump();
    shares.look();
    waits.tell();
}

// ---- drivers ------------------------------------------------------------------------------------

SKEIN_INLINE detail::head_driver& head::state::driver_of(std::uint64_t incarnation) {
    auto& d = drivers[incarnation];
    if (d == nullptr) {
        d = std::make_unique<detail::head_driver>();
        d->incarnation = incarnation;
        d->holder = &leases.holder(incarnation);
        d->away_until = deadline_after(on_loop.now(), how.driver_grace);
    }
    return *d;
}

/// Of a driver that is known already.
SKEIN_INLINE void head::state::check_again(const detail::head_driver& d,
                                           const driver_hello& h) const {
    const auto& space = spaces.name_of(d.incarnation);
    if (d.holder->ending)
        throw error(errc::aborted, "the driver was away for too long; its workers are being ended");
    if (space != h.space && (!space.empty() || d.has_come()))
        throw error(
            errc::malformed,
            fmt::format("the driver was the space server of namespace \"{}\" and is that of "
                        "\"{}\" now",
                        space, h.space));
}

[[nodiscard]] inline detail::driver_record record_of(const detail::head_driver& d) {
    return {d.incarnation, d.hello.name, d.hello.host, d.hello.pid, 0, 0, 0,
            d.hello.space, d.begun_by};
}

SKEIN_INLINE task<driver_welcome> head::state::on_driver(state* self, session_ptr s,
                                                         driver_hello h) {
    if (s == nullptr || s->node != nullptr || s->driver != nullptr)
        throw error(errc::malformed, "a second hello over one link");
    detail::check_version(h.version, "the driver");
    if (h.executable.empty() || (h.port == 0 && h.address.empty() && !h.has_ranks))
        throw error(errc::malformed, "the driver does not say what to start, or where it listens");
    for (const auto* text :
         {&h.name, &h.host, &h.executable, &h.program, &h.folder, &h.address, &h.job})
        detail::check_text("a name or path of the driver", *text);
    if (h.leases.size() > self->how.most_leases)
        throw error(errc::too_large,
                    fmt::format("{} leases, more than {}", h.leases.size(), self->how.most_leases));
    if (h.visits.size() > detail::most_spaces)
        throw error(errc::too_large, fmt::format("{} namespaces, more than {}", h.visits.size(),
                                                 detail::most_spaces));
    if (h.groups.size() > detail::most_groups)
        throw error(errc::too_large, fmt::format("{} placement groups, more than {}",
                                                 h.groups.size(), detail::most_groups));
    detail::check_text("the namespace of the driver", h.space, detail::most_space_bytes);
    for (const auto& v : h.visits)
        detail::check_text("a namespace that the driver visits", v.space, detail::most_space_bytes);
    if (h.again) self->spaces.had_head();
    if (const auto known = self->drivers.find(s->incarnation); known != self->drivers.end())
        self->check_again(*known->second, h);
    if (!h.space.empty()) self->spaces.check(h.space, s->incarnation);
    auto& d = self->driver_of(s->incarnation);
    if (d.session != nullptr) {
        d.session->driver = nullptr;
        d.session->below->abort(error(errc::reset, "the driver has come over another link"));
        self->output.link_ended(d.incarnation);
    } else if (!d.has_come()) {
        logging::at(self->how.news, "head", "driver joined",
                    {{"job", h.name}, {"host", h.host}, {"pid", h.pid}});
    }
    d.session = s;
    d.key = s->key;
    s->driver = &d;
    d.seen_from = s->seen_from;
    d.hello = std::move(h);
    d.holder->name = d.hello.name;
    d.holder->job = d.hello.job;
    d.holder->host = d.hello.host;
    d.holder->pid = d.hello.pid;
    d.holder->has_ranks = d.hello.has_ranks;
    self->memory.driver_came(record_of(d));
    self->spaces.came(d.incarnation, d.hello.space, std::exchange(d.hello.visits, {}));
    d.holder->weight = std::clamp<std::uint32_t>(d.hello.weight, 1, 1000);
    self->leases.schedule().set_weight(d.holder->id(), d.holder->weight);
    self->reconcile(d, d.hello);
    self->leases.pump();
    self->output.ask(d.incarnation);
    driver_welcome out;
    const auto now = self->nodes.size();
    out.cpus = now.cpus;
    out.nodes = now.nodes;
    out.lost_after_ms = self->nodes.lost_after_ms();
    out.runs = self->runner.runs_of(self->job_behind(d));
    co_return out;
}

/// It does not come back: what it asked for is forgotten, and its workers end.
SKEIN_INLINE void head::state::leave(detail::head_driver& d, job_end how_it_ended) {
    if (std::exchange(d.holder->ending, true)) return;
    memory.driver_went(d.incarnation, how_it_ended);
    logging::at(how.news, "head", "driver left", {{"job", d.holder->name}, {"host", d.hello.host}});
    if (const auto own = d.holder->leases.find(space_server_lease); own != d.holder->leases.end()) {
        const auto& l = *own->second;
        if (l.state == detail::lease_state::expected) // its node is not there: nobody sees its end
            spaces.over(d.incarnation, "its node did not come back to the head", false);
        else if (l.state == detail::lease_state::waits)
            spaces.over(d.incarnation, "it waits for a node: " + leases.schedule().why(l.request),
                        true);
    }
    leases.leave(*d.holder);
}

// ---- what their workers print -------------------------------------------------------------------

SKEIN_INLINE detail::output_reader head::state::reader_of(std::uint64_t driver) const {
    const auto& d = *drivers.at(driver);
    if (!d.holder->attempt_of.empty()) return detail::output_reader::head;
    return d.session != nullptr ? detail::output_reader::driver : detail::output_reader::none;
}

SKEIN_INLINE bool head::state::ask_for_lines(std::uint64_t node, std::uint64_t driver) {
    const auto found = links.find(node);
    if (found != links.end()) found->second->tell(take_output{driver});
    return found != links.end();
}

SKEIN_INLINE void head::state::keep_lines_of(std::uint64_t driver,
                                             std::vector<printed_lines> lines) {
    jobs.keep_lines(*jobs.called(drivers.at(driver)->holder->attempt_of), std::move(lines));
}

SKEIN_INLINE void head::state::send_lines(std::uint64_t driver, std::uint64_t node,
                                          std::vector<printed_lines> lines) {
    const auto& n = *nodes.find(node);
    drivers.at(driver)->session->tell(worker_output{node, n.name(), std::move(lines)});
}

// ---- what there is ------------------------------------------------------------------------------

SKEIN_INLINE void head::state::tell_all_to_leave() {
    for (auto& [number, link] : links) link->tell(leave_cluster{"the cluster was stopped"});
}

SKEIN_INLINE task<void> head::state::close_link(net::link::handle l) {
    auto closing = l->close();
    co_await closing;
}

SKEIN_INLINE head::head(loop& on, net::network& via, head_options how)
    : state_(std::make_unique<state>(on, via, std::move(how))) {}
SKEIN_INLINE head::~head() = default;
SKEIN_INLINE net::address head::local() const { return state_->door.local(); }
SKEIN_INLINE task<void> head::serve() { return state_->serve(); }
SKEIN_INLINE void head::stop() noexcept { state_->stopping.set(); }
SKEIN_INLINE cluster_status head::status() const { return state_->status(); }

} // namespace skein::cluster
