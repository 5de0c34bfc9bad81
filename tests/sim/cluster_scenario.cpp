// SPDX-License-Identifier: Apache-2.0
// cluster: a head, nodes with agents and worker processes, drivers, all with their real code. Heads
// and agents are killed and started again, machines stop without a word, workers are killed and
// stand still, starts fail and hang, links break and are cut, bits flip, nodes are drained,
// strangers answer where a head was; calls go on all the while. Most heads have a log, on a disk
// that fails, fills up, loses and tears what is not synced, and rots. Clocks run fast and slow,
// wall clocks jump.
//
// Invariants: each call ends once, with its own value or an expected error; a task runs once and
// once more per retry at most, a method at most once; what is to run where an actor is runs there;
// a node never holds more than it has, and no two tasks or actors its only gpu. When faults have
// ended every node that lives is in the cluster, each driver has the workers it wants (or some,
// where both want all), as many processes run as the head has granted leases, and all calls end,
// those in placement groups, too. What a worker prints reaches its driver in whole lines and in
// order, and what is missing was counted. A head that is killed in the calm and comes back takes
// all workers over. A head always starts, whatever is on its disk; a drain that was acknowledged as
// durable is in the log of the next one, and the log stays small. When the drivers have ended no
// worker is left.
#include "sim/scenario.hpp"

#include <skein/core/timeout.hpp>
#include <skein/rt/placement_group.hpp>
#include <skein/rt/remote.hpp>
#include <skein/rt/runtime_context.hpp>
#include <tests/support/sim_nodes.hpp>
#include <tests/support/sim_stranger.hpp>

#include <skein/sim/disk.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace cluster_world {

using namespace skein;
using namespace std::chrono_literals;
using test::sim_nodes;

/// What one worker's process has printed.
struct spoken {
    std::uint64_t lines = 0;
    bool busy = false;
};

struct history {
    std::map<std::pair<std::string, std::int64_t>, spoken> said; ///< by host and pid
    std::map<int, int> runs;                                     ///< by call
    std::map<std::string, int> gpus;                             ///< in use, by host
    std::string violation;
};
thread_local history* now = nullptr;

int plain(int call) {
    ++now->runs[call];
    return call;
}
task<int> slow(int call, int ms) {
    co_await sleep_for(std::chrono::milliseconds(ms));
    co_return call;
}
/// On a node with one gpu. Its worker may be cut off and still run when the node is taken for dead:
/// then two are allowed, see docs/cluster.md; each agent ends its own workers before it starts
/// others.
task<int> with_gpu(int call, int ms) {
    const auto here = runtime_context();
    struct use {
        explicit use(int& n) : used(n) { ++used; }
        use(const use&) = delete;
        ~use() { --used; }
        int& used;
    } const mine(now->gpus[here.host]);
    if (mine.used > 1) now->violation = "two tasks have the only gpu of " + here.host;
    co_await sleep_for(std::chrono::milliseconds(ms));
    co_return call;
}
task<int> with_disk(int call, int ms) {
    auto inner = remote<&slow>.with({.cpus = 0})(-call, ms);
    const int got = co_await inner;
    co_return -got;
}
/// In the group of that name, from a worker; there may be none any more.
task<int> in_named(int call, int ms, std::string name) {
    auto inner = remote<&slow>.with({.cpus = 0, .resources = "disk=0.5", .on = group_named(name)})(
        -call, ms);
    const int got = co_await inner;
    co_return -got;
}
/// Waits for the group or not, runs in it, and may remove it.
task<int> in_group(int call, int ms, placement_group group) {
    if (ms % 2 == 0) {
        auto ready = with_timeout(group.ready(), 2s);
        co_await ready;
    }
    auto inner = remote<&slow>.with({.cpus = 0, .resources = "disk=0.5", .on = group})(-call, ms);
    const int got = co_await inner;
    if (ms % 10 == 1) {
        auto removed = with_timeout(group.remove(), 5s);
        co_await removed;
    }
    co_return -got;
}
/// The same as in_named by a handle, which it may hold longer than others do.
task<int> in_found(int call, int ms, std::string name) {
    auto found = get_placement_group(name);
    auto group = co_await found;
    auto inside = in_group(call, ms, std::move(group));
    co_return co_await inside;
}
/// In one that it is given, perhaps by way of another task. Both are in it, too: it may have all
/// cpus, and is held meanwhile.
task<int> in_given(int call, int ms, placement_group group) {
    if (ms % 4 == 0) {
        auto next = remote<&in_given>.with({.cpus = 0, .on = group})(call, ms + 1, group);
        group = {};
        co_return co_await next;
    }
    auto inside = in_group(call, ms, std::move(group));
    co_return co_await inside;
}
/// In a group that it makes itself, and that ends with it or before; its name may be taken.
task<int> in_made(int call, int ms) {
    const placement_group group({"disk=0.5"}, {.name = ms % 4 == 0 ? "own" : ""});
    auto inside = in_group(call, ms, group);
    co_return co_await inside;
}
/// Has the gpu of its host as long as it lives.
struct holder {
    holder() : host(runtime_context().host) {
        if (++now->gpus[host] > 1) now->violation = "an actor and another have the only gpu";
    }
    holder(const holder&) = delete;
    ~holder() { --now->gpus[host]; }
    std::string host;
    int note(int call) {
        ++now->runs[call];
        return call;
    }
};
/// Prints numbered lines, all on the output or all on the error, so that their order can be seen.
task<int> talk(int call, int lines, int length) {
    auto* const self = sim_nodes::this_process();
    const auto here = runtime_context();
    auto& mine = now->said[{here.host, here.pid}];
    if (self == nullptr || std::exchange(mine.busy, true)) co_return call; // one at a time
    std::string text;
    for (int i = 0; i < lines; ++i)
        text += fmt::format("{} {} {} {}\n", here.host, here.pid, ++mine.lines,
                            std::string(static_cast<std::size_t>(length), 'x'));
    auto printing = self->print(here.pid % 2 == 0, std::move(text));
    co_await printing;
    mine.busy = false;
    co_return call;
}
struct ledger {
    int last = 0;
    std::string where() { return runtime_context().host; }
    int note(int call, int position) {
        ++now->runs[call];
        if (position <= last) now->violation = "calls to an actor ran out of order";
        last = position;
        return call;
    }
};

/// Is to run where the actor is, which is not made again.
task<int> follow(int call, actor_handle<ledger> actor) {
    const auto here = runtime_context().host;
    auto asked = as_result(with_timeout(as_task(actor.call<&ledger::where>()), 2s));
    const auto there = co_await asked;
    if (there && *there != here)
        now->violation = fmt::format("a task runs on {}, its actor on {}", here, *there);
    co_return call;
}

struct stage {
    sim::world& w;
    sim_nodes& c;
    int last_call = 0;
    bool calm = false;
    bool shared = false;                     ///< both drivers want all there is
    bool is_contended = false;               ///< there are two
    int added = 0;                           ///< nodes came at the end
    bool has_own = false, has_actors = true; ///< tasks that need workers of their own
    bool prints = false;                     ///< drivers print what workers do
    struct heard {
        std::uint64_t last = 0; ///< lines that were printed or counted
        std::pair<std::string, std::int64_t> process;
    };
    std::map<std::string, heard> heard_of{}; ///< by driver and worker
    sim::disk* disk = nullptr;               ///< of the head, if it has a log
    struct drained {
        std::set<bool> may_be{false}; ///< what the log may say of the node
        std::set<bool> late{};        ///< what was asked for and not answered: it may still arrive
    };
    std::map<std::string, drained> drains{};
    std::vector<const sim_nodes::driver*> drivers{};
};

struct outstanding {
    int call = 0, retries = 0;
    bool counts_runs = true, is_method = false;
    const char* what = "";
    ref<int> result;
};

bool is_expected(const error& e) {
    switch (e.code()) {
    case errc::worker_lost:
    case errc::timeout:
    case errc::cancelled:
    case errc::invalid_argument: // no such bundle
    case errc::already_exists:   // another group has the name
    case errc::closed:           // its group was removed
    case errc::not_found: return true;
    default: return false;
    }
}

/// What a driver holds: an actor with a gpu, and a group.
struct holdings {
    actor_handle<holder> actor;
    placement_group group;
    std::vector<placement_group>
        kept; ///< those that were made before, while the other driver wants all
};

task<void> renew(stage* s, holdings* h) {
    auto& w = s->w;
    if (w.chance(0.5)) {
        h->actor = {};
        actor_options how;
        how.gpus = 1;
        how.restarts = w.chance(0.5) ? -1 : 0;
        if (!s->has_actors) how.cpus = static_cast<int>(w.below(2));
        if (h->group && w.chance(0.4)) how.on = h->group;
        auto making = as_result(with_timeout(skein::actor<holder>.with(how)(), 3s));
        auto made = co_await making;
        const bool none = !made && made.error().code() == errc::invalid_argument;
        if (made)
            h->actor = *made;
        else
            w.check(is_expected(made.error()) || none, made.error().what());
        co_return;
    }
    // One that no nodes can hold would keep its tasks waiting for ever.
    if (h->group && (!h->group.is_placed() || w.chance(0.5))) {
        auto removing = as_result(with_timeout(h->group.remove(), w.chance(0.5) ? 5ms : 600s));
        const auto removed = co_await removing;
        w.check(removed || removed.error().code() == errc::timeout, "a group did not end");
    }
    std::vector<std::string> bundles;
    for (auto n = 1 + w.below(3); n > 0; --n)
        bundles.emplace_back(w.chance(0.5) ? "gpu=1" : "disk=0.5");
    if (!s->has_actors)
        for (auto& b : bundles) b += ",cpu=1";
    using how = group_strategy;
    const how all[] = {how::pack, how::spread, how::strict_pack, how::strict_spread};
    const bool is_named = w.chance(0.6);
    h->group = placement_group(bundles, {all[w.below(4)], is_named ? "room" : "", is_named});
    if (!w.chance(0.3)) co_return;
    auto ready = as_result(with_timeout(h->group.ready(), 3s));
    const auto placed = co_await ready;
    if (!placed) w.check(is_expected(placed.error()), placed.error().what());
}

/// A call of the actor, or a task in the group; false: there is neither.
bool submit_held(stage* s, const holdings& h, std::vector<outstanding>& into) {
    auto& w = s->w;
    outstanding made;
    if (h.actor && w.chance(0.5)) {
        made.call = ++s->last_call;
        made.is_method = true;
        made.what = "a method of the actor with a gpu";
        made.result = h.actor.call<&holder::note>(made.call);
    } else if (h.group) {
        made.call = ++s->last_call;
        made.counts_runs = false;
        call_options how;
        how.cpus = s->has_actors ? 0 : 1;
        how.retries = made.retries = static_cast<int>(w.below(4));
        const int ms = static_cast<int>(w.below(500));
        if (w.chance(0.3)) { // not in it itself
            how.cpus = s->has_actors ? 0 : 1;
            const auto way = ms % 3 == 0 ? 3 : w.below(3);
            const char* const names[] = {"in_named", "in_found", "in_given", "in_made"};
            made.what = names[way];
            if (way == 2) {
                how.cpus = 0;
                how.on = h.group;
            }
            made.result = way == 0   ? remote<&in_named>.with(how)(made.call, ms, "room")
                          : way == 1 ? remote<&in_found>.with(how)(made.call, ms, "room")
                          : way == 2 ? remote<&in_given>.with(how)(made.call, ms, h.group)
                                     : remote<&in_made>.with(how)(made.call, ms);
            into.push_back(std::move(made));
            return true;
        }
        if (w.chance(0.5))
            how.on = h.group;
        else
            how.on = h.group.bundle(w.below(h.group.size()));
        if (w.chance(0.3)) how.on = how.on.with_children();
        if (w.chance(0.5)) {
            how.gpus = 1;
            made.what = "with_gpu in a group";
            made.result = remote<&with_gpu>.with(how)(made.call, ms);
        } else {
            how.resources = "disk=0.5";
            made.what = s->has_actors ? "with_disk in a group" : "slow in a group";
            // A group that holds all cpus would keep the worker away that a call of with_disk
            // needs.
            made.result = s->has_actors ? remote<&with_disk>.with(how)(made.call, ms)
                                        : remote<&slow>.with(how)(made.call, ms);
        }
    } else {
        return false;
    }
    into.push_back(std::move(made));
    return true;
}

outstanding submit(stage* s, const actor_handle<ledger>& actor, int* position) {
    auto& w = s->w;
    outstanding made;
    made.call = ++s->last_call;
    call_options how;
    how.cpus = static_cast<int>(w.below(2));
    how.retries = made.retries = static_cast<int>(w.below(4));
    if (w.chance(0.2)) how.deadline = std::chrono::milliseconds(1 + w.below(5000));
    if (s->has_own && w.chance(0.3)) {
        const int ms = static_cast<int>(w.below(500));
        how.cpus = s->has_actors ? 0 : how.cpus.value; // a worker with actors keeps its cpu
        made.counts_runs = false;
        if (w.chance(0.6)) {
            how.gpus = 1;
            made.what = "with_gpu";
            made.result = remote<&with_gpu>.with(how)(made.call, ms);
        } else {
            how.resources = "disk=0.5";
            made.what = "with_disk";
            made.result = remote<&with_disk>.with(how)(made.call, ms);
        }
        return made;
    }
    if (actor && w.chance(0.1)) {
        how.on = actor;
        made.counts_runs = false;
        made.what = "follow";
        made.result = remote<&follow>.with(how)(made.call, actor);
        return made;
    }
    if (w.chance(0.15)) how.on = spread;
    if (s->prints && w.chance(0.4)) {
        const int lines = w.chance(0.1) ? 4000 : 1 + static_cast<int>(w.below(50));
        const int length = static_cast<int>(w.below(200));
        made.counts_runs = false;
        made.what = "talk";
        made.result = remote<&talk>.with(how)(made.call, lines, length);
        return made;
    }
    switch (w.below(actor ? 4 : 2)) {
    case 0:
        made.what = "plain";
        made.result = remote<&plain>.with(how)(made.call);
        break;
    case 1:
        made.what = "slow";
        made.result = remote<&slow>.with(how)(made.call, static_cast<int>(w.below(800)));
        made.counts_runs = false;
        break;
    default:
        made.is_method = true;
        made.what = "a method of the ledger";
        made.result = actor.call<&ledger::note>(made.call, ++*position);
    }
    return made;
}

std::string used_of(stage* s) {
    std::string used;
    for (const auto& n : s->c.head().status().nodes)
        used += fmt::format("; {} holds {} of {} for {} workers", n.name, n.used, n.resources,
                            n.workers);
    return used;
}

/// Cancels a task by force, where somebody may compute and hear of nothing.
void force(stage* s, const outstanding& one) {
    auto& w = s->w;
    auto& on = *s->c.at(w.below(s->c.nodes())).children;
    const auto all = on.running();
    if (!all.empty() && w.chance(0.7)) {
        const auto pid = all[w.below(all.size())].pid;
        on.pause(pid, std::chrono::milliseconds(w.below(800)));
    }
    if (!one.is_method) one.result.cancel_by_force();
}

/// others: of its driver, that have not been looked at yet.
task<void> check_outcome(stage* s, outstanding call, const std::vector<outstanding>* others) {
    auto& w = s->w;
    if (s->is_contended) {
        auto first = as_result(with_timeout(as_task(call.result), 300s));
        (void)co_await first;
        // A group that has lost its places with a head gets no others if the other driver has them
        // by right.
        if (!call.result.ready() && s->added++ == 0)
            for (int i = 0; i < 3; ++i) s->c.add_node(4);
    }
    auto asked = as_result(with_timeout(as_task(call.result), 600s));
    auto outcome = co_await asked;
    std::string why; // what hangs with it, and what the first of each job waits for
    if (!call.result.ready()) {
        why = fmt::format(": {} {}", call.what, call.call);
        for (const auto& other : *others)
            if (other.result && !other.result.ready())
                why += fmt::format(", {} {}", other.what, other.call);
        for (const auto& j : s->c.head().status().jobs)
            why += fmt::format("; {} waits for {}: {}", j.name, j.waiting, j.why);
        why += used_of(s);
    }
    w.check(call.result.ready(), "a call has no outcome long after the calm" + why);
    w.loop.trace(outcome ? static_cast<std::uint64_t>(*outcome)
                         : 1000 + static_cast<std::uint64_t>(outcome.error().code()));
    const int runs = now->runs[call.call];
    if (outcome) {
        w.check(*outcome == call.call, "a call got another call's value");
        w.check(!call.counts_runs || runs >= 1, "a value came from a call that did not run");
    } else {
        w.check(is_expected(outcome.error()), outcome.error().what());
    }
    w.check(runs <= (call.is_method ? 1 : 1 + call.retries), "a call ran too often");
}

/// One driver's calls, under faults and then without.
task<void> call_around(stage* s, sim_nodes::driver* d, std::size_t* workers) {
    auto& w = s->w;
    std::vector<outstanding> calls;
    const int count = 10 + static_cast<int>(w.below(40));
    actor_handle<ledger> actor;
    holdings held;
    int position = 0;
    for (int i = 0; i < count; ++i) {
        if (s->has_actors && (!actor || w.chance(0.05))) {
            actor = {};
            auto making = as_result(with_timeout(skein::actor<ledger>(), 2s));
            auto made = co_await making;
            position = 0;
            if (made)
                actor = *made;
            else
                w.check(is_expected(made.error()), made.error().what());
        }
        if (s->has_own && w.chance(0.08)) {
            auto renewed = renew(s, &held);
            co_await renewed;
        }
        if (!s->has_own || !w.chance(0.25) || !submit_held(s, held, calls))
            calls.push_back(submit(s, actor, &position));
        if (w.chance(0.05)) calls[w.below(calls.size())].result.cancel();
        if (w.chance(0.05)) force(s, calls[w.below(calls.size())]);
        if (w.chance(0.5)) co_await sleep_for(std::chrono::milliseconds(w.below(600)));
        w.check(now->violation.empty(), now->violation);
    }
    while (!s->calm) co_await sleep_for(100ms);
    held.actor = {}; // others wait for what it has
    for (int i = 0; i < 200 && held.group && !held.group.is_placed(); ++i)
        co_await sleep_for(100ms);
    if (held.group && !held.group.is_placed()) {
        auto removed = held.group.remove();
        co_await removed;
    }
    held = {};
    for (auto& call : calls) {
        auto checked = check_outcome(s, std::move(call), &calls);
        co_await checked;
    }
    if (!d->started) co_return; // it has asked for nothing
    // Two that want all share it, however their shares came about.
    const auto is_whole = [&] {
        const bool has_all = d->self.workers() == *workers && d->workers.granted() == *workers;
        return (s->shared ? d->self.workers() > 0 : has_all) && d->self.pending() == 0;
    };
    for (int i = 0; i < 1200 && !is_whole(); ++i) co_await sleep_for(100ms);
    const auto used = used_of(s);
    w.check(is_whole(),
            fmt::format("{} has {} of {} workers, {} leases of {}, and {} calls long after the "
                        "calm; {} processes{}",
                        d->host, d->self.workers(), *workers, d->workers.granted(),
                        d->workers.wanted(), d->self.pending(), s->c.processes(), used));
}

/// A terminal that is slow at times. Each line is whole and the next one of its process, but for
/// those that were counted.
task<void> print(stage* s, std::string driver, std::vector<proc::worker_lines> all) {
    auto& w = s->w;
    if (w.chance(0.05)) co_await sleep_for(std::chrono::milliseconds(w.below(3000)));
    for (const auto& some : all) {
        auto& heard = s->heard_of[driver + "/" + some.worker];
        heard.last += some.left_out;
        for (const auto& line : some.lines) {
            const auto first = line.text.find(' '), second = line.text.find(' ', first + 1);
            const auto third = line.text.find(' ', second + 1);
            w.check(third != std::string::npos, "a line is not whole: " + line.text);
            if (third == std::string::npos) co_return;
            heard.process = {line.text.substr(0, first),
                             std::stoll(line.text.substr(first + 1, second - first - 1))};
            const auto number = std::stoull(line.text.substr(second + 1, third - second - 1));
            ++heard.last;
            w.check(number == heard.last, fmt::format("{} of {}: line {} came as number {}",
                                                      some.worker, driver, number, heard.last));
            w.check(line.is_error == (heard.process.second % 2 == 0), "a line of the other file");
            w.check(line.text.find_first_not_of('x', third + 1) == std::string::npos,
                    "two lines are mixed: " + line.text);
        }
        const auto said = now->said.find(heard.process);
        if (said != now->said.end())
            w.check(heard.last <= said->second.lines, "more lines were counted than were printed");
    }
}

/// Starts a head; what its log says of drains must be what was acknowledged, or asked for since
/// then.
void begin_head(stage* s) {
    auto& w = s->w;
    for (bool once_more = true; once_more;) {
        once_more = false;
        try {
            s->c.start_head();
        } catch (const error& e) {
            w.check(s->disk != nullptr && e.code() == errc::io && s->disk->options().io_error > 0,
                    fmt::format("a head does not start: {}", e.what()));
            s->disk->options().io_error = 0; // somebody mends the disk
            once_more = true;
        }
    }
    if (s->disk == nullptr) return;
    const auto status = s->c.head().status();
    std::map<std::string, bool> known;
    for (const auto& n : status.missing) known[n.name] = n.draining;
    for (const auto& [name, d] : s->drains) {
        const auto found = known.find(name);
        const bool drains = found != known.end() && found->second;
        if (!d.may_be.contains(drains)) // settle() tells it, when nothing runs any more
            now->violation = fmt::format("the log says that {} is {}drained, and knows {}", name,
                                         drains ? "" : "not ", found != known.end());
    }
    if (s->disk->status("state/head.log"))
        w.check(s->disk->content("state/head.log").size() < 40'000, "the log grows without bound");
    w.loop.trace(status.generation);
}

/// The head's process or machine has died; its disk may have suffered.
void after_head_death(stage* s, bool powerless) {
    auto& w = s->w;
    if (s->disk == nullptr) return;
    const bool machine = w.chance(0.5) || powerless, rots = w.chance(0.25), fails = w.chance(0.3);
    const auto at = w.below(1'000'000);
    if (machine) s->disk->crash();
    const auto log = s->disk->status("state/head.log");
    const auto bit = log ? at % (8 * log->bytes + 1) : 0;
    if (rots && s->disk->flip_bit("state/head.log", bit)) {
        w.network.counts().add(sim::fault::disk_rot);
        for (auto& [name, d] : s->drains) d.may_be = {false, true};
    }
    s->disk->options().io_error = fails ? 0.05 : 0;
}

task<bool> drain(stage* s, std::string node, bool on, duration within) {
    auto& d = s->drains[node];
    d.may_be.insert(on);
    cluster::ask_drain what;
    what.node = node;
    what.on = on;
    auto asked = as_result(with_timeout(test::ask_drain(&s->c, std::move(what)), within));
    const auto told = co_await asked;
    if (!told) {
        d.late.insert(on);
        d.may_be.insert(d.late.begin(), d.late.end());
    } else if (told->not_durable.empty()) {
        d.may_be = {on};
        d.may_be.insert(d.late.begin(), d.late.end());
    }
    co_return told.has_value();
}

/// All nodes take workers again, once they are there.
task<void> end_drains(stage* s) {
    for (std::size_t i = 0; i < s->c.nodes(); ++i) {
        bool done = false;
        for (int tries = 0; !done && tries < 60; ++tries) {
            auto asking = drain(s, s->c.at(i).host, false, 5s);
            done = co_await asking;
            if (!done) co_await sleep_for(2s);
        }
        s->w.check(done, "a node cannot be told that it is not drained any more");
    }
}

/// Until the head has just granted a lease: node and driver may not have heard of it, and its
/// worker has not come.
task<void> next_grant(stage* s) {
    auto& w = s->w;
    auto& on = *s->c.at(w.below(s->c.nodes())).children;
    if (const auto all = on.running(); !all.empty()) on.kill(all[w.below(all.size())].pid);
    const auto leases = [s] {
        std::size_t n = 0;
        for (const auto& one : s->c.head().status().nodes) n += one.workers;
        return n;
    };
    auto before = leases();
    for (int i = 0; i < 10'000; ++i) {
        co_await sleep_for(200us);
        const auto after = leases();
        if (after > before) break;
        before = after;
    }
    co_await sleep_for(std::chrono::microseconds(w.below(300)));
}

/// All have been welcomed by a head: who has not would end with the first no.
bool have_all_joined(stage* s) {
    for (std::size_t i = 0; i < s->c.nodes(); ++i) {
        const auto& n = s->c.at(i);
        if (!n.agent || n.agent->over || !n.agent->role->is_joined()) return false;
    }
    return std::all_of(s->drivers.begin(), s->drivers.end(),
                       [](const auto* d) { return d->workers.granted() > 0; });
}

/// No head for a while; whoever has its address meanwhile may answer.
task<void> without_head(stage* s, std::uint64_t most_ms, bool have_joined) {
    auto& w = s->w;
    const auto away = std::chrono::milliseconds(w.below(most_ms));
    if (!have_joined || !w.chance(0.5)) {
        co_await sleep_for(away);
        co_return;
    }
    const auto what = static_cast<test::stranger::kind>(w.below(test::stranger::kinds));
    test::stranger other(s->c.network(), sim_nodes::head_address(), what);
    co_await sleep_for(away);
    auto gone = other.end();
    co_await gone;
}

/// Kills and starts again what the cluster is made of, and drains some of it.
task<void> hurt(stage* s) {
    auto& w = s->w;
    const auto blows = w.below(12);
    for (std::uint64_t i = 0; i < blows; ++i) {
        co_await sleep_for(std::chrono::milliseconds(w.below(2500)));
        if (w.chance(0.3)) {
            auto& on = *s->c.at(w.below(s->c.nodes())).children;
            if (const auto all = on.running(); !all.empty()) on.kill(all[w.below(all.size())].pid);
            continue;
        }
        if (w.chance(0.15)) {
            if (s->c.has_head() && w.chance(0.5)) {
                auto granting = next_grant(s);
                co_await granting;
            }
            const auto which = w.below(s->c.nodes());
            auto asking = drain(s, s->c.at(which).host, w.chance(0.7), 2s);
            (void)co_await asking;
            continue;
        }
        if (s->disk != nullptr && w.chance(0.2)) { // it fills up, or there is room again
            s->disk->set_capacity(UINT64_MAX);
            const auto used = UINT64_MAX - s->disk->free_space(".").value();
            s->disk->set_capacity(w.chance(0.5) ? UINT64_MAX : used + w.below(2000));
            continue;
        }
        if (w.chance(0.4)) {
            if (!s->c.has_head()) continue;
            if (w.chance(0.5)) {
                auto granting = next_grant(s);
                co_await granting;
            }
            w.network.counts().add(sim::fault::kill);
            const bool powerless = s->disk != nullptr && w.chance(0.5);
            if (powerless) { // in the middle of a write
                s->disk->power_off_after(w.chance(0.5) ? 1 : w.below(4));
                const auto which = w.below(s->c.nodes());
                auto asking = drain(s, s->c.at(which).host, w.chance(0.5), 1s);
                (void)co_await asking;
            }
            const bool have_joined = have_all_joined(s);
            auto killed = s->c.kill_head();
            co_await killed;
            after_head_death(s, powerless);
            auto away = without_head(s, 9000, have_joined);
            co_await away;
            begin_head(s);
            continue;
        }
        auto& n = s->c.at(w.below(s->c.nodes()));
        auto replaced = s->c.replace_agent(n, w.chance(0.5));
        co_await replaced;
    }
}

/// After the calm: the head knows what there is, and nothing else runs.
task<void> settle(stage* s) {
    auto& w = s->w;
    w.check(now->violation.empty(), now->violation);
    std::string what;
    const auto is_settled = [&] {
        const auto status = s->c.head().status();
        what = "the log: " + status.trouble;
        if (!status.trouble.empty()) return false;
        std::size_t leases = 0;
        for (const auto& n : status.nodes) leases += n.workers;
        what = fmt::format("{} of {} nodes, {} leases, {} processes", status.nodes.size(),
                           s->c.nodes(), leases, s->c.processes());
        if (status.nodes.size() != s->c.nodes() || leases != s->c.processes()) return false;
        // More than it has only while a task goes on that has waited for others.
        return std::all_of(status.nodes.begin(), status.nodes.end(), [&](const auto& n) {
            const auto total = sched::parse_resources(n.resources),
                       used = sched::parse_resources(n.used);
            what = fmt::format("{} holds {} of {}", n.name, n.used, n.resources);
            return sched::fits(*used, *total);
        });
    };
    for (int i = 0; i < 1200 && !is_settled(); ++i) co_await sleep_for(100ms);
    w.check(is_settled(), "long after the calm: " + what);
}

/// (host, process) of all workers.
std::vector<std::pair<std::string, std::int64_t>> all_workers(stage* s) {
    std::vector<std::pair<std::string, std::int64_t>> out;
    for (std::size_t i = 0; i < s->c.nodes(); ++i)
        for (const auto& one : s->c.at(i).children->running())
            out.emplace_back(s->c.at(i).host, one.pid);
    std::sort(out.begin(), out.end());
    return out;
}

/// Workers do not notice that the head was away.
task<void> restart_head(stage* s) {
    auto& w = s->w;
    const auto before = all_workers(s);
    const bool have_joined = have_all_joined(s);
    auto killed = s->c.kill_head();
    co_await killed;
    if (s->disk != nullptr) s->disk->crash();
    auto away = without_head(s, 3000, have_joined);
    co_await away;
    begin_head(s);
    auto settled = settle(s);
    co_await settled;
    co_await sleep_for(15s);           // all that is waited for has come or was given up
    const auto after = all_workers(s); // there may be more: a driver that has just begun
    w.check(std::includes(after.begin(), after.end(), before.begin(), before.end()),
            "a worker has ended with the head");
}

task<void> drive(stage* s) {
    auto& w = s->w;
    auto& c = s->c;
    begin_head(s);
    const auto nodes = 1 + w.below(4);
    std::size_t cpus = 0;
    for (std::uint64_t i = 0; i < nodes; ++i) {
        const int here = 1 + static_cast<int>(w.below(3));
        c.add_breaking_node(here);
        cpus += static_cast<std::size_t>(here);
    }
    // What all want together there is room for, or both want all.
    std::vector<std::unique_ptr<sim_nodes::driver>> drivers;
    std::vector<std::size_t> wanted(1 + w.below(2), 0);
    s->shared = wanted.size() == 2 && cpus > 2 && w.chance(0.5);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        const auto left = cpus - (i == 0 ? 0 : wanted[0]);
        if (left == 0 && !s->shared) break;
        const bool all = s->shared || (wanted.size() == 1 && w.chance(0.5));
        wanted[i] = all ? cpus : 1 + w.below(left);
        cluster::leased_workers_options how;
        how.times.start_timeout = 5s;
        how.join_within = 120s;
        how.start_within = 600s;
        const auto name = fmt::format("driver-{}", i + 1);
        if (s->prints)
            how.print = [s, name](std::vector<proc::worker_lines> lines) {
                return print(s, name, std::move(lines));
            };
        drivers.push_back(c.make_driver(name, all ? 0 : static_cast<int>(wanted[i]), how));
    }
    s->is_contended = drivers.size() == 2;
    for (const auto& d : drivers) s->drivers.push_back(d.get());
    w.network.begin_link_faults();
    scope calling, hurting;
    for (std::size_t i = 0; i < drivers.size(); ++i)
        calling.spawn(sim::run_on(drivers[i]->home, drivers[i]->self.run_here(call_around(
                                                        s, drivers[i].get(), &wanted[i]))));
    auto hurts = hurt(s);
    co_await hurts;
    if (s->disk != nullptr) {
        s->disk->options().io_error = 0;
        s->disk->set_capacity(UINT64_MAX);
    }
    auto calming = c.be_calm();
    co_await calming;
    auto undrained = end_drains(s);
    co_await undrained;
    s->calm = true;
    std::exception_ptr failure;
    try {
        auto called = calling.join();
        co_await called;
        auto settled = settle(s);
        co_await settled;
        // Those for one demand that have nothing to do leave, and those that were told goodbye for
        // a drain which is over: up to 5 s later, where their connection is broken and no goodbye
        // reaches them. Others come in their place.
        co_await sleep_for(10s);
        std::size_t connected = 0;
        for (const auto& d : drivers) connected += d->self.workers();
        // Two that share would share again; a worker that has just been granted may be granted
        // elsewhere.
        if (!s->shared && connected == c.processes()) {
            auto restarted = restart_head(s);
            co_await restarted;
        }
    } catch (...) {
        failure = std::current_exception();
    }
    calling.cancel();
    auto gone = as_result(calling.join());
    (void)co_await gone;
    for (auto& d : drivers) {
        auto ended = sim::run_on(d->home, d->end());
        co_await ended;
    }
    auto all = c.end_when_empty(60s);
    const auto left = co_await all;
    if (failure) std::rethrow_exception(failure);
    w.check(left.empty(), left);
}

task<void> scenario(sim::world& w) {
    history seen;
    now = &seen;
    w.network.draw_clocks();
    sim::disk disk(w.loop.random(), {}, &w.network.counts());
    sim_nodes c(w.loop, w.network);
    c.agent_times.start_timeout = 5s; // some starts hang
    stage s{w, c};
    s.has_own = w.chance(0.5);
    s.has_actors = !s.has_own || w.chance(0.5);
    s.prints = w.chance(0.5);
    if (w.chance(0.7)) {
        s.disk = &disk;
        c.head_disk = &disk;
        c.head_log_bounds.grown = 500;
        c.head_log_bounds.times = 1;
    }
    if (s.has_own) {
        c.agent_offers.gpu = 1;
        c.agent_offers.set("disk", 1);
    }
    auto driving = drive(&s);
    co_await driving;
    w.loop.trace(static_cast<std::uint64_t>(s.last_call));
}

const sim::scenario registered("cluster", &scenario);

} // namespace cluster_world
