// SPDX-License-Identifier: Apache-2.0
// rt_direct: workers call the actors of each other without their driver, while workers die, links
// between them are cut, reset and slow, and the driver calls the same actors. Handles travel with
// these calls, and come back with them.
//
// Invariants: every call ends exactly once, with its own value or an expected error; a value means
// that it ran, "did not run" that it did not; a call runs at most once; the calls of one process to
// one actor run in the order in which they were made, those of a group of its methods in their own;
// no more of them are under way than it takes; an actor lives while anybody holds it; after the
// calm nothing is left. Credit is small as a rule, and bursts exceed it.
#include "sim/scenario.hpp"

#include <tests/support/sim_cluster.hpp>

#include <skein/core/scope.hpp>
#include <skein/core/timeout.hpp>
#include <skein/rt/runtime_context.hpp>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace rt_direct {

using namespace skein;
using namespace std::chrono_literals;

/// What the processes of this world did.
struct history {
    std::map<int, int> runs;                                     ///< of a call
    std::map<std::pair<std::int64_t, std::uint64_t>, int> asked; ///< (caller's pid, actor) -> calls
    std::map<std::pair<std::int64_t, std::uint64_t>, int>
        asked_group; ///< the same of those of its group
    int last_call = 0;
    int last_tag = 0;
    std::vector<int> shouted; ///< calls whose outcome nobody looks at
    std::set<int> ended;      ///< the tags of actors that are gone
    bool is_calm = false;     ///< nothing dies or breaks, nobody kills
    std::string violation;

    void check(bool holds, const std::string& what) {
        if (!holds && violation.empty()) violation = what;
    }
};
thread_local history* now = nullptr;

std::int64_t own_pid() { return rt::runtime::current().name().pid; }

struct post;
using post_handle = actor_handle<post>;

/// A call that was made: of whom, and which one of its caller's calls of that actor.
struct stamp {
    int call = 0;
    std::int64_t caller = 0;
    int position = 0;
};

template <class Handle>
stamp stamp_for(const Handle& to, bool of_group = false) {
    stamp out;
    out.call = ++now->last_call;
    out.caller = own_pid();
    auto& asked = of_group ? now->asked_group : now->asked;
    out.position = ++asked[{out.caller, to.id().value().number ^ to.id().value().incarnation}];
    return out;
}

bool is_expected(const error& e) {
    if (now->is_calm && (e.code() == errc::worker_lost || e.code() == errc::reset ||
                         e.code() == errc::not_found || e.code() == errc::closed))
        return false;
    return e.code() == errc::worker_lost || e.code() == errc::reset ||
           e.code() == errc::cancelled || e.code() == errc::timeout ||
           e.code() == errc::not_found || e.code() == errc::remote_exception;
}

/// One call and what came of it.
task<void> check_call(stamp of, ref<int> r) {
    auto limited = with_timeout(r, 300s);
    auto asked = as_result(std::move(limited));
    const auto outcome = co_await asked;
    if (!r.ready()) { // cancelled, for its process has died; or it hangs
        now->check(!outcome && outcome.error().code() == errc::cancelled,
                   "a call has no outcome long after the calm");
        co_return;
    }
    const int runs = now->runs[of.call];
    now->check(runs <= 1, "a call ran twice");
    if (outcome) {
        now->check(*outcome == of.call, "a call got another call's value");
        now->check(runs == 1, "a value came from a call that did not run");
        co_return;
    }
    now->check(is_expected(outcome.error()) ||
                   (!now->is_calm && outcome.error().code() == errc::closed),
               outcome.error().what());
    const auto text = outcome.error().text().substr(0, outcome.error().text().find("; lost with"));
    const bool said_no =
        outcome.error().where().empty() && text.find(" did not run") != std::string::npos;
    now->check(!said_no || runs == 0, "a call ran although its error says it did not: " + text);
}

/// What goes along with a call, by its number.
std::vector<std::string> luggage(int call) {
    return std::vector<std::string>(static_cast<std::size_t>(call % 5),
                                    "bag " + std::to_string(call));
}

struct post {
    int tag = 0; ///< who looks for this one's end has given it
    ~post() {
        if (tag != 0 && now != nullptr) now->ended.insert(tag);
    }
    std::map<std::int64_t, int> last, last_in_group; ///< of each caller
    std::vector<actor_handle<post>> kept;
    int in_group = 0; ///< under way

    void arrive(const stamp& s, bool of_group = false) {
        auto& before = of_group ? last_in_group[s.caller] : last[s.caller];
        now->check(++now->runs[s.call] == 1, "a call ran twice");
        now->check(s.position > before, "the calls of one process ran out of order");
        before = s.position;
        now->check(!of_group || in_group < 2, "more calls of a group are under way than it takes");
    }
    int note(stamp s) {
        arrive(s);
        return s.call;
    }
    int broken(stamp s) {
        arrive(s);
        throw std::runtime_error("broken on purpose");
    }
    task<int> note_slowly(stamp s, int ms) {
        arrive(s);
        co_await sleep_for(std::chrono::milliseconds(ms));
        co_return s.call;
    }
    task<int> note_few(stamp s, int ms) {
        arrive(s, true);
        struct presence {
            explicit presence(int& in) : count(in) { ++count; }
            presence(const presence&) = delete;
            ~presence() { --count; } // also of a cancelled one
            int& count;
        } const here(in_group);
        co_await sleep_for(std::chrono::milliseconds(ms));
        co_return s.call;
    }
    /// Plain, and of the same group.
    int note_in_turn(stamp s) {
        arrive(s, true);
        return s.call;
    }
    int keep(stamp s, actor_handle<post> other) {
        arrive(s);
        kept.push_back(std::move(other));
        return s.call;
    }
    /// The same, and meanwhile other calls are answered.
    task<int> keep_slowly(stamp s, post_handle other, int ms) {
        arrive(s);
        kept.push_back(std::move(other));
        co_await sleep_for(std::chrono::milliseconds(ms));
        co_return s.call;
    }
    /// Carries what came as a copy, and what was moved.
    int carry(stamp s, std::vector<std::string> copied, std::vector<std::string> moved,
              std::string_view text) {
        arrive(s);
        const auto expected = luggage(s.call);
        now->check(copied == expected && moved == expected && text == std::to_string(s.call),
                   "an argument is not what was given");
        copied.clear();
        return s.call;
    }
    int wear(stamp s, int its_tag) {
        arrive(s);
        tag = its_tag;
        return s.call;
    }
    /// Lets go of a handle at once: its actor stays until this call has ended.
    task<int> let_go(stamp s, post_handle other, int its_tag) {
        arrive(s);
        other = {};
        co_await sleep_for(300ms);
        now->check(!now->is_calm || !now->ended.contains(its_tag),
                   "an actor ended while a call had its handle");
        co_return s.call;
    }
    /// Plain, so it waits for nothing, and neither do its calls for the end of it.
    int shout(stamp s, const actor_handle<post>& to, int times) {
        arrive(s);
        for (int i = 0; i < times; ++i) call_blindly(to);
        return s.call;
    }
    static void call_blindly(const actor_handle<post>& to);
    int forget(stamp s) {
        arrive(s);
        kept.clear();
        return s.call;
    }
    std::vector<actor_handle<post>> give(stamp s) {
        arrive(s);
        return kept;
    }
    int leave(stamp s) {
        arrive(s);
        leave_actor();
        return s.call;
    }
    /// Calls another one, perhaps itself, and waits for it.
    task<int> pass(stamp s, actor_handle<post> to, int depth);
    using concurrency_groups =
        method_groups<method_group<"few", 2, &post::note_few, &post::note_in_turn>>;
};

/// A random call of an actor; the reader of its outcome goes into `readers`.
void call_one(const post_handle& to, const std::vector<post_handle>& others, int kind,
              scope* readers) {
    const auto s = stamp_for(to, kind == 10 || kind == 11);
    const auto& other = others[static_cast<std::size_t>(s.call) % others.size()];
    ref<int> r;
    switch (kind) {
    case 0:
    case 1: r = to.call<&post::note>(s); break;
    case 2: r = to.call<&post::shout>(s, other, s.call % 5); break;
    case 3: r = to.call<&post::note_slowly>(s, s.call % 50); break;
    case 4: r = to.call<&post::broken>(s); break;
    case 5: // in one direction: those that hold each other would never end
        r = to.id() < other.id() ? to.call<&post::keep>(s, other) : to.call<&post::note>(s);
        break;
    case 6: r = to.call<&post::forget>(s); break;
    case 7: r = to.call<&post::pass>(s, other, s.call % 3); break;
    case 8:
        r = to.call<&post::note_slowly>(s, 20);
        r.cancel();
        break;
    case 9: r = remote<&post::note_slowly>.with({.deadline = 5ms})(to, s, s.call % 10); break;
    case 10:
        r = to.call<&post::note_few>(s, s.call % 80);
        if (s.call % 7 == 0) r.cancel();
        break;
    case 11:
        r = to.call<&post::note_in_turn>(s);
        if (s.call % 7 == 0) r.cancel();
        break;
    case 12: {
        auto copied = luggage(s.call);
        auto moved = copied;
        r = to.call<&post::carry>(s, copied, std::move(moved), std::to_string(s.call));
        now->check(copied == luggage(s.call), "a call has changed what was copied for it");
        break;
    }
    default: (void)to.call<&post::note>(s); return; // for its effect alone
    }
    readers->spawn(check_call(s, r));
}

void post::call_blindly(const actor_handle<post>& to) {
    const auto s = stamp_for(to);
    now->shouted.push_back(s.call);
    (void)to.call<&post::note>(s);
}

/// A plain task that does so, on a worker that may call them for the first time.
int shout_around(std::vector<post_handle> posts, int times) {
    for (int i = 0; i < times; ++i)
        for (const auto& to : posts) post::call_blindly(to);
    return times;
}

task<int> post::pass(stamp s, actor_handle<post> to, int depth) {
    arrive(s);
    const auto mine = stamp_for(to);
    auto r = depth > 0 ? to.call<&post::pass>(mine, to, depth - 1) : to.call<&post::note>(mine);
    auto checked = check_call(mine, r);
    co_await checked;
    co_return s.call;
}

/// What is held somewhere can be called, and who gives a handle away may let go of it.
task<void> through_gift(post_handle from, scope* readers) {
    const auto s = stamp_for(from);
    auto limited = with_timeout(from.call<&post::give>(s), 300s);
    auto asked = as_result(std::move(limited));
    const auto got = co_await asked;
    if (!got) {
        now->check(is_expected(got.error()) ||
                       (!now->is_calm && got.error().code() == errc::closed),
                   got.error().what());
        co_return;
    }
    for (const auto& one : *got) {
        if (!one) continue;
        const auto mine = stamp_for(one);
        readers->spawn(check_call(mine, one.call<&post::note>(mine)));
    }
}

/// Makes an actor that from then on nobody holds but the one to which it is given.
task<void> deposit(post_handle with) {
    auto limited = with_timeout(skein::actor<post>(), 300s);
    auto asked = as_result(std::move(limited));
    const auto made = co_await asked;
    if (!made) {
        now->check(is_expected(made.error()) ||
                       (!now->is_calm && made.error().code() == errc::closed),
                   made.error().what());
        co_return;
    }
    const auto s = stamp_for(with);
    auto kept =
        check_call(s, s.call % 2 == 0 ? with.call<&post::keep>(s, *made)
                                      : with.call<&post::keep_slowly>(s, *made, s.call % 7 * 60));
    co_await kept;
}

/// Makes an actor and gives the last handle to it away with a call.
task<void> give_away(post_handle to) {
    auto limited = with_timeout(skein::actor<post>(), 300s);
    auto asked = as_result(std::move(limited));
    auto made = co_await asked;
    if (!made) {
        now->check(is_expected(made.error()) ||
                       (!now->is_calm && made.error().code() == errc::closed),
                   made.error().what());
        co_return;
    }
    const int tag = ++now->last_tag;
    const auto first = stamp_for(*made);
    auto worn = check_call(first, made->call<&post::wear>(first, tag));
    co_await worn;
    const auto s = stamp_for(to);
    auto left = check_call(s, to.call<&post::let_go>(s, std::move(*made), tag));
    co_await left;
}

/// A task that calls actors on other workers.
task<int> chatter(std::vector<post_handle> posts, int count, std::uint64_t seed) {
    scope readers;
    std::uint64_t x = seed | 1;
    const auto draw = [&](std::uint64_t bound) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        return static_cast<int>(x % bound);
    };
    std::exception_ptr failure;
    try {
        for (int i = 0; i < count; ++i) {
            const auto& to = posts[static_cast<std::size_t>(draw(posts.size()))];
            if (draw(12) == 0) {
                auto gift = through_gift(to, &readers);
                co_await gift;
            } else if (draw(8) == 0) {
                auto given = deposit(to);
                co_await given;
            } else if (draw(12) == 0) {
                auto given = give_away(to);
                co_await given;
            } else if (draw(100) == 0 && !now->is_calm) {
                kill(to);
            } else {
                call_one(to, posts, draw(14), &readers);
            }
            for (int burst = draw(6) == 0 ? draw(12) : 0; burst > 0; --burst)
                call_one(to, posts, draw(13), &readers);
            if (draw(3) == 0) co_await sleep_for(std::chrono::milliseconds(draw(100)));
        }
        auto read = readers.join();
        co_await read;
    } catch (...) {
        failure = std::current_exception();
        readers.cancel();
    }
    auto ended = as_result(shield(readers.join()));
    (void)co_await ended;
    if (failure) std::rethrow_exception(failure);
    co_return count;
}

/// A task hands on what it was given, perhaps to an actor of its own worker, and keeps nothing: the
/// second of two is given to the first. They are one argument, because compilers destroy a
/// coroutine's arguments in different orders.
task<int> hand_on(std::vector<post_handle> both) {
    const auto s = stamp_for(both[0]);
    auto kept = check_call(s, both[0].call<&post::keep>(s, std::move(both[1])));
    co_await kept;
    co_return 1;
}
task<void> have_handed_on(post_handle to, std::vector<ref<int>>* tasks) {
    auto limited = with_timeout(skein::actor<post>(), 5s);
    auto asked = as_result(std::move(limited));
    auto made = co_await asked;
    if (!made) co_return;
    std::vector<post_handle> both;
    both.push_back(std::move(to));
    both.push_back(std::move(*made));
    tasks->push_back(remote<&hand_on>.with({.cpus = 0, .retries = 0})(std::move(both)));
}

task<void> make_posts(sim::world* w, std::vector<post_handle>* into) {
    const auto wanted = 1 + w->below(4);
    for (int tries = 0; into->size() < wanted && tries < 20; ++tries) {
        auto made =
            w->chance(0.9) ? skein::actor<post>() : skein::actor<post>.with({.restarts = 2})();
        auto limited = with_timeout(std::move(made), 5s);
        auto asked = as_result(std::move(limited));
        const auto outcome = co_await asked;
        if (outcome) into->push_back(*outcome);
    }
}

task<void> everything(sim::world* w, test::sim_cluster* cluster) {
    {
        std::vector<post_handle> posts;
        auto making = make_posts(w, &posts);
        co_await making;
        std::vector<ref<int>> tasks;
        scope readers;
        const double kill_rate = !now->is_calm && w->chance(0.5) ? 0.1 : 0.0;
        const int rounds = 3 + static_cast<int>(w->below(10));
        for (int i = 0; i < rounds && !posts.empty(); ++i) {
            const int words = 1 + static_cast<int>(w->below(20));
            const auto seed = w->loop.random().next();
            tasks.push_back(remote<&chatter>.with({.cpus = 0, .retries = 0})(posts, words, seed));
            if (w->chance(0.4)) {
                const int times = 1 + static_cast<int>(w->below(6));
                const int cpus = w->chance(0.5) ? 1 : 0;
                tasks.push_back(
                    remote<&shout_around>.with({.cpus = cpus, .retries = 0})(posts, times));
            }
            const auto whom = w->below(posts.size());
            call_one(posts[whom], posts, static_cast<int>(w->below(13)), &readers);
            if (w->chance(0.3)) {
                auto handing = have_handed_on(posts[whom], &tasks);
                co_await handing;
            }
            if (w->chance(0.05)) tasks[w->below(tasks.size())].cancel();
            if (w->chance(0.1) && posts.size() > 1) posts.pop_back();
            if (w->chance(kill_rate))
                cluster->kill(
                    static_cast<int>(w->below(static_cast<std::uint64_t>(cluster->workers()))));
            // What a worker says to the driver may be late, without any harm.
            const bool is_late = now->is_calm && w->chance(0.3);
            const auto late =
                static_cast<int>(w->below(static_cast<std::uint64_t>(cluster->workers())));
            if (is_late) w->network.partition(test::sim_cluster::host_of(late), "driver");
            const std::uint64_t longest = is_late ? 1000 : 200;
            co_await sleep_for(std::chrono::milliseconds(w->below(longest)));
            if (is_late) w->network.heal_all();
        }
        co_await sleep_for(std::chrono::milliseconds(w->below(3000)));
        w->network.stop_faults();
        for (auto& t : tasks) {
            auto limited = with_timeout(t, 600s);
            auto asked = as_result(std::move(limited));
            const auto outcome = co_await asked;
            w->check(t.ready(), "a task that calls actors has no outcome long after the calm");
            w->loop.trace(outcome ? 1 : 1000 + static_cast<std::uint64_t>(outcome.error().code()));
            if (!outcome) w->check(is_expected(outcome.error()), outcome.error().what());
        }
        auto read = readers.join();
        co_await read;
    }
    for (int i = 0;
         i < 300 && (cluster->driver().pending() + cluster->running() + cluster->actors()) != 0;
         ++i)
        co_await sleep_for(100ms);
    w->check(now->violation.empty(), now->violation);
    for (const int call : now->shouted)
        w->check(!now->is_calm || now->runs[call] == 1, "a call of a plain function did not run");
    w->check(cluster->driver().pending() == 0, "a call is left");
    w->check(cluster->running() == 0, "a coroutine is left on a worker");
    w->check(cluster->actors() == 0, "an actor is left on a worker");
}

task<void> scenario(sim::world& w) {
    history seen;
    now = &seen;
    w.network.draw_clocks();
    seen.is_calm = w.chance(0.3);
    if (seen.is_calm) w.network.stop_faults();
    const int workers = 2 + static_cast<int>(w.below(3));
    const auto credit = w.chance(0.6) ? 1 + static_cast<std::uint32_t>(w.below(5)) : 1024U;
    const std::size_t credit_bytes = w.chance(0.2) ? 300 : limit::credit_bytes;
    test::sim_cluster cluster(w.loop, w.network, workers, 2, credit, credit_bytes);
    if (w.chance(0.5)) cluster.share_no_memory();
    auto body = [&](test::sim_cluster& c) { return everything(&w, &c); };
    auto running = sim::run_on(w.network.loop_of("driver"), cluster.run(body));
    co_await running;
}

const sim::scenario registered("rt_direct", &scenario);

} // namespace rt_direct
