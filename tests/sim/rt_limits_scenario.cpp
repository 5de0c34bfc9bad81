// SPDX-License-Identifier: Apache-2.0
// rt_limits: calls that never end by themselves, on workers that die, while links are cut, reset
// and slow. Deadlines and cancellations end them, and what they have called.
//
// Invariants: a call with a deadline is told what is left of it, however long it stood in line;
// each call that was cancelled or is late ends, with an error, and nothing of it runs on.
#include "sim/scenario.hpp"

#include <tests/support/sim_cluster.hpp>

#include <skein/core/timeout.hpp>
#include <skein/rt/runtime_context.hpp>

#include <string>
#include <vector>

namespace rt_limits {

using namespace skein;
using namespace std::chrono_literals;

/// What the workers of this world do.
struct history {
    duration slack{}; ///< a deadline may seem to be later by what a message takes
    std::string violation;
};
thread_local history* now = nullptr;

std::int64_t time_of(time_point t) { return t.time_since_epoch().count(); }

/// until: when the call ends at the latest; 0: it has no deadline
void check_deadline(std::int64_t until) {
    const auto left = runtime_context().time_left;
    if (left.has_value() != (until != 0))
        now->violation = "a deadline was lost, or came from nowhere";
    if (left && time_of(deadline_after(loop::current().now(), *left)) > until + now->slack.count())
        now->violation = "a call was promised more time than its caller has";
}

task<int> compute(int call, std::int64_t until, int ms) {
    check_deadline(until);
    co_await sleep_for(std::chrono::milliseconds(ms));
    co_return call;
}
task<int> never_end(int call) {
    co_await sleep_for(std::chrono::hours(10));
    co_return call;
}
task<int> wait_for_children(int call, std::int64_t until, int count) {
    check_deadline(until);
    co_await sleep_for(1ms); // a cancellation that is there already ends it here
    std::vector<ref<int>> children;
    for (int i = 0; i < count; ++i) children.push_back(remote<&never_end>(call));
    for (auto& child : children) {
        auto waiting = as_result(as_task(child));
        const auto outcome = co_await waiting;
        if (outcome) continue;
        if (child.ready()) // the others go on when this returns; a cancellation takes them along
            for (auto& other : children) other.cancel();
        throw outcome.error();
    }
    co_return call;
}

struct outstanding {
    int call = 0;
    bool ends = false; ///< by itself
    ref<int> result;
};

outstanding submit(sim::world* w, int call) {
    outstanding made;
    made.call = call;
    call_options how;
    how.retries = static_cast<int>(w->below(4));
    std::int64_t until = 0;
    if (w->chance(0.4)) {
        how.deadline = std::chrono::milliseconds(1 + w->below(4000));
        until = time_of(deadline_after(w->loop.now(), how.deadline));
    }
    switch (w->below(4)) {
    case 0: made.result = remote<&never_end>.with(how)(call); break;
    case 1:
        made.result =
            remote<&wait_for_children>.with(how)(call, until, 1 + static_cast<int>(w->below(3)));
        break;
    default:
        made.ends = true;
        made.result = remote<&compute>.with(how)(call, until, static_cast<int>(w->below(400)));
    }
    return made;
}

bool is_expected(errc code) {
    return code == errc::cancelled || code == errc::timeout || code == errc::worker_lost;
}

task<void> check_outcome(sim::world* w, outstanding call) {
    auto limited = with_timeout(call.result, 120s);
    auto asked = as_result(std::move(limited));
    const auto outcome = co_await asked;
    w->check(call.result.ready(), "a call has no outcome long after it was cancelled");
    w->loop.trace(outcome ? static_cast<std::uint64_t>(*outcome)
                          : 1000 + static_cast<std::uint64_t>(outcome.error().code()));
    if (outcome) {
        w->check(call.ends && *outcome == call.call, "a value that nobody has computed");
    } else {
        w->check(is_expected(outcome.error().code()), outcome.error().what());
    }
}

task<void> caller(sim::world* w, test::sim_cluster* cluster) {
    std::vector<outstanding> calls;
    const int count = 10 + static_cast<int>(w->below(40));
    const double kill = w->chance(0.5) ? 0.1 : 0.0;
    for (int i = 1; i <= count; ++i) {
        calls.push_back(submit(w, i));
        if (w->chance(0.3)) calls[w->below(calls.size())].result.cancel();
        if (w->chance(kill))
            cluster->kill(
                static_cast<int>(w->below(static_cast<std::uint64_t>(cluster->workers()))));
        if (w->chance(0.5)) co_await sleep_for(std::chrono::milliseconds(w->below(300)));
        w->check(now->violation.empty(), now->violation);
    }
    co_await sleep_for(std::chrono::milliseconds(w->below(2000)));
    w->network.stop_faults();
    for (auto& call : calls)
        if (!call.ends || w->chance(0.2)) call.result.cancel();
    for (auto& call : calls) {
        auto checked = check_outcome(w, call);
        co_await checked;
    }
    calls.clear();
    for (int i = 0; i < 200 && (cluster->driver().pending() + cluster->running()) != 0; ++i)
        co_await sleep_for(100ms);
    w->check(cluster->driver().pending() == 0, "a call is left");
    w->check(cluster->running() == 0, "a coroutine is left on a worker");
    w->check(now->violation.empty(), now->violation);
}

task<void> scenario(sim::world& w) {
    history seen;
    now = &seen;
    const int workers = 1 + static_cast<int>(w.below(3));
    const auto cpus = static_cast<std::uint16_t>(1 + w.below(3));
    seen.slack = std::chrono::hours(1);
    if (w.chance(0.5)) { // links are whole: messages take no time worth speaking of
        w.network.stop_faults();
        seen.slack = 20ms;
    }
    test::sim_cluster cluster(w.loop, w.network, workers, cpus);
    if (w.chance(0.5)) cluster.share_no_memory();
    auto body = [&](test::sim_cluster& c) { return caller(&w, &c); };
    auto running = cluster.run(body);
    co_await running;
}

const sim::scenario registered("rt_limits", &scenario);

} // namespace rt_limits
