// SPDX-License-Identifier: Apache-2.0
// local_workers: the pool of worker processes, with its real code, over simulated processes and
// sockets. Workers are killed and stand still, starts fail, hang and are slow, links break; calls
// go on all the while.
//
// Invariants: each call ends exactly once, with its own value or an expected error; a value means
// it ran, "did not run" means it did not; a task runs once and once more per retry at most, a
// method at most once; never two workers under one live name; never more tasks and actors with a
// gpu or a custom resource at a time than the host has, or a bundle of a placement group. When
// faults have ended every place that was not given up is filled, and all calls end; when the pool
// has ended no process is left.
#include "sim/scenario.hpp"

#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/program/local_workers.hpp>
#include <skein/rt/actor.hpp>
#include <skein/rt/placement_group.hpp>
#include <skein/rt/runtime.hpp>
#include <skein/sim/children.hpp>

#include <map>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace local_workers_world {

using namespace skein;
using namespace std::chrono_literals;

/// What the workers of this world did.
struct history {
    std::map<int, int> runs; ///< by call
    std::set<std::string> living;
    std::size_t lives = 0;
    int gpus = 0, disks = 0;    ///< in use
    std::map<int, int> bundles; ///< in use, by a number of each bundle
    std::string violation;
};
thread_local history* now = nullptr;

/// A worker's name is its own while it lives.
struct presence {
    explicit presence(std::string name) : mine(std::move(name)) {
        ++now->lives;
        if (!now->living.insert(mine).second) now->violation = "two workers live as " + mine;
    }
    presence(const presence&) = delete;
    ~presence() { now->living.erase(mine); }
    std::string mine;
};

/// What worker_main() does in a real process.
task<int> worker_program(sim::process* self) {
    const presence here(self->started_with().name);
    rt::runtime_options who;
    who.name = self->started_with().name;
    who.host = self->host();
    who.pid = self->pid();
    rt::runtime mine(who);
    auto working = program::work_for_driver(&self->network(), &mine, self->started_with().message,
                                            self->take_stream(), self->started_with().memory);
    co_await working;
    co_return 0;
}

int plain(int call) {
    ++now->runs[call];
    return call;
}
int broken(int call) {
    ++now->runs[call];
    throw std::runtime_error("broken on purpose");
}
task<int> slow(int call, int ms) {
    co_await sleep_for(std::chrono::milliseconds(ms));
    co_return call;
}
/// Waits for a plain task of its own, which then runs in a second process if all are waited in.
task<int> asks(int call, int ms, bool waits_for_ever) {
    auto inner = remote<&plain>.with({.retries = 2})(-call);
    if (waits_for_ever) {
        const int got = co_await inner;
        co_await sleep_for(std::chrono::milliseconds(ms));
        co_return -got;
    }
    auto bounded = as_result(with_timeout(as_task(inner), std::chrono::milliseconds(ms)));
    const auto got = co_await bounded;
    if (!got) inner.cancel_by_force();
    co_return call;
}
constexpr int gpus_here = 1, disks_here = 2;
/// One unit of something that the host has few of.
struct unit {
    unit(int& used, int most, const char* what) : used_(used) {
        if (++used_ > most) now->violation = fmt::format("more than {} {} in use", most, what);
    }
    unit(const unit&) = delete;
    ~unit() { --used_; }
    int& used_;
};
task<int> with_gpu(int call, int ms) {
    const unit mine(now->gpus, gpus_here, "gpus");
    co_await sleep_for(std::chrono::milliseconds(ms));
    co_return call;
}
task<int> with_disk(int call, int ms) {
    const unit mine(now->disks, disks_here, "disks");
    // The only core of a pool of one may be lent to this one.
    auto inner = remote<&plain>.with({.retries = 0})(-call);
    const int got = co_await inner;
    co_await sleep_for(std::chrono::milliseconds(ms));
    co_return -got;
}
/// In a bundle of a group that holds one disk.
task<int> in_bundle(int call, int ms, int bundle) {
    const unit mine(now->disks, disks_here, "disks");
    const unit room(now->bundles[bundle], 1, "of a bundle");
    auto inner = remote<&plain>.with({.retries = 0})(-call); // has the cpu of this one meanwhile
    const int got = co_await inner;
    co_await sleep_for(std::chrono::milliseconds(ms));
    co_return -got;
}
/// Has a gpu as long as it lives.
struct holder {
    holder() : mine(std::make_unique<unit>(now->gpus, gpus_here, "gpus")) {}
    std::unique_ptr<unit> mine;
    int note(int call) {
        ++now->runs[call];
        return call;
    }
    task<int> note_later(int call, int ms) {
        co_await sleep_for(std::chrono::milliseconds(ms));
        co_return call;
    }
};
struct counter {
    int last = 0;
    int note(int call, int position) {
        ++now->runs[call];
        if (position <= last) now->violation = "calls to an actor ran out of order";
        last = position;
        return call;
    }
};

struct outstanding {
    int call = 0, retries = 0;
    bool counts_runs = true, is_method = false;
    ref<int> result;
};

/// A pool in its world.
struct stage {
    sim::world& w;
    sim::children children;
    rt::runtime driver;
    program::local_workers pool;
    bool calm = false;
    bool has_own = false; ///< there are tasks that need workers of their own

    stage(sim::world& in, const std::string& host, program::local_workers_options how)
        : w(in), children(in.network, host), driver(rt::runtime_options{"driver", "sim", 1}),
          pool(in.loop, in.network.host("driver"), children, driver, std::move(how)) {
        children.add(rt::worker_role, &worker_program);
        children.faults() = sim::child_faults::draw(in.loop.random());
    }
};

bool is_expected(const stage& s, const error& e) {
    switch (e.code()) {
    case errc::worker_lost:
    case errc::timeout:
    case errc::cancelled:
    case errc::remote_exception:
    case errc::not_found: return true;
    case errc::invalid_argument: return s.has_own; // no such bundle
    default:
        if (s.has_own && e.code() == errc::exhausted) return true; // more than the host has
        if (s.has_own && e.code() == errc::closed) return true;    // its group was removed
        if (s.has_own && e.text().find("did not start") != std::string::npos) return true;
        return s.pool.places() == 0; // then it is why the last one did not start
    }
}

/// A task that no shared worker could serve.
outstanding submit_own(stage* s, int call, call_options how) {
    outstanding made;
    made.call = call;
    made.counts_runs = false;
    auto& w = s->w;
    how.retries = made.retries = static_cast<int>(w.below(4));
    const int ms = static_cast<int>(w.below(300));
    switch (w.below(3)) {
    case 0:
        how.gpus = w.chance(0.5) ? 1.0 : 0.6; // two of these do not fit on one
        made.result = remote<&with_gpu>.with(how)(call, ms);
        break;
    case 1:
        how.resources = "disk=1";
        made.result = remote<&with_disk>.with(how)(call, ms);
        break;
    default:
        how.cpus = 2 + static_cast<int>(w.below(4));
        made.result = remote<&slow>.with(how)(call, ms);
    }
    return made;
}

outstanding submit(stage* s, int call, const actor_handle<counter>& actor, int* position) {
    outstanding made;
    made.call = call;
    auto& w = s->w;
    call_options how;
    how.cpus = static_cast<int>(w.below(2));
    if (s->has_own && w.chance(0.4)) return submit_own(s, call, how);
    how.retries = made.retries = static_cast<int>(w.below(4));
    if (w.chance(0.2)) how.deadline = std::chrono::milliseconds(1 + w.below(3000));
    switch (w.below(actor ? 6 : 4)) {
    case 3: {
        const bool waits = w.chance(0.5);
        made.result = remote<&asks>.with(how)(call, static_cast<int>(w.below(500)), waits);
        made.counts_runs = false;
        break;
    }
    case 0: made.result = remote<&plain>.with(how)(call); break;
    case 1: made.result = remote<&broken>.with(how)(call); break;
    case 2:
        made.result = remote<&slow>.with(how)(call, static_cast<int>(w.below(500)));
        made.counts_runs = false; // a coroutine runs outside of what is counted
        break;
    default: made.is_method = true; made.result = actor.call<&counter::note>(call, ++*position);
    }
    return made;
}

/// Cancels a task by force, where somebody may compute and hear of nothing.
void force(stage* s, const outstanding& one) {
    auto& w = s->w;
    auto& on = s->children;
    const auto all = on.running();
    if (!all.empty() && w.chance(0.7)) {
        const auto pid = all[w.below(all.size())].pid;
        on.pause(pid, std::chrono::milliseconds(w.below(800)));
    }
    if (!one.is_method) one.result.cancel_by_force();
}

task<void> check_outcome(stage* s, outstanding call) {
    auto& w = s->w;
    auto asked = as_result(with_timeout(as_task(call.result), 600s));
    auto outcome = co_await asked;
    w.check(call.result.ready(),
            fmt::format("a call has no outcome long after the calm; {} workers of {} places",
                        s->driver.workers(), s->pool.places()));
    w.loop.trace(outcome ? static_cast<std::uint64_t>(*outcome)
                         : 1000 + static_cast<std::uint64_t>(outcome.error().code()));
    const int runs = now->runs[call.call];
    if (outcome) {
        w.check(*outcome == call.call, "a call got another call's value");
        w.check(!call.counts_runs || runs >= 1, "a value came from a call that did not run");
    } else {
        w.check(is_expected(*s, outcome.error()), outcome.error().what());
        const auto& text = outcome.error().text(); // behind a semicolon: of others
        const bool said_no = text.substr(0, text.find(';')).find("did not run") != text.npos;
        w.check(!said_no || runs == 0, "a call ran although its error says that it did not");
    }
    w.check(runs <= (call.is_method ? 1 : 1 + call.retries), "a call ran too often");
}

/// Actors that hold a gpu, and groups with their tasks; both come and go.
struct holdings {
    actor_handle<holder> actor;
    placement_group group;
    int groups = 0;
};

/// Gives what it expects of an actor's making.
task<void> renew_actor(stage* s, holdings* h) {
    auto& w = s->w;
    h->actor = {};
    actor_options how;
    how.gpus = w.chance(0.5) ? 1.0 : 0.6;
    how.cpus = w.chance(0.3) ? 1 : 0;
    how.restarts = w.chance(0.4) ? -1 : 0;
    if (w.chance(0.3)) how.on = node_named("sim");
    auto making = as_result(with_timeout(skein::actor<holder>.with(how)(), 2s));
    auto made = co_await making;
    if (made)
        h->actor = *made;
    else
        w.check(is_expected(*s, made.error()), made.error().what());
}

task<void> renew_group(stage* s, holdings* h) {
    auto& w = s->w;
    if (h->group && w.chance(0.5)) {
        auto removed = as_result(with_timeout(h->group.remove(), w.chance(0.5) ? 5ms : 600s));
        const auto gone = co_await removed;
        w.check(gone || gone.error().code() == errc::timeout, "a group did not end");
    }
    const auto count = 1 + w.below(3); // three are too many
    std::vector<std::string> bundles;
    for (std::uint64_t i = 0; i < count; ++i)
        bundles.emplace_back(w.chance(0.7) ? "cpu=1,disk=1" : "cpu=1,disk=1,gpu=0.5");
    using how = group_strategy;
    const how all[] = {how::pack, how::spread, how::strict_pack, how::strict_spread};
    h->group = placement_group(bundles, all[w.below(4)]);
    ++h->groups;
    if (w.chance(0.3)) {
        auto ready = as_result(with_timeout(h->group.ready(), 1s));
        const auto placed = co_await ready;
        if (!placed) w.check(is_expected(*s, placed.error()), placed.error().what());
    }
}

/// A call of the actor, or a task in the group.
bool submit_held(stage* s, int call, const holdings& h, std::vector<outstanding>& into) {
    auto& w = s->w;
    outstanding made;
    made.call = call;
    const int ms = static_cast<int>(w.below(300));
    if (h.actor && w.chance(0.5)) {
        made.is_method = true;
        if (w.chance(0.5)) {
            made.result = h.actor.call<&holder::note>(call);
        } else {
            made.counts_runs = false;
            made.result = h.actor.call<&holder::note_later>(call, ms);
        }
    } else if (h.group) {
        call_options how;
        how.resources = "disk=1";
        how.retries = made.retries = static_cast<int>(w.below(4));
        made.counts_runs = false;
        const auto bundle = w.below(h.group.size() + 1); // the last one is none
        how.on = h.group.bundle(bundle);
        if (w.chance(0.4)) how.on = how.on.with_children(); // its call has the cpu of a bundle
        made.result =
            remote<&in_bundle>.with(how)(call, ms, 10 * h.groups + static_cast<int>(bundle));
    } else {
        return false;
    }
    into.push_back(std::move(made));
    return true;
}

/// A name is one process's while it runs, also while it loads or leaves.
void check_names(stage* s) {
    std::set<std::string> names;
    for (const auto& one : s->children.running())
        if (!names.insert(one.name).second) now->violation = "two processes run as " + one.name;
    s->w.check(now->violation.empty(), now->violation);
}

/// Somebody kills and stops workers, too, at moments that calls choose.
void hurt(stage* s) {
    const auto all = s->children.running();
    if (all.empty()) return;
    const auto victim = all[s->w.below(all.size())].pid;
    const std::uint64_t most_pause = s->w.chance(0.3) ? 8000 : 1000; // taken for dead, or not
    if (s->w.chance(0.7))
        s->children.kill(victim);
    else
        s->children.pause(victim, std::chrono::milliseconds(s->w.below(most_pause)));
}

/// Calls for a while, under faults.
task<std::vector<outstanding>> call_around(stage* s) {
    auto& w = s->w;
    std::vector<outstanding> calls;
    const int count = 10 + static_cast<int>(w.below(60));
    const double harm = w.chance(0.5) ? 0.1 : 0.0;
    actor_handle<counter> actor;
    holdings held;
    int position = 0;
    for (int i = 1; i <= count; ++i) {
        if (s->has_own && w.chance(0.05)) {
            auto renewed = w.chance(0.5) ? renew_actor(s, &held) : renew_group(s, &held);
            co_await renewed;
        }
        if (!actor || w.chance(0.05)) { // a first or another actor; the old one goes
            actor = {};
            auto making = as_result(with_timeout(skein::actor<counter>(), 1s));
            auto made = co_await making;
            position = 0;
            if (made)
                actor = *made;
            else
                w.check(is_expected(*s, made.error()), made.error().what());
        }
        if (!s->has_own || !w.chance(0.3) || !submit_held(s, i, held, calls))
            calls.push_back(submit(s, i, actor, &position));
        if (w.chance(0.05)) calls[w.below(calls.size())].result.cancel();
        if (w.chance(0.05)) force(s, calls[w.below(calls.size())]);
        if (w.chance(harm)) hurt(s);
        if (w.chance(0.4)) co_await sleep_for(std::chrono::milliseconds(w.below(400)));
        check_names(s);
    }
    co_return calls;
}

/// The calm: every place is filled again, and every call ends.
task<void> settle(stage* s, std::vector<outstanding> calls) {
    auto& w = s->w;
    w.network.stop_faults();
    s->children.stop_faults();
    for (auto& call : calls) {
        auto checked = check_outcome(s, call);
        co_await checked;
    }
    const auto is_whole = [&] {
        return s->driver.workers() == static_cast<std::size_t>(s->pool.places()) &&
               s->pool.pids().size() == s->driver.workers();
    };
    // The making of an actor that nobody waits for any more ends, too.
    for (int i = 0; i < 600 && !(is_whole() && s->driver.pending() == 0); ++i)
        co_await sleep_for(100ms);
    w.check(is_whole(), fmt::format("{} of {} places are filled long after the calm",
                                    s->driver.workers(), s->pool.places()));
    w.check(s->driver.pending() == 0, "a call is left");
    w.check(now->violation.empty(), now->violation);
}

/// A driver's life, as rt::run has it.
task<void> drive(stage* s) {
    scope services;
    services.spawn(s->pool.serve());
    s->driver.ask(&s->pool);
    s->children.begin_faults();
    std::exception_ptr failure;
    try {
        auto calling = call_around(s);
        auto calls = co_await calling;
        if (s->w.chance(0.8)) { // else it ends in the middle of it
            auto settling = settle(s, std::move(calls));
            co_await settling;
        }
    } catch (...) {
        failure = std::current_exception();
    }
    s->pool.stop();
    auto goodbye = s->driver.close();
    co_await goodbye;
    services.cancel();
    auto joined = as_result(services.join());
    (void)co_await joined;
    s->w.network.stop_faults();
    if (failure) std::rethrow_exception(failure);
    s->w.check(s->children.running().empty(), "a process is left");
    s->w.check(s->pool.pids().empty() && now->living.empty(), "a worker is left");
    s->w.check(s->driver.pending() == 0, "a call has no outcome at the end");
}

task<void> scenario(sim::world& w) {
    history seen;
    now = &seen;
    program::local_workers_options how;
    how.count = 1 + static_cast<int>(w.below(3));
    how.over_tcp = w.chance(0.5);
    if (w.chance(0.7)) { // else some are given up while they load, or stand still
        how.times.start_timeout = 5s;
    } else {
        how.times.start_timeout = 500ms;
    }
    // Over TCP the processes may be another host's, whose links are cut.
    const bool far = how.over_tcp && w.chance(0.5);
    how.offers.gpu = gpus_here;
    how.offers.set("disk", disks_here);
    stage s(w, far ? "workers" : "driver", how);
    s.has_own = w.chance(0.6);
    if (how.times.start_timeout < 1s) s.children.faults().pause_lasts = 5s;
    const rt::runtime::use current(s.driver);
    auto driving = drive(&s);
    co_await driving;
    w.loop.trace(seen.lives);
}

const sim::scenario registered("local_workers", &scenario);

} // namespace local_workers_world
