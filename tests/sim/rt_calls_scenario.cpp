// SPDX-License-Identifier: Apache-2.0
// rt_calls: a driver calls tasks and actors on workers that die, while links are cut, reset and slow; the
// tasks call others, and make actors of their own.
//
// Invariants: every call ends exactly once, with its own value or an expected error; a value means it
// ran, "did not run" means it did not; a call runs at most once on one worker process, a method at most
// once at all; calls to an actor run in the order in which they were made; after the calm all calls
// end, and no call, coroutine, actor or stream is left.
#include "sim/scenario.hpp"

#include <tests/support/sim_cluster.hpp>

#include <skein/core/scope.hpp>
#include <skein/core/timeout.hpp>
#include <skein/rt/runtime_context.hpp>

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

    void ran(int call) {
        if (++by_process[{rt::runtime::current().name().pid, runtime_context().call}] > 1)
            violation = "a call ran twice on one worker";
        ++by_call[call];
    }
};
thread_local history* now = nullptr;

int quick(int call) {
    now->ran(call);
    return call;
}
int quick_after(int call, int) { return quick(call); }
int broken(int call) {
    now->ran(call);
    throw std::runtime_error("broken on purpose");
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
    ref<int> result;
};

bool is_expected(const error& e) {
    return e.code() == errc::worker_lost || e.code() == errc::timeout ||
           e.code() == errc::cancelled || e.code() == errc::remote_exception ||
           e.code() == errc::not_found;
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
    const auto kind = w->below(actor ? 10 : 7);
    switch (kind) {
    case 0: made.result = remote<&quick>.with(how)(call); break;
    case 1: made.result = remote<&broken>.with(how)(call); break;
    case 2: made.result = remote<&wait_a_while>.with(how)(call, ms); break;
    case 3:
        made.result = has_ref ? remote<&quick_after>.with(how)(call, other)
                              : remote<&quick_after>.with(how)(call, 1);
        break;
    case 4:
        made.result = remote<&after_wait>.with(how)(remote<&wait_a_while>(-call, ms), call);
        break;
    case 5:
        made.result = remote<&spread_out>.with(how)(call, 1 + static_cast<int>(w->below(3)),
                                                    static_cast<int>(w->below(3)));
        break;
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
            if (w->chance(0.3)) co_await sleep_for(std::chrono::milliseconds(w->below(200)));
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
    // The last coroutines hear of their cancellation, the last actors of their handles' end.
    for (int i = 0;
         i < 200 && (cluster->driver().pending() + cluster->running() + cluster->actors()) != 0;
         ++i)
        co_await sleep_for(100ms);
    w->check(cluster->driver().pending() == 0, "a call is left");
    w->check(cluster->running() == 0, "a coroutine is left on a worker");
    w->check(cluster->actors() == 0, "an actor is left on a worker");
}

task<void> scenario(sim::world& w) {
    history seen;
    now = &seen;
    const int workers = 1 + static_cast<int>(w.below(3));
    const auto cpus = static_cast<std::uint16_t>(1 + w.below(3));
    test::sim_cluster cluster(w.loop, w.network, workers, cpus);
    if (w.chance(0.5)) cluster.share_no_memory();
    auto body = [&](test::sim_cluster& c) { return caller(&w, &c, &seen, cpus); };
    auto running = cluster.run(body);
    co_await running;
}

const sim::scenario registered("rt_calls", &scenario);

} // namespace rt_calls
