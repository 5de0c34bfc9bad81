// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/agent.hpp.

#include <skein/cluster/detail/agent_state.hpp>
#include <skein/cluster/detail/node_rest.hpp>
#include <skein/cluster/job_storage.hpp>
#include <skein/cluster/space_server.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/proc/gpus.hpp>
#include <skein/rt/worker_link.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <tuple>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster {

SKEIN_INLINE agent::state::state(loop& on, net::network& via, proc::children& where,
                                 agent_options given)
    : on_loop(on), children(where), how(std::move(given)), total(how.offers),
      head(on, via, link_options(on), &stopping) {
    const auto here = children.resources();
    if (!total.cpu) total.cpu = sched::amount(here.cores);
    if (total.memory == 0) total.memory = here.memory_bytes;
}

SKEIN_INLINE detail::head_link_options agent::state::link_options(loop& on) {
    while (how.incarnation == 0) how.incarnation = on.random().next();
    detail::head_link_options o;
    o.head = how.head;
    o.secret = how.secret;
    o.name = how.name.empty() ? how.host : how.name;
    o.host = how.host;
    o.pid = how.pid;
    o.incarnation = how.incarnation;
    o.join_within = how.join_within;
    o.times = how.times;
    o.make_service = [this] { return make_service(); };
    o.say_hello = [this] { return say_hello(this); };
    o.on_away = [this](const error& why, bool was_joined) { say_away(why, was_joined); };
    o.speaks_as = "agent";
    o.news =
        how.news < logging::level::info ? logging::level::debug : logging::level::warn; // of a job
    return o;
}

SKEIN_INLINE void agent::state::say_away(const error& why, bool was_joined) {
    const auto at = to_string(how.head);
    const auto level =
        how.news < logging::level::info ? logging::level::debug : logging::level::warn; // of a job
    if (was_joined)
        logging::at(level, "agent",
                    "the head is away; workers go on, and it is tried until it answers",
                    {{"head", at}, {"why", why.what()}});
    else
        logging::debug("agent", "no head", {{"head", at}, {"why", why.what()}});
}

namespace detail {

[[nodiscard]] inline error nobody_answered(const net::address& head, const error& why) {
    return error(why.code(),
                 fmt::format("no head has answered at {}: {}", to_string(head), why.text()))
        .with_cause(why.cause())
        .with_hint("skein head starts one; it prints the address to join");
}

} // namespace detail

SKEIN_INLINE task<void> agent::state::serve() {
    scope beside;
    beside.spawn(watch_orphans(this));
    beside.spawn(tell_load(this));
    beside.spawn(detail::watch_notices(&drain, &head, &how.until_notice, how.notice_within));
    std::exception_ptr failure;
    try {
        auto joining = head.keep();
        co_await joining;
        if (!stopping.is_set() && !head.was_welcomed())
            logging::at(how.news, "agent", "told to leave", {{"why", "the cluster was stopped"}});
        stopping.set(); // if not, the head has ended the cluster
    } catch (const error& e) {
        failure = std::current_exception();
        const bool is_mute = !head.was_welcomed() && !how.leaves_alone &&
                             e.code() != errc::cancelled && !detail::is_final(e.code());
        if (is_mute) failure = std::make_exception_ptr(detail::nobody_answered(how.head, e));
    } catch (...) {
        failure = std::current_exception();
    }
    leaving = failure != nullptr;
    if (leaving) stopping.set();
    beside.cancel();
    auto watched = as_result(shield(beside.join()));
    (void)co_await watched;
    stop_all();
    auto gone = as_result(shield(running.join()));
    (void)co_await gone;
    auto parted = shield(head.part()); // the head has heard how they ended
    co_await parted;
    if (failure) std::rethrow_exception(failure);
    if (is_abandoned)
        throw error(errc::peer_lost,
                    fmt::format("the head at {} has been gone for {:.3g} s", to_string(how.head),
                                std::chrono::duration<double>(how.orphan_grace).count()));
}

SKEIN_INLINE std::shared_ptr<net::request_service> agent::state::make_service() {
    auto out = std::make_shared<net::request_service>(net::request_service::bounds(),
                                                      detail::cluster_budget());
    out->on_tell<start_worker_order>(
        [this](start_worker_order m, const net::caller&) { start(std::move(m)); });
    out->on_tell<stop_worker_order>(
        [this](const stop_worker_order& m, const net::caller&) { stop_one(m.lease, m.at_once); });
    out->on_tell<take_output>(
        [this](const take_output& m, const net::caller&) { output.send(m.driver); });
    out->on_tell<node_drains>(
        [this](const node_drains& m, const net::caller&) { drain.hear(m, on_loop.now()); });
    out->on<ask_node_log, node_log>(
        [this](ask_node_log m, const net::caller&) { return read_log(this, std::move(m)); });
    out->on_tell<leave_cluster>([this](const leave_cluster& m, const net::caller&) {
        logging::at(how.news, "agent", "told to leave", {{"why", m.why}});
        stopping.set();
    });
    return out;
}

SKEIN_INLINE node_hello agent::state::hello() const {
    node_hello h;
    h.name = how.name;
    h.host = how.host;
    h.pid = how.pid;
    h.resources = sched::to_string(total);
    h.labels = how.labels;
    drain.add_to(h, on_loop.now());
    h.again = head.was_welcomed();
    h.alone_ms = static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(duration(how.orphan_grace)).count());
    for (const auto& [name, w] : workers) {
        const auto* const server = w->order.space_server();
        const auto* const entry = w->order.entry();
        h.holds.push_back({name, w->order.demand, w->order.gpus,
                           server != nullptr ? server->space : std::string(),
                           entry != nullptr ? entry->job : std::string(),
                           w->process != nullptr ? w->process->pid() : 0});
    }
    return h;
}

SKEIN_INLINE task<void> agent::state::say_hello(state* self) {
    auto h = self->hello();
    h.ended = std::exchange(self->untold, {});
    const auto told = h.ended;
    const auto now = self->on_loop.now();
    std::erase_if(self->entry_ends, [&](const auto& one) { return now >= one.first; });
    for (const auto& [until, end] : self->entry_ends) h.ended.push_back(end);
    try {
        auto joining = self->head.join<cluster::node_welcome>(std::move(h));
        const auto w = co_await joining;
        self->head_waits =
            std::chrono::milliseconds(std::min(w.lost_after_ms, detail::most_lost_after_ms));
        if (self->how.storage) self->marked.end_leftovers(self->how.storage->folder_if_open());
        for (auto& [name, one] : self->workers) // this head may not have them
            if (one->table) one->table->again();
        for (const auto& lease : w.stop) { // one that ends already goes on to send its results
            const auto one = self->workers.find(lease);
            if (one != self->workers.end() && !one->second->asked_to_stop)
                self->stop_one(lease, false);
        }
        for (auto& end : std::exchange(self->untold, {})) self->tell_end(std::move(end));
        self->output.offer_all();
        if (self->how.on_joined) self->how.on_joined(w.name);
    } catch (...) {
        self->untold.insert(self->untold.begin(), told.begin(), told.end());
        throw;
    }
}

/// Workers that no head knows of for long end: their drivers have been told that they are lost.
SKEIN_INLINE task<void> agent::state::watch_orphans(state* self) {
    auto& how = self->how;
    while (!self->stopping.is_set()) {
        self->has_joined = self->has_joined || self->head.is_joined();
        self->is_orphaned = self->is_orphaned && !self->head.is_joined();
        auto woken = self->stopping.wait_for(std::clamp<duration>(
            how.orphan_grace / 8, std::chrono::milliseconds(10), std::chrono::seconds(1)));
        co_await woken;
        const bool is_alone =
            !self->head.is_joined() &&
            self->on_loop.now() >= deadline_after(self->head.alone_since(), self->patience());
        if (is_alone && how.leaves_alone && self->has_joined) {
            self->is_abandoned = true;
            self->stopping.set();
            co_return;
        }
        const bool all_asked =
            std::all_of(self->workers.begin(), self->workers.end(),
                        [](const auto& one) { return one.second->asked_to_stop; });
        if (!is_alone || all_asked) continue;
        logging::warn("agent", "no head for long: the workers end",
                      {{"head", to_string(how.head)}, {"workers", self->workers.size()}});
        self->is_orphaned = true;
        self->stop_all();
    }
}

// ---- workers ------------------------------------------------------------------------------------

SKEIN_INLINE void agent::state::start(start_worker_order order) {
    const auto lease = order.lease;
    if (workers.contains(lease)) return;
    if (stopping.is_set()) {
        ended_lease none{lease, false, "the node is leaving the cluster"};
        none.was_asked = true;
        return tell_end(std::move(none));
    }
    if (workers.size() >= how.most_workers) {
        ended_lease none{lease, false,
                         fmt::format("the node runs {} workers already", workers.size())};
        none.of_node = true;
        return tell_end(std::move(none));
    }
    auto& w = workers[lease];
    w = std::make_unique<worker>();
    w->printed = &output.add(lease, order.entry() != nullptr);
    w->order = std::move(order);
    running.spawn(live(this, lease));
}

SKEIN_INLINE void agent::state::stop_one(const lease_name& lease, bool at_once) {
    const auto found = workers.find(lease);
    if (found == workers.end()) return; // its end has crossed this
    auto& w = *found->second;
    w.asked_to_stop = true;
    if (at_once && w.process != nullptr)
        w.process->kill(); // whoever waits for its end sees it
    else
        w.stop.request();
    if (at_once || w.process == nullptr) w.give_up.request(); // its results are on their way
}

SKEIN_INLINE void agent::state::stop_all() {
    for (auto& [name, w] : workers) {
        w->asked_to_stop = true;
        w->stop.request();
        if (is_orphaned && w->process == nullptr) w->give_up.request(); // nobody takes them
    }
}

SKEIN_INLINE task<void> agent::state::live(state* self, lease_name lease) {
    auto* const w = self->workers.at(lease).get();
    auto running = run(self, w);
    auto what = co_await running;
    what.lease = lease;
    auto sending = send_last_words(self, w);
    co_await sending;
    if (what.started && w->order.entry() != nullptr) {
        detail::results_deadline until{self->patience(), self->how.times.suspect_after,
                                       &self->stopping, &self->leaving};
        auto keeping = self->results.send(w->order, w->place, w->give_up.token(), std::move(until));
        co_await keeping;
    }
    what.lines = w->printed->said.total();
    if (const auto words = w->printed->said.last_errors();
        !words.empty() && !w->asked_to_stop && w->order.rank() == nullptr)
        what.how += "; it had printed: " + words;
    const bool is_entry = w->order.entry() != nullptr;
    self->running.spawn(self->stores.leave(lease.driver, std::move(w->store), &self->stopping));
    self->workers.erase(lease);
    self->output.remove(lease);
    if (is_entry) self->remember_end(what);
    self->tell_end(std::move(what));
}

/// What a worker said last is worth a moment: its driver prints it before it hears of the end. What
/// a job said last is worth more: the head keeps it, and one that is away may come back.
SKEIN_INLINE task<void> agent::state::send_last_words(state* self, worker* w) {
    auto& printed = *w->printed;
    const bool is_kept = printed.is_kept;
    const auto begin = self->on_loop.now();
    const auto moment = duration(self->how.times.suspect_after) / 2;
    const auto until = deadline_after(begin, is_kept ? self->patience() : moment);
    const auto is_on_its_way = [&] { // with a link that is no more
        return !printed.sent.lines.empty() && !self->head.is_joined();
    };
    while ((!printed.said.empty() || is_on_its_way()) && !self->leaving &&
           (is_kept || self->head.is_joined())) {
        const auto now = self->on_loop.now();
        const bool is_hurried = self->stopping.is_set() || w->asked_to_stop;
        if (now >= until || (is_hurried && now >= deadline_after(begin, moment))) co_return;
        printed.all_sent.reset();
        auto sent = printed.all_sent.wait_for(std::min(until - now, moment));
        co_await sent;
    }
}

/// What it needs on this node's disk.
SKEIN_INLINE task<void> agent::state::prepare(state* self, worker* w) {
    if (w->order.job().empty()) co_return;
    auto opening = self->folders.open(&w->place, detail::process_key(self->how.secret, w->order));
    co_await opening;
    if (!w->place.storage.empty()) self->marked.end_leftovers(w->place.storage);
    auto preparing = w->order.entry() != nullptr ? prepare_entry(self, w) : prepare_of_job(self, w);
    co_await preparing;
}

/// While its process runs.
SKEIN_INLINE void agent::state::watch(worker* w, scope& beside, std::string* silent) {
    if (w->order.entry() != nullptr)
        entry_runs(w, beside);
    else if (w->place.has_own_folder)
        beside.spawn(watch_rows(this, w));
    if (std::holds_alternative<worker_process>(w->order.kind))
        beside.spawn(end_silent(this, w, silent));
}

/// What the process has printed is read to its end, and written.
SKEIN_INLINE task<void> agent::state::end_reading(worker* w, scope* watching, scope* reading,
                                                  scope* writing) {
    watching->cancel();
    auto watched = as_result(watching->join());
    (void)co_await watched;
    auto read = as_result(reading->join());
    (void)co_await read;
    w->is_read = true;
    w->to_write.set();
    auto written = as_result(writing->join());
    (void)co_await written;
}

/// From its start to its end. Never throws.
SKEIN_INLINE task<ended_lease> agent::state::run(state* self, worker* w) {
    ended_lease out;
    out.started = false;
    std::unique_ptr<proc::child> process;
    bool has_ended = false;
    std::string silent;
    scope reading, watching, writing;
    try {
        auto preparing = with_cancel(w->stop.token(), prepare(self, w));
        co_await preparing;
        auto starting =
            with_cancel(w->stop.token(), with_timeout(self->children.start(self->what_to_start(*w)),
                                                      self->how.times.start_timeout));
        process = co_await starting;
        out.started = true;
        w->process = process.get();
        if (w->order.prints) reading.spawn(self->output.read(w->order.lease, process.get()));
        if (w->log) writing.spawn(write_log(self, w));
        self->watch(w, watching, &silent);
        auto ended = with_cancel(w->stop.token(), process->ended());
        const auto end = co_await ended;
        out.how = end.last_words.empty() ? end.status.describe() : end.last_words;
        out.code = end.status.code();
        out.signal = end.status.signal();
        has_ended = true;
    } catch (const error& e) {
        out.how = e.what();
        // Of programs: another copy may come. A folder that a task asks for by name is there or
        // not.
        out.is_lasting = (e.code() == errc::not_found || e.code() == errc::permission_denied ||
                          e.code() == errc::invalid_argument) &&
                         !out.started;
        out.of_node = !out.started && detail::is_of_node(e.code(), w->place.in_storage);
    } catch (const std::exception& e) { // of the library: a path, memory
        out.how = e.what();
        out.of_node = !out.started && detail::is_of_node(e, w->place.in_storage);
    }
    out.is_lasting = out.is_lasting && !out.of_node;
    if (!process) {
        out.was_asked = w->asked_to_stop;
        co_return out;
    }
    if (!has_ended) {
        auto ending = as_result(shield(end_now(self, w, process.get(), &out)));
        (void)co_await ending;
    }
    if (w->order.entry() != nullptr) {
        auto swept = as_result(shield(end_what_is_left(self, w)));
        (void)co_await swept;
    }
    auto quiet = shield(end_reading(w, &watching, &reading, &writing));
    co_await quiet;
    w->process = nullptr;
    if (!silent.empty()) out.how = fmt::format("{}: {}", silent, out.how);
    co_return out;
}

/// Its driver has said goodbye to it in most cases: it leaves by itself. An entry process has none.
SKEIN_INLINE task<void> agent::state::end_now(state* self, worker* w, proc::child* process,
                                              ended_lease* into) {
    const auto& how = self->how;
    const bool is_entry = w->order.entry() != nullptr;
    const auto* const rank = w->order.rank();
    if (is_entry) {
        auto asking = ask_entry_to_end(self, w);
        co_await asking;
    }
    time_span until_asked = how.times.exit_grace, until_killed = how.stop_grace;
    if (is_entry) std::tie(until_asked, until_killed) = std::pair(self->grace_of(*w), time_span());
    if (rank != nullptr) {
        until_asked = {};
        // Without a head its supervisor counts it as lost soon.
        until_killed = std::min<duration>(std::chrono::milliseconds(rank->rank.stop_millis),
                                          self->is_orphaned ? detail::orphan_stop_grace
                                                            : detail::most_stop_grace);
    }
    auto stopped = as_result(proc::stop(*process, until_asked, until_killed));
    const auto end = co_await stopped;
    into->was_asked = true;
    into->how = end ? end->status.describe() : end.error().what();
    into->code = end ? end->status.code() : -1;
    into->signal = end ? end->status.signal() : 0;
}

/// A worker that will not answer any more is killed: its driver hears of its end as of any other,
/// and its lease comes back. Not so a space server: it runs no functions of users on its loop, so
/// that its link to the head says whether it lives.
SKEIN_INLINE task<void> agent::state::end_silent(state* self, worker* w, std::string* why) {
    auto watching = proc::detail::until_silent(w->process, self->how.times, {});
    *why = co_await watching;
    w->process->kill();
}

SKEIN_INLINE void agent::state::tell_end(ended_lease what) {
    if (head.tell(worker_ended{what})) return;
    if (untold.size() < 65'536) untold.push_back(std::move(what)); // for the next hello
}

SKEIN_INLINE agent::agent(loop& on, net::network& via, proc::children& where, agent_options how)
    : state_(std::make_unique<state>(on, via, where, std::move(how))) {}
SKEIN_INLINE agent::~agent() = default;
SKEIN_INLINE task<void> agent::serve() { return state_->serve(); }
SKEIN_INLINE void agent::stop() noexcept { state_->stopping.set(); }
SKEIN_INLINE std::size_t agent::workers() const noexcept { return state_->workers.size(); }
SKEIN_INLINE bool agent::is_joined() const noexcept { return state_->head.is_joined(); }

} // namespace skein::cluster
