// SPDX-License-Identifier: Apache-2.0
// detached: programs that come, go and crash make, find, call and kill detached actors of two
// namespaces, from their drivers and from their workers, and pass handles of them between these,
// while workers, space servers, agents, machines and the head are killed and started again,
// namespaces are ended, links break and are cut. Clocks run fast and slow.
//
// Invariants: a namespace has one space server process at most, at any time. Each call ends once,
// with its own value or an expected error, and runs once at most. What an actor has answered it
// still knows at the next call, also after it was made again. When faults have ended each name
// resolves or is not found, and actors can be made; when all were killed and the programs have
// ended, space servers end, no process is left and the head knows no job.
#include "sim/scenario.hpp"

#include <skein/cluster/tools.hpp>
#include <skein/core/timeout.hpp>
#include <skein/rt/actor.hpp>
#include <skein/rt/remote.hpp>
#include <tests/support/sim_nodes.hpp>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace detached_world {

using namespace skein;
using namespace std::chrono_literals;
using test::sim_nodes;

thread_local std::map<int, int>* runs = nullptr; ///< by call

/// Counts its calls.
struct kept {
    int count = 0;
    int note(int call) {
        ++(*runs)[call];
        return ++count;
    }
    task<int> later(int call, int ms) {
        ++(*runs)[call];
        co_await sleep_for(std::chrono::milliseconds(ms));
        co_return call;
    }
    int save() const { return count; }
    void load(int saved) { count = saved; }
};

// What workers of programs do.
task<int> note_through(actor_handle<kept> one, int call) {
    auto r = one.call<&kept::note>(call);
    co_return co_await r;
}
task<int> note_further(std::vector<actor_handle<kept>> all, int call) {
    auto r = remote<&note_through>.with({.retries = 0})(all.back(), call);
    co_return co_await r;
}
task<int> note_by_name(std::string space, std::string name, int call) {
    auto looking = get_actor<kept>(name, {.space = space});
    const auto found = co_await looking;
    auto r = found.call<&kept::note>(call);
    co_return co_await r;
}
task<actor_handle<kept>> get_there(std::string space, std::string name, int restarts) {
    auto making = skein::actor<kept>.with({.restarts = restarts,
                                           .name = name,
                                           .get_if_exists = true,
                                           .space = space,
                                           .detached = true})();
    co_return co_await making;
}
/// An actor of a program, which has one of a namespace in its state.
struct keeps {
    actor_handle<kept> one{};
    void take(actor_handle<kept> given) { one = std::move(given); }
    task<int> note(int call) {
        if (!one) throw error(errc::not_found, "it has none yet");
        auto r = one.call<&kept::note>(call);
        co_return co_await r;
    }
    actor_handle<kept> save() const { return one; }
    void load(actor_handle<kept> saved) { one = std::move(saved); }
};

struct stage {
    sim::world& w;
    sim_nodes& c;
    int last_call = 0;
    bool calm = false;
    int made = 0, found = 0, answered = 0; ///< for what the faults leave possible
    int relayed = 0;                       ///< answers that came through workers
};

bool is_expected(const error& e) {
    switch (e.code()) {
    case errc::worker_lost:
    case errc::timeout:
    case errc::cancelled:
    case errc::already_exists:
    case errc::reset:
    case errc::closed:
    case errc::refused: // the head is away when a program begins
    case errc::peer_lost:
    case errc::not_found: return true;
    default: return false;
    }
}

std::string space_of(stage* s) { return s->w.chance(0.7) ? "prod" : "test"; }
std::string name_of(stage* s) { return "a" + std::to_string(s->w.below(3)); }

/// Space server processes that run, on all nodes.
int space_servers(stage* s, const std::string& space) {
    int n = 0;
    for (std::size_t i = 0; i < s->c.nodes(); ++i)
        for (const auto& one : s->c.at(i).children->running())
            n += one.name == "space server of " + space;
    return n;
}
task<void> watch_space_servers(stage* s) {
    for (;;) {
        for (const auto* space : {"prod", "test"})
            s->w.check(space_servers(s, space) <= 1,
                       std::string("two space servers live of ") + space);
        co_await sleep_for(20ms);
    }
}

/// A handle, and what the last answer through it was.
struct held {
    actor_handle<kept> actor;
    int known = 0;
};

task<void> get_one(stage* s, std::vector<held>* all) {
    auto& w = s->w;
    const auto space = space_of(s), name = name_of(s);
    if (w.chance(0.4)) {
        auto looking = as_result(with_timeout(get_actor<kept>(name, {.space = space}), 100s));
        auto found = co_await looking;
        if (found) {
            ++s->found;
            all->push_back({*found, 0});
        } else {
            w.check(is_expected(found.error()), found.error().what());
        }
        co_return;
    }
    actor_options how;
    how.name = name;
    how.space = space;
    how.detached = true;
    how.restarts = w.chance(0.5) ? -1 : 0;
    how.get_if_exists = w.chance(0.5);
    auto making = as_result(with_timeout(skein::actor<kept>.with(how)(), 100s));
    auto made = co_await making;
    if (made) {
        ++s->made;
        all->push_back({*made, 0});
    } else {
        w.check(is_expected(made.error()), made.error().what());
    }
}

task<void> call_one(stage* s, held* h) {
    auto& w = s->w;
    const int call = ++s->last_call;
    const bool notes = w.chance(0.7);
    auto r = notes ? h->actor.call<&kept::note>(call)
                   : h->actor.call<&kept::later>(call, static_cast<int>(w.below(3000)));
    if (w.chance(0.1)) r.cancel();
    auto asked = as_result(with_timeout(as_task(r), 150s));
    const auto outcome = co_await asked;
    if (!r.ready() && !outcome && outcome.error().code() == errc::cancelled)
        co_return; // the program ends
    w.check(r.ready(), "a call has no outcome for long");
    w.check((*runs)[call] <= 1, "a call ran twice");
    w.loop.trace(outcome ? static_cast<std::uint64_t>(*outcome)
                         : 1000 + static_cast<std::uint64_t>(outcome.error().code()));
    if (!outcome) {
        w.check(is_expected(outcome.error()), outcome.error().what());
        co_return;
    }
    ++s->answered;
    w.check((*runs)[call] == 1, "a value came from a call that did not run");
    if (!notes) {
        w.check(*outcome == call, "a call got another call's value");
        co_return;
    }
    w.check(*outcome > h->known, "an actor has forgotten what it had answered");
    h->known = *outcome;
}

/// The same from a worker of the program, which gets the handle, or finds the actor itself.
task<void> call_from_worker(stage* s, held* h, actor_handle<keeps>* space_server_of_one) {
    auto& w = s->w;
    const int call = ++s->last_call;
    const call_options how{.retries = 0, .deadline = 60s};
    const auto way = w.below(4);
    const bool by_name = way == 0;
    if (way == 3 && !*space_server_of_one) {
        auto making = as_result(
            with_timeout(skein::actor<keeps>.with({.restarts = -1, .call_retries = 0})(), 60s));
        auto made = co_await making;
        w.check(made || is_expected(made.error()), made ? "" : made.error().what());
        if (!made) co_return;
        *space_server_of_one = *made;
    }
    if (way == 3)
        (void)remote<&keeps::take>.with({.deadline = 60s})(*space_server_of_one, h->actor);
    const auto space = by_name ? space_of(s) : "", name = by_name ? name_of(s) : "";
    auto r =
        by_name    ? remote<&note_by_name>.with(how)(space, name, call)
        : way == 1 ? remote<&note_through>.with(how)(h->actor, call)
        : way == 2
            ? remote<&note_further>.with(how)(std::vector{actor_handle<kept>(), h->actor}, call)
            : remote<&keeps::note>.with({.deadline = 60s})(*space_server_of_one, call);
    if (w.chance(0.1)) r.cancel();
    auto asked = as_result(with_timeout(as_task(r), 150s));
    const auto outcome = co_await asked;
    if (!r.ready() && !outcome && outcome.error().code() == errc::cancelled) co_return;
    w.check(r.ready(), "a call of a worker has no outcome for long");
    w.check((*runs)[call] <= 1, "a call of a worker ran twice");
    w.loop.trace(outcome ? 2000 + static_cast<std::uint64_t>(*outcome)
                         : 3000 + static_cast<std::uint64_t>(outcome.error().code()));
    if (!outcome) {
        w.check(is_expected(outcome.error()), outcome.error().what());
        co_return;
    }
    ++s->relayed;
    w.check((*runs)[call] == 1, "a value came through a worker from a call that did not run");
    if (way != 1 && way != 2) co_return; // of another actor, perhaps
    w.check(*outcome > h->known, "an actor has forgotten what it had answered, a worker says");
    h->known = *outcome;
}

task<void> get_from_worker(stage* s, std::vector<held>* all) {
    auto& w = s->w;
    const auto space = space_of(s), name = name_of(s);
    const int restarts = w.chance(0.5) ? -1 : 0;
    auto asked = as_result(
        as_task(remote<&get_there>.with({.retries = 0, .deadline = 60s})(space, name, restarts)));
    auto got = co_await asked;
    if (got)
        all->push_back({*got, 0});
    else
        w.check(is_expected(got.error()), got.error().what());
}

task<void> use_spaces(stage* s) {
    auto& w = s->w;
    std::vector<held> all;
    actor_handle<keeps> space_server_of_one;
    const bool has_workers = w.chance(0.6);
    for (auto n = 5 + w.below(15); n > 0; --n) {
        if (all.empty() || w.chance(0.3)) {
            auto getting =
                has_workers && w.chance(0.5) ? get_from_worker(s, &all) : get_one(s, &all);
            co_await getting;
        }
        if (!all.empty()) {
            auto& one = all[w.below(all.size())];
            if (w.chance(0.1)) {
                kill(one.actor);
            } else {
                auto calling = has_workers && w.chance(0.6)
                                   ? call_from_worker(s, &one, &space_server_of_one)
                                   : call_one(s, &one);
                co_await calling;
            }
        }
        if (w.chance(0.1) && !all.empty()) all.pop_back();
        if (w.chance(0.5)) co_await sleep_for(std::chrono::milliseconds(w.below(1500)));
    }
}

/// One program from its start to its end; now and then it crashes.
task<void> program(stage* s, int number) {
    auto& w = s->w;
    co_await sleep_for(std::chrono::milliseconds(w.below(20'000)));
    cluster::leased_workers_options how;
    how.join_within = 120s;
    const auto host = "p" + std::to_string(number);
    const auto d = s->c.make_driver(host, 0, std::move(how));
    std::exception_ptr failure;
    try {
        auto work = sim::run_on(d->home, d->self.run_here(use_spaces(s)));
        if (w.chance(0.2)) {
            auto cut = as_result(
                with_timeout(std::move(work), std::chrono::milliseconds(w.below(20'000))));
            const auto done = co_await cut;
            if (!done) {
                w.check(done.error().code() == errc::timeout, done.error().what());
                s->c.network().crash(host, w.chance(0.5));
            }
        } else {
            co_await work;
        }
    } catch (...) {
        failure = std::current_exception();
    }
    auto ended = sim::run_on(d->home, d->end());
    co_await ended;
    if (failure) std::rethrow_exception(failure);
}

/// As `skein stop --space` does.
task<void> end_space(stage* s) {
    auto& w = s->w;
    cluster::tool_options how;
    how.head = s->c.head_address();
    how.secret = s->c.secret();
    how.host = "tool";
    how.pid = 1;
    auto asking =
        as_result(cluster::ask_to_stop_space(w.network.host("tool"), std::move(how), space_of(s)));
    const auto ended = co_await asking;
    const auto flipped = errc::corrupt; // a tool tries once
    w.check(ended || is_expected(ended.error()) || ended.error().code() == flipped,
            ended ? "" : ended.error().what());
}

/// Kills and starts again what the cluster is made of.
task<void> hurt(stage* s) {
    auto& w = s->w;
    for (auto blows = w.below(10); blows > 0; --blows) {
        co_await sleep_for(std::chrono::milliseconds(w.below(8000)));
        if (w.chance(0.5)) { // a worker, or a space server
            auto& on = *s->c.at(w.below(s->c.nodes())).children;
            if (const auto all = on.running(); !all.empty()) on.kill(all[w.below(all.size())].pid);
            continue;
        }
        if (w.chance(0.1)) {
            auto stopping = end_space(s);
            co_await stopping;
            continue;
        }
        if (w.chance(0.4)) {
            w.network.counts().add(sim::fault::kill);
            auto killed = s->c.kill_head();
            co_await killed;
            co_await sleep_for(std::chrono::milliseconds(w.below(9000)));
            s->c.start_head();
            continue;
        }
        auto& n = s->c.at(w.below(s->c.nodes()));
        auto replaced = s->c.replace_agent(n, w.chance(0.5));
        co_await replaced;
    }
}

/// All names resolve or are not there; afterwards none is.
task<void> find_and_kill(stage* s) {
    auto& w = s->w;
    for (const auto* space : {"prod", "test"}) {
        for (const auto* name : {"a0", "a1", "a2", "new"}) {
            if (std::string_view(name) == "new") {
                auto making = as_result(
                    skein::actor<kept>.with({.name = name, .space = space, .detached = true})());
                const auto made = co_await making;
                w.check(made.has_value(), "no actor can be made after the calm: " +
                                              (made ? std::string() : made.error().what()));
            }
            auto looking = as_result(get_actor<kept>(name, {.space = space}));
            const auto found = co_await looking;
            if (!found) {
                w.check(found.error().code() == errc::not_found, found.error().what());
                continue;
            }
            held one{*found, 0};
            const int call = ++s->last_call;
            auto asked = as_result(as_task(one.actor.call<&kept::note>(call)));
            const auto outcome = co_await asked;
            w.check(outcome.has_value(),
                    outcome ? std::string() : std::string(outcome.error().what()));
            const int other = ++s->last_call;
            auto relayed =
                as_result(as_task(remote<&note_through>.with({.deadline = 60s})(one.actor, other)));
            const auto from_worker = co_await relayed;
            w.check(from_worker.has_value(),
                    from_worker ? std::string() : std::string(from_worker.error().what()));
            w.check(!outcome || !from_worker || *from_worker == *outcome + 1,
                    "a worker has called another actor than its driver");
            kill(one.actor);
            auto again = as_result(get_actor<kept>(name, {.space = space}));
            const auto gone = co_await again;
            w.check(!gone && gone.error().code() == errc::not_found, "a killed actor has a name");
        }
    }
}

task<void> at_last(stage* s) {
    const auto d = s->c.make_driver("last", 0, {});
    auto driving = test::as_driver(d.get(), [s] { return find_and_kill(s); });
    co_await driving;
}

task<void> drive(stage* s) {
    auto& w = s->w;
    auto& c = s->c;
    c.start_head();
    for (auto n = 1 + w.below(3); n > 0; --n) c.add_breaking_node(2);
    w.network.begin_link_faults();
    scope programs, beside;
    beside.spawn(watch_space_servers(s));
    for (int i = 1 + static_cast<int>(w.below(5)); i > 0; --i) programs.spawn(program(s, i));
    std::exception_ptr failure;
    try {
        auto hurts = hurt(s);
        co_await hurts;
        co_await sleep_for(std::chrono::milliseconds(w.below(20'000)));
        auto calming = c.be_calm();
        co_await calming;
        auto ended = programs.join();
        co_await ended;
        co_await sleep_for(60s); // what is cut off has been found out
        auto last = at_last(s);
        co_await last;
    } catch (...) {
        failure = std::current_exception();
    }
    programs.cancel();
    auto gone = as_result(shield(programs.join()));
    (void)co_await gone;
    auto all = c.end_when_empty(failure ? 0s : 200s);
    const auto left = co_await all;
    beside.cancel();
    try {
        auto watched = beside.join();
        co_await watched;
    } catch (const error& e) {
        if (e.code() != errc::cancelled && !failure) failure = std::current_exception();
    }
    if (failure) std::rethrow_exception(failure);
    w.check(left.empty(), left);
}

task<void> scenario(sim::world& w) {
    std::map<int, int> seen;
    runs = &seen;
    w.network.draw_clocks();
    sim_nodes c(w.loop, w.network);
    c.agent_times.start_timeout = 5s; // some starts hang
    stage s{w, c};
    auto driving = drive(&s);
    co_await driving;
    w.loop.trace(static_cast<std::uint64_t>(s.answered));
    w.loop.trace(static_cast<std::uint64_t>(s.relayed));
}

const sim::scenario registered("detached", &scenario);

} // namespace detached_world
