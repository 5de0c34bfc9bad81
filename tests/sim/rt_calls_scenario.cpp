// SPDX-License-Identifier: Apache-2.0
// rt_calls: a driver calls tasks and actors on workers that die, while links are cut, reset and
// slow; the tasks call others, and make actors of their own. Beside them there are actors with
// names that are made again when their worker dies, are killed, leave, and are held by other
// actors. Some tasks take their worker along at their first run.
//
// Invariants: every call ends exactly once, with its own value or an expected error; a value means
// it ran, "did not run" means it did not; a call runs at most once on one worker process, a method
// at most once at all; calls to an actor run in the order in which they were made, those of a group
// of its methods in their own; no more of them are under way than it takes; the state of an actor
// that is made again has all calls that were answered; an actor lives while anybody holds it; after
// the calm all calls end, and no call, coroutine, actor, name or stream is left. Credit is small as
// a rule, and bursts exceed it.
#include "sim/scenario.hpp"

#include <tests/support/sim_cluster.hpp>

#include <skein/core/scope.hpp>
#include <skein/core/timeout.hpp>
#include <skein/rt/runtime_context.hpp>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace rt_calls {

using namespace skein;
using namespace std::chrono_literals;

/// What the workers of this world did.
struct history {
    std::map<std::pair<std::int64_t, call_id>, int> by_process; ///< (worker pid, call) -> runs
    std::map<int, int> by_call;
    std::string violation;
    test::sim_cluster* cluster = nullptr;
    double deadly = 0; ///< so many of the calls are

    void ran(int call) {
        if (++by_process[{rt::runtime::current().name().pid, runtime_context().call}] > 1)
            violation = "a call ran twice on one worker";
        ++by_call[call];
    }
    /// Of a task that may run again after it has thrown.
    void ran_perhaps_again(int call) { ++by_call[call]; }
};
thread_local history* now = nullptr;

int quick(int call) {
    now->ran(call);
    return call;
}
int quick_after(int call, int) { return quick(call); }
/// Takes its worker along when it runs for the first time, before its reply leaves: it runs again,
/// and alone.
int deadly(int call) {
    now->ran(call);
    if (now->by_call[call] > 1) return call;
    const auto pid = rt::runtime::current().name().pid;
    loop::current().post([pid] { now->cluster->kill_process(pid); });
    return call;
}
int broken(int call) {
    now->ran_perhaps_again(call);
    throw std::runtime_error("broken on purpose");
}
/// Good at its third run.
task<int> hesitant(int call, int ms) {
    now->ran_perhaps_again(call);
    const bool is_bad = now->by_call[call] < 3;
    co_await sleep_for(std::chrono::milliseconds(ms));
    if (is_bad) throw std::runtime_error("not yet");
    co_return call;
}
task<int> wait_a_while(int call, int ms) {
    now->ran(call);
    co_await sleep_for(std::chrono::milliseconds(ms));
    co_return call;
}
int after_wait(int waited, int call) {
    now->ran(call);
    return call + 0 * waited;
}

struct recorder {
    int last = 0;

    void in_order(int position) {
        if (position <= last) now->violation = "calls to an actor ran out of order";
        last = position;
    }
    int note(int call, int position) {
        now->ran(call);
        in_order(position);
        return call;
    }
    int note_behind(int call, int position, int) { return note(call, position); }
    task<int> note_slowly(int call, int position, int ms) {
        now->ran(call);
        in_order(position);
        co_await sleep_for(std::chrono::milliseconds(ms));
        co_return call;
    }
};

/// Numbers of calls that a task makes: not among those of the driver, nor of its siblings.
int below(int call, int i) { return 10 * call + i + 1000; }

/// Calls as many others at once, which may call others themselves.
task<int> spread_out(int call, int fan, int depth) {
    now->ran(call);
    const auto self = runtime_context();
    std::vector<ref<int>> children;
    for (int i = 1; i <= fan; ++i) {
        const int child = below(call, i);
        if (depth > 0)
            children.push_back(remote<&spread_out>.with({.retries = 1})(child, fan, depth - 1));
        else
            children.push_back(remote<&quick>(child));
    }
    for (std::size_t i = 0; i < children.size(); ++i) {
        const int got = co_await children[i];
        if (got != below(call, static_cast<int>(i) + 1))
            now->violation = "a child gave another's value";
    }
    if (runtime_context().call != self.call || rt::runtime::current().name().pid != self.pid)
        now->violation = "a call woke up as another";
    co_return call;
}
/// Has an actor of its own for a while.
task<int> with_own_actor(int call, int ms) {
    now->ran(call);
    auto made = skein::actor<recorder>();
    auto own = co_await made;
    auto first = own.call<&recorder::note_slowly>(below(call, 1), 1, ms);
    auto second = own.call<&recorder::note>(below(call, 2), 2);
    const int got = co_await second;
    if (got != below(call, 2)) now->violation = "a method gave another's value";
    co_return call;
}

struct outstanding {
    int call = 0;
    bool is_method = false;
    int most_runs = 0; ///< 0: not looked at
    ref<int> result;
};

bool is_expected(const error& e) {
    return e.code() == errc::worker_lost || e.code() == errc::timeout ||
           e.code() == errc::cancelled || e.code() == errc::remote_exception ||
           e.code() == errc::not_found || e.code() == errc::reset;
}

task<void> check_outcome(sim::world* w, history* seen, outstanding call) {
    auto limited = with_timeout(call.result, 300s);
    auto asked = as_result(std::move(limited));
    auto outcome = co_await asked;
    w->check(call.result.ready(), "a call has no outcome long after the calm");
    w->loop.trace(outcome ? static_cast<std::uint64_t>(*outcome)
                          : 1000 + static_cast<std::uint64_t>(outcome.error().code()));
    const int runs = seen->by_call[call.call];
    if (outcome) {
        w->check(*outcome == call.call, "a call got another call's value");
        w->check(runs >= 1, "a value came from a call that did not run");
    } else {
        w->check(is_expected(outcome.error()), outcome.error().what());
        // Of the call itself: not of one that it made, nor of those that were lost with it.
        const std::string text =
            outcome.error().text().substr(0, outcome.error().text().find("; lost with it"));
        const bool said_no =
            outcome.error().where().empty() && text.find(" did not run") != std::string::npos;
        w->check(!said_no || runs == 0,
                 "a call ran although its error says that it did not: " + outcome.error().text());
    }
    if (call.is_method) w->check(runs <= 1, "a method ran twice");
    w->check(call.most_runs == 0 || runs <= call.most_runs,
             "a task ran more often than .retries allows");
}

/// One random call, to workers with so many cpus.
outstanding submit(sim::world* w, std::uint16_t cpus, int call, const actor_handle<recorder>& actor,
                   int* position, const std::vector<outstanding>& before) {
    outstanding made;
    made.call = call;
    const int ms = static_cast<int>(w->below(300));
    call_options how;
    how.cpus = static_cast<int>(w->below(cpus + 1U));
    how.retries = static_cast<int>(w->below(4));
    if (w->chance(0.2)) how.deadline = std::chrono::milliseconds(1 + w->below(2000));
    const bool has_ref = !before.empty() && w->chance(0.5);
    const auto other = has_ref ? before[w->below(before.size())].result : ref<int>();
    if (now->deadly > 0 && w->chance(now->deadly)) {
        made.most_runs = how.retries + 1;
        made.result = remote<&deadly>.with(how)(call);
        return made;
    }
    const auto kind = w->below(actor ? 10 : 7);
    switch (kind) {
    case 0: made.result = remote<&quick>.with(how)(call); break;
    case 1:
        made.most_runs = how.retries + 1;
        if (w->chance(0.5)) how.retry_on = thrown<std::runtime_error>();
        made.result = w->chance(0.5) ? remote<&broken>.with(how)(call)
                                     : remote<&hesitant>.with(how)(call, ms);
        break;
    case 2: made.result = remote<&wait_a_while>.with(how)(call, ms); break;
    case 3:
        made.result = has_ref ? remote<&quick_after>.with(how)(call, other)
                              : remote<&quick_after>.with(how)(call, 1);
        break;
    case 4:
        made.result = remote<&after_wait>.with(how)(remote<&wait_a_while>(-call, ms), call);
        break;
    case 5: {
        const int depth = static_cast<int>(w->below(3)), fan = 1 + static_cast<int>(w->below(3));
        made.result = remote<&spread_out>.with(how)(call, fan, depth);
        break;
    }
    case 6: made.result = remote<&with_own_actor>.with(how)(call, ms); break;
    default:
        made.is_method = true;
        if (kind == 7) {
            made.result = actor.call<&recorder::note>(call, ++*position);
        } else if (kind == 8) {
            made.result = has_ref ? actor.call<&recorder::note_behind>(call, ++*position, other)
                                  : actor.call<&recorder::note_behind>(call, ++*position, 1);
        } else {
            made.result = actor.call<&recorder::note_slowly>(call, ++*position, ms);
        }
    }
    return made;
}

task<void> caller(sim::world* w, test::sim_cluster* cluster, history* seen, std::uint16_t cpus) {
    std::vector<outstanding> calls;
    const int count = 10 + static_cast<int>(w->below(60));
    const double kill = w->chance(0.5) ? 0.05 : 0.0;
    const double pause = w->chance(0.7) ? 0.3 : 0.02; // seldom: calls come in bursts
    {
        actor_handle<recorder> actor;
        int position = 0;
        for (int i = 1; i <= count; ++i) {
            if (!actor || w->chance(0.05)) { // a first or another actor; the old one goes
                auto made = skein::actor<recorder>();
                auto limited = with_timeout(std::move(made), 2s);
                auto asked = as_result(std::move(limited));
                auto outcome = co_await asked;
                actor = {};
                position = 0;
                if (outcome) {
                    actor = *outcome;
                } else {
                    w->check(is_expected(outcome.error()), outcome.error().what());
                }
            }
            calls.push_back(submit(w, cpus, i, actor, &position, calls));
            if (w->chance(0.05)) calls[w->below(calls.size())].result.cancel();
            if (w->chance(kill))
                cluster->kill(
                    static_cast<int>(w->below(static_cast<std::uint64_t>(cluster->workers()))));
            if (w->chance(pause)) co_await sleep_for(std::chrono::milliseconds(w->below(200)));
        }
        // The calm: from here on everything has to end.
        co_await sleep_for(std::chrono::milliseconds(w->below(3000)));
        w->network.stop_faults();
    }
    for (auto& call : calls) {
        auto checked = check_outcome(w, seen, call);
        co_await checked;
    }
    w->check(seen->violation.empty(), seen->violation);
    calls.clear();
}

task<void> check_nothing_left(sim::world* w, test::sim_cluster* cluster) {
    // The last coroutines hear of their cancellation, the last actors of their handles' end.
    for (int i = 0;
         i < 200 && (cluster->driver().pending() + cluster->running() + cluster->actors()) != 0;
         ++i)
        co_await sleep_for(100ms);
    w->check(cluster->driver().pending() == 0, "a call is left");
    w->check(cluster->running() == 0, "a coroutine is left on a worker");
    w->check(cluster->actors() == 0, "an actor is left on a worker");
}

// ---- actors that are made again -----------------------------------------------------------------

/// Its state is what has run.
struct ledger {
    std::vector<int> seen;
    int under_way = 0, in_group = 0;
    struct presence {
        explicit presence(int& in) : count(in) { ++count; }
        presence(const presence&) = delete;
        ~presence() { --count; }
        int& count;
    };

    int note(int position) {
        seen.push_back(position);
        return position;
    }
    task<int> note_slowly(int position, int ms, int most) {
        seen.push_back(position);
        const presence here(under_way); // also of a cancelled one
        if (under_way > most && most > 0)
            now->violation = "more calls of an actor are under way than it takes";
        co_await sleep_for(std::chrono::milliseconds(ms));
        co_return position;
    }
    task<int> note_in_group(int position, int ms) {
        seen.push_back(position);
        const presence here(in_group);
        if (in_group > 2) now->violation = "more calls of a group are under way than it takes";
        co_await sleep_for(std::chrono::milliseconds(ms));
        co_return position;
    }
    /// Plain, and of the same group.
    int note_in_turn(int position) {
        seen.push_back(position);
        if (in_group >= 2) now->violation = "a plain call of a full group runs";
        return position;
    }
    int last(int position) {
        leave_actor();
        return position;
    }
    std::vector<int> all() const { return seen; }
    using concurrency_groups =
        method_groups<method_group<"few", 2, &ledger::note_in_group, &ledger::note_in_turn>>;
    std::vector<int> save() const { return seen; }
    void load(std::vector<int> saved) { seen = std::move(saved); }
};

/// Keeps a handle between calls, also when it is made again.
struct space_server {
    actor_handle<ledger> kept;
    void keep(actor_handle<ledger> it) { kept = std::move(it); }
    actor_handle<ledger> give() const { return kept; }
    actor_handle<ledger> save() const { return kept; }
    void load(actor_handle<ledger> saved) { kept = std::move(saved); }
};

task<int> note_by_name(std::string name, int position) {
    auto found = skein::get_actor<ledger>(name);
    auto l = co_await found;
    auto noted = l.call<&ledger::note>(position);
    co_return co_await noted;
}
/// Gives a handle through the driver to whoever asks for it.
task<actor_handle<ledger>> pass_on(actor_handle<space_server> from) {
    auto given = from.call<&space_server::give>();
    co_return co_await given;
}
task<int> note_through(actor_handle<space_server> from, int position) {
    auto passed = remote<&pass_on>.with({.cpus = 0})(from);
    auto l = co_await passed;
    auto noted = l.call<&ledger::note>(position);
    co_return co_await noted;
}

struct lasting {
    actor_handle<ledger> handle;
    actor_handle<space_server> holder;
    std::string name;
    int most = 0; ///< .max_concurrency
    bool runs_once = true;
    bool is_over = false; ///< killed, or told to leave
    std::vector<std::pair<int, ref<int>>> calls;
    std::vector<int> through_handle; ///< positions of those that were made through it
    std::vector<int> through_group;  ///< the same of those of the group
};

/// One random call; gives false if the actor is ended by it.
void use(sim::world* w, lasting* one, int position) {
    const int ms = static_cast<int>(w->below(100));
    const auto kind = w->below(13);
    if (one->handle && kind < 8) one->through_handle.push_back(position);
    if (one->handle && kind > 9) one->through_group.push_back(position);
    if (one->handle && kind < 5) {
        one->calls.emplace_back(position, one->handle.call<&ledger::note>(position));
    } else if (one->handle && kind < 8) {
        one->calls.emplace_back(position,
                                one->handle.call<&ledger::note_slowly>(position, ms, one->most));
        if (w->chance(0.1)) one->calls.back().second.cancel();
    } else if (one->handle && kind > 9) {
        one->calls.emplace_back(
            position, kind == 10 ? one->handle.call<&ledger::note_in_turn>(position)
                                 : one->handle.call<&ledger::note_in_group>(position, ms));
        if (w->chance(0.1)) one->calls.back().second.cancel();
    } else if (one->holder && kind == 8) {
        one->calls.emplace_back(
            position, remote<&note_through>.with({.cpus = 0, .retries = 0})(one->holder, position));
    } else {
        one->calls.emplace_back(
            position, remote<&note_by_name>.with({.cpus = 0, .retries = 0})(one->name, position));
    }
}

/// Calls that take a while, so many at once: most of them may have to wait for a seat.
void crowd(sim::world* w, lasting* one, int* position, int count) {
    const int ms = 20 + static_cast<int>(w->below(100));
    for (; count > 0; --count) {
        one->through_handle.push_back(++*position);
        one->calls.emplace_back(*position,
                                one->handle.call<&ledger::note_slowly>(*position, ms, one->most));
    }
}

/// A call is cancelled that has the seat for which another one waits, and a third one comes in the
/// same breath: it stands behind the one that is let in.
task<void> relieve(sim::world* w, lasting* one, int* position) {
    crowd(w, one, position, 2);
    auto first = one->calls[one->calls.size() - 2].second;
    co_await sleep_for(std::chrono::milliseconds(w->below(20)));
    first.cancel();
    one->through_handle.push_back(++*position);
    one->calls.emplace_back(*position, one->handle.call<&ledger::note>(*position));
}

/// The actor is killed, or leaves, while calls wait in its line.
task<void> end_crowded(sim::world* w, lasting* one, int* position) {
    if (w->chance(0.7)) crowd(w, one, position, 3);
    if (w->chance(0.5)) {
        kill(one->handle);
        one->is_over = true;
        co_return;
    }
    auto last = one->handle.call<&ledger::last>(0);
    if (w->chance(0.7)) crowd(w, one, position, 3);
    auto asked = as_result(as_task(last));
    const auto left = co_await asked;
    one->is_over = one->is_over || left.has_value();
}

/// An answered call is in the state, whatever has happened since.
task<void> check_state(sim::world* w, lasting* one) {
    std::vector<int> answered;
    for (auto& [position, r] : one->calls) {
        auto limited = with_timeout(r, 300s);
        auto asked = as_result(std::move(limited));
        const auto outcome = co_await asked;
        w->check(r.ready(), "a call of an actor has no outcome long after the calm");
        if (outcome) {
            w->check(*outcome == position, "a call of an actor got another's value");
            answered.push_back(position);
        } else {
            w->check(is_expected(outcome.error()), outcome.error().what());
        }
    }
    if (!one->handle) co_return;
    auto limited = with_timeout(one->handle.call<&ledger::all>(), 300s);
    auto asked = as_result(std::move(limited));
    const auto seen = co_await asked;
    if (!seen) {
        w->check(is_expected(seen.error()), seen.error().what());
        co_return;
    }
    w->check(!one->is_over, "an actor answers after its end");
    std::map<int, int> times;
    for (const int position : *seen) ++times[position];
    for (const int position : answered)
        w->check(times.contains(position), "an actor has forgotten a call that was answered");
    for (const auto* line : {&one->through_handle, &one->through_group}) {
        std::vector<int> own;
        for (const int position : *seen)
            if (std::binary_search(line->begin(), line->end(), position)) own.push_back(position);
        w->check(!one->runs_once || std::is_sorted(own.begin(), own.end()),
                 "calls to an actor that was made again ran out of order");
    }
    for (const auto& [position, n] : times)
        w->check(n == 1 || !one->runs_once, "a call is in the state of an actor twice");
}

task<void> make_lasting(sim::world* w, lasting* one, std::string name) {
    one->name = std::move(name);
    actor_options how;
    how.restarts = static_cast<int>(w->below(4)) - 1;
    how.call_retries = static_cast<int>(w->below(3));
    how.max_concurrency = one->most = static_cast<int>(w->below(3));
    how.name = one->name;
    how.get_if_exists = w->chance(0.5);
    one->runs_once = how.restarts == 0 || how.call_retries == 0;
    auto made = skein::actor<ledger>.with(how)();
    auto limited = with_timeout(std::move(made), 5s);
    auto asked = as_result(std::move(limited));
    auto outcome = co_await asked;
    if (!outcome) {
        w->check(is_expected(outcome.error()), outcome.error().what());
        co_return;
    }
    one->handle = *outcome;
    if (!w->chance(0.5)) co_return;
    auto keeping = skein::actor<space_server>.with({.restarts = -1, .call_retries = 100})();
    auto soon = with_timeout(std::move(keeping), 5s);
    auto sure = as_result(std::move(soon));
    auto kept = co_await sure;
    if (!kept) co_return;
    one->holder = *kept;
    auto keep = as_result(one->holder.call<&space_server::keep>(one->handle));
    const auto done = co_await keep;
    // From here on the other one keeps it, wherever it is.
    if (done && w->chance(0.5)) one->handle = {};
}

task<void> lasting_actors(sim::world* w) {
    std::vector<lasting> all(1 + w->below(3));
    for (std::size_t i = 0; i < all.size(); ++i) {
        auto made = make_lasting(w, &all[i], "ledger-" + std::to_string(i));
        co_await made;
    }
    const int count = static_cast<int>(w->below(60));
    const double pause = w->chance(0.7) ? 0.3 : 0.02; // seldom: calls come in bursts
    for (int i = 1; i <= count; ++i) {
        auto& one = all[w->below(all.size())];
        use(w, &one, i);
        if (one.handle && w->chance(0.1)) {
            auto relieved = relieve(w, &one, &i);
            co_await relieved;
        }
        if (one.handle && w->chance(0.03)) {
            auto ended = end_crowded(w, &one, &i);
            co_await ended;
        }
        if (w->chance(pause)) co_await sleep_for(std::chrono::milliseconds(w->below(200)));
    }
    co_await sleep_for(5s); // the calm has come
    w->network.stop_faults();
    for (auto& one : all) {
        auto checked = check_state(w, &one);
        co_await checked;
    }
    std::vector<std::string> names;
    for (const auto& one : all) names.push_back(one.name);
    all.clear();
    co_await sleep_for(2s);
    for (const auto& name : names) {
        auto asked = as_result(skein::get_actor<ledger>(name));
        const auto left = co_await asked;
        w->check(!left, "a name is taken that nobody holds");
    }
}

task<void> everything(sim::world* w, test::sim_cluster* cluster, history* seen,
                      std::uint16_t cpus) {
    scope both;
    if (w->chance(0.6)) both.spawn(lasting_actors(w));
    both.spawn(caller(w, cluster, seen, cpus));
    auto joined = both.join();
    co_await joined;
    auto rest = check_nothing_left(w, cluster);
    co_await rest;
}

task<void> scenario(sim::world& w) {
    history seen;
    now = &seen;
    const int workers = 1 + static_cast<int>(w.below(3));
    const auto cpus = static_cast<std::uint16_t>(1 + w.below(3));
    const auto credit = w.chance(0.6) ? 1 + static_cast<std::uint32_t>(w.below(5)) : 1024U;
    const std::size_t credit_bytes = w.chance(0.2) ? 200 : limit::credit_bytes;
    test::sim_cluster cluster(w.loop, w.network, workers, cpus, credit, credit_bytes);
    if (w.chance(0.5)) cluster.share_no_memory();
    seen.cluster = &cluster;
    if (w.chance(0.4)) seen.deadly = 0.05;
    auto body = [&](test::sim_cluster& c) { return everything(&w, &c, &seen, cpus); };
    auto running = cluster.run(body);
    co_await running;
}

const sim::scenario registered("rt_calls", &scenario);

} // namespace rt_calls
