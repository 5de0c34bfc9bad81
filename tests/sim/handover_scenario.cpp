// SPDX-License-Identifier: Apache-2.0
// handover: nodes are drained by a deadline while jobs, trainings and a program use them, all of it
// with its real code. Drains come twice with another deadline, are taken back midway, and end what
// stays by force; agents say that their hosts are about to be taken away, all of them at once, too.
// In half of the worlds the head dies between a recall and a leave, agents and their machines die,
// entry processes are killed, and clocks run fast and slow.
//
// Invariants: a node that drains gets no new lease; by its deadline it is empty, or the answer names
// each lease that is there, and where it says that nobody has room, nobody has; by force it is
// empty soon after. An attempt that a drain has moved counts neither as a failure nor as a retry, and
// nothing moves where nothing else has room, or where no drain is; an attempt's entry process runs
// at most once, one at a time, and each job ends once. A training that is moved loses no attempt.
// At the end no lease and no process is left.
#include "sim/scenario.hpp"

#include <skein/cluster/leased_ranks.hpp>
#include <skein/core/event.hpp>
#include <skein/core/timeout.hpp>
#include <skein/sim/disk.hpp>
#include <skein/spmd/environment.hpp>
#include <skein/spmd/meeting.hpp>
#include <skein/wire/encode.hpp>
#include <tests/support/sim_jobs.hpp>
#include <tests/support/sim_nodes.hpp>

#include <algorithm>
#include <csignal>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace handover_world {

using namespace skein;
using namespace std::chrono_literals;
using cluster::drain_reply;
using cluster::job_info;
using cluster::job_state;
using cluster::leave_word;
using test::sim_nodes;

constexpr duration notice_within = std::chrono::seconds(6);

/// What is known of a job by who has submitted it.
struct told {
    cluster::job_request what;
    bool is_taken = false, is_endless = false;
    bool was_stopped = false;             ///< somebody has asked for it
    std::optional<std::uint32_t> stopped; ///< acknowledged, in this attempt
    std::optional<job_info> end;
    std::uint32_t not_counted = 0;
};

struct stage {
    sim::world& w;
    sim_nodes& c;
    test::sim_jobs& jobs;
    sim::disk* disk;
    bool is_rough = false;   ///< processes, agents and heads die
    int drains = 0;          ///< that are on, or may be: asked for, and not yet taken back for sure
    std::uint64_t moves = 0; ///< drains so far, of all nodes
    std::map<std::string, told> all{};
    std::set<std::string> draining{};                        ///< nodes that somebody drains now
    std::map<std::string, std::unique_ptr<event>> notices{}; ///< by host: it is to be taken away
    bool is_forced = false;                                  ///< some drain was asked for by force
    int trainings = 0, moved = 0;
    bool heads_died = false;
    bool is_over = false, is_program_over = false;
    std::string violation{};

    void broken(std::string why) {
        if (violation.empty()) violation = std::move(why);
    }
};

// ---- jobs ---------------------------------------------------------------------------------------

cluster::job_request draw_job(stage* s, int number) {
    auto& w = s->w;
    cluster::job_request what;
    what.id = fmt::format("j{}", number);
    what.command = {"/bin/sh"};
    const auto add = [&](const char* word, std::uint64_t n) {
        what.command.emplace_back(word);
        what.command.push_back(std::to_string(n));
    };
    if (w.chance(0.2)) what.command.emplace_back("ignore");
    add("talk", 1 + w.below(10));
    if (w.chance(0.6))
        add("sleep", 10'000'000); // until somebody ends it
    else
        add("sleep", w.below(20'000));
    add("exit", w.chance(0.8) ? 0 : 1 + w.below(200));
    what.demand = w.chance(0.7) ? "cpu=1" : w.chance(0.5) ? "cpu=2" : "cpu=0.5";
    what.retries = static_cast<std::uint32_t>(w.below(3));
    if (w.chance(0.4)) what.grace_ms = 100 + w.below(3000);
    return what;
}

bool is_own_failure(const told& job, const job_info& now) {
    const auto& words = job.what.command;
    return !words.empty() && words.back() != "0" && now.exit_code >= 0 &&
           std::to_string(now.exit_code) == words.back();
}

void look_at(stage* s, const job_info& now) {
    const auto found = s->all.find(now.id);
    if (found == s->all.end()) return s->broken("there is a job that nobody has submitted");
    auto& job = found->second;
    const auto state = cluster::state_of(now);
    if (now.not_counted > job.not_counted) {
        if (s->drains == 0 && !s->is_rough)
            s->broken(fmt::format("{}: an attempt is not counted, and nothing drains: {}", now.id,
                                  now.reason));
        if (s->c.nodes() == 1 && !s->is_forced && !s->is_rough)
            s->broken(
                fmt::format("{} has left the only node, and nobody has asked for force", now.id));
        job.not_counted = now.not_counted;
    }
    if (job.not_counted > s->moves && !s->is_rough)
        s->broken(fmt::format("{}: {} attempts are not counted after {} drains", now.id,
                              job.not_counted, s->moves));
    if (job.end && (job.end->state != now.state || job.end->attempt != now.attempt ||
                    job.end->ended != now.ended))
        s->broken(fmt::format("{} has ended twice: as {} of attempt {}, and as {} of attempt {}",
                              now.id, to_string(cluster::state_of(*job.end)), job.end->attempt,
                              to_string(state), now.attempt));
    if (!cluster::is_over(state) || job.end) return;
    job.end = now;
    if (state == job_state::failed && !s->is_rough && !is_own_failure(job, now))
        s->broken(fmt::format("{} has failed, and nothing was killed: {}", now.id, now.reason));
    if (state == job_state::stopped && !job.was_stopped)
        s->broken(fmt::format("{} was stopped by nobody: {}", now.id, now.reason));
}

task<void> watch(stage* s) {
    for (;;) {
        co_await sleep_for(std::chrono::milliseconds(50 + s->w.below(400)));
        auto asking = as_result(with_timeout(s->jobs.list(), 3s));
        const auto all = co_await asking;
        if (!all) continue;
        for (const auto& one : all->jobs) look_at(s, one);
    }
}

task<void> submit_all(stage* s) {
    auto& w = s->w;
    const int count = 2 + static_cast<int>(w.below(6));
    for (int i = 1; i <= count; ++i) {
        auto what = draw_job(s, i);
        auto& job = s->all[what.id];
        job.what = what;
        job.is_endless =
            std::find(what.command.begin(), what.command.end(), "10000000") != what.command.end();
        while (!job.is_taken) {
            auto asking = as_result(with_timeout(s->jobs.submit(what), 5s));
            const auto taken = co_await asking;
            job.is_taken = taken || taken.error().code() == errc::already_exists;
            if (!job.is_taken) co_await sleep_for(300ms);
        }
        co_await sleep_for(std::chrono::milliseconds(w.below(3000)));
    }
}

task<void> stop(stage* s, std::string id) {
    auto* const job = &s->all.at(id);
    job->was_stopped = true;
    auto asking = as_result(with_timeout(s->jobs.stop(id), 3s));
    const auto answer = co_await asking;
    if (answer && !job->stopped) job->stopped = answer->now.attempt;
}

/// Also while it moves.
task<void> stop_some(stage* s) {
    auto& w = s->w;
    for (auto times = w.below(3); times > 0; --times) {
        co_await sleep_for(std::chrono::milliseconds(w.below(15'000)));
        if (s->all.empty()) continue;
        auto at = s->all.begin();
        std::advance(at, static_cast<std::ptrdiff_t>(w.below(s->all.size())));
        if (!at->second.is_taken) continue;
        auto stopping = stop(s, at->first);
        co_await stopping;
    }
}

// ---- a training, and a program -------------------------------------------------------------------

/// A rank: it saves when it is asked to end, and sleeps else.
task<int> be_rank(sim::process*) {
    co_await sleep_for(std::chrono::hours(1));
    co_return 0;
}

task<void> hear_end(proc::child* rank, std::string* lost) {
    auto ending = rank->ended();
    const auto end = co_await ending;
    if (!end.lost.empty() && !end.was_asked) *lost = end.lost;
}

/// As a supervisor does: its ranks leave when they are asked to, and have other places then.
task<void> train(stage* s) {
    auto& w = s->w;
    cluster::leased_ranks_options how;
    how.head = sim_nodes::head_address();
    how.secret = s->c.secret();
    how.program = {"/app", "/", {}};
    how.name = how.host = "trainer";
    how.pid = 1;
    how.join_within = 60s;
    how.incarnation = w.loop.random().next();
    const auto make = [&] {
        const loop::use on_its_host(s->c.network().loop_of("trainer"));
        return std::make_unique<cluster::leased_ranks>(s->c.network().loop_of("trainer"),
                                                       s->c.network().host("trainer"), how);
    };
    const auto places = make();
    const int ranks = 1 + static_cast<int>(w.below(3));
    bool leaves = false;
    places->on_leave([&leaves](const std::string&) { leaves = true; });
    try {
        auto opening = places->open();
        co_await opening;
        while (!s->is_over) {
            leaves = false;
            auto reserving = as_result(with_timeout(places->reserve(ranks), 20s));
            const auto where = co_await reserving;
            if (!where && where.error().code() != errc::timeout) throw where.error();
            if (!where) continue;
            ++s->trainings;
            std::vector<std::unique_ptr<proc::child>> all;
            for (int r = 0; r < ranks; ++r) {
                proc::child_options what;
                what.name = fmt::format("worker {}", r);
                what.message = wire::encode(
                    std::map<std::string, std::string>{{spmd::group_variable, "tcp:*:4711"}});
                what.argv = {"train"};
                what.stop_grace = 1s;
                auto starting = places->start(std::move(what));
                all.push_back(co_await starting);
            }
            scope beside;
            std::string lost;
            for (const auto& one : all) beside.spawn(hear_end(one.get(), &lost));
            const auto any_gone = [&] {
                return std::any_of(all.begin(), all.end(),
                                   [](const auto& one) { return !one->running(); });
            };
            while (!leaves && !s->is_over && lost.empty() && !any_gone()) co_await sleep_for(50ms);
            // Whether it began is not known where the head died between its order and the answer.
            if (!lost.empty() && !s->is_rough && !s->heads_died)
                s->broken("a rank was lost, and nothing was killed: " + lost);
            s->moved += leaves;
            for (const auto& one : all) one->signal(SIGTERM);
            auto gone = as_result(with_timeout(shield(beside.join()), 120s));
            (void)co_await gone;
            for (const auto& one : all) one->kill();
            auto over = shield(beside.join());
            co_await over;
            places->release();
        }
    } catch (const error& e) { // its driver was away for too long, or the head
        w.loop.trace(static_cast<std::uint64_t>(e.code()));
    }
    auto closing = shield(places->close());
    co_await closing;
}

task<int> nap_on_loop(int ms) {
    co_await sleep_for(std::chrono::milliseconds(ms));
    co_return ms;
}

class keeper {
public:
    int hold(int n) { return n; }
};

/// Calls, and now and then an actor that its node cannot let go.
task<void> call_around(stage* s) {
    auto& w = s->w;
    for (bool has_failed = false; !s->is_over;) {
        if (std::exchange(has_failed, false)) co_await sleep_for(200ms);
        try {
            if (w.chance(0.3)) {
                auto making = actor<keeper>();
                const auto one = co_await making;
                auto calling = one.call<&keeper::hold>(7);
                (void)co_await calling;
                co_await sleep_for(std::chrono::milliseconds(w.below(6000)));
            } else {
                auto calling = remote<&nap_on_loop>(static_cast<int>(w.below(2000)));
                (void)co_await calling;
            }
        } catch (const error& e) {
            if (e.code() == errc::cancelled) throw;
            has_failed = true;
        }
    }
}

// ---- drains -------------------------------------------------------------------------------------

/// Its answer; nothing: no head was there, or it took too long.
task<std::optional<drain_reply>> ask(stage* s, cluster::ask_drain what) {
    auto asking = as_result(with_timeout(test::ask_drain(&s->c, std::move(what)), 3s));
    auto got = co_await asking;
    if (got) co_return std::move(*got);
    if (got.error().code() == errc::cancelled) throw got.error();
    co_return std::nullopt;
}
cluster::ask_drain look_of(const std::string& node) {
    cluster::ask_drain what;
    what.node = node;
    what.look = true;
    return what;
}

/// Free cpus of the nodes that take something, if the head is here to be asked at this moment.
bool has_room_for(stage* s, const std::string& demand) {
    const auto wanted = sched::parse_resources(demand);
    if (!wanted || !s->c.has_head()) return false;
    for (const auto& n : s->c.head().status().nodes) {
        if (n.draining || n.suspect || n.rests_ms != 0) continue;
        auto free = *sched::parse_resources(n.resources);
        const auto used = sched::parse_resources(n.used);
        if (!used || !sched::fits(*used, free)) continue;
        free -= *used;
        if (sched::fits(*wanted, free)) return true;
    }
    return false;
}

/// What is left when its time is over: what is to move, or could, has had its time.
void check_left(stage* s, const std::string& node, const drain_reply& now, int* doubts) {
    bool any = false;
    for (const auto& l : now.leases) {
        if (l.why.empty())
            s->broken(fmt::format("{} on {} stays, and nobody says why", l.what, node));
        any = any || static_cast<leave_word>(l.word) == leave_word::moves;
        const bool is_entry = l.what == "entry process";
        if (!is_entry) continue;
        const auto& job = s->all.at(l.job);
        const bool says_room = l.why.find("no other node has room") != std::string::npos;
        if (static_cast<leave_word>(l.word) == leave_word::stays && says_room)
            any = any || has_room_for(s, job.what.demand);
    }
    *doubts = any ? *doubts + 1 : 0;
    if (*doubts >= 20 && !s->is_rough) // others may have been on their way there
        s->broken(fmt::format("{} is not empty, and others have room, or it is to move: {}: {}",
                              node, now.leases.front().what, now.leases.front().why));
}

/// From an acknowledged drain until it is taken back: no new lease, and empty in time.
task<void> watch_drain(stage* s, std::string node, drain_reply first, duration within, bool force,
                       duration how_long) {
    std::set<cluster::lease_name> known;
    for (const auto& l : first.leases) known.insert(l.lease);
    const auto began = s->w.loop.now();
    const auto until = began + how_long;
    std::uint64_t graces = 0;
    for (const auto& [id, job] : s->all) graces = std::max(graces, job.what.grace_ms);
    // An entry process that is asked late has its grace, and what it leaves behind the same again.
    const auto slack =
        force ? duration(3s) : 2 * std::max<duration>(2s, std::chrono::milliseconds(graces)) + 3s;
    int doubts = 0;
    auto gap = began;
    while (s->w.loop.now() < until && !s->is_over) {
        co_await sleep_for(std::chrono::milliseconds(100 + s->w.below(200)));
        auto looking = ask(s, look_of(node));
        const auto now = co_await looking;
        if (!now || now->missing) {
            gap = s->w.loop.now();
            continue;
        }
        if (!now->draining) co_return s->broken(node + " does not drain any more");
        for (const auto& l : now->leases)
            if (!known.contains(l.lease))
                s->broken(fmt::format("{} of {} has come to {}, which drains", l.what, l.of, node));
        const auto last = std::max(began + within, gap) + slack;
        if (within == duration::max() || s->w.loop.now() < last) continue;
        if (s->is_rough) continue; // what is silent, or is killed, is another scenario's
        if (force && now->workers != 0)
            s->broken(fmt::format("{} is not empty by force: {} is there: {}", node,
                                  now->leases.front().what, now->leases.front().why));
        check_left(s, node, *now, &doubts);
    }
}

task<void> undo(stage* s, std::string node) {
    cluster::ask_drain what;
    what.node = node;
    what.on = false;
    for (bool is_done = false; !is_done;) {
        auto asking = ask(s, what);
        is_done = (co_await asking).has_value();
        if (!is_done) co_await sleep_for(200ms);
    }
}

/// One drain of one node, maybe twice, and taken back.
task<void> drain_once(stage* s, std::string node) {
    auto& w = s->w;
    ++s->drains;
    s->draining.insert(node);
    for (auto times = 1 + w.below(2); times > 0 && !s->is_over; --times) {
        cluster::ask_drain what;
        what.node = node;
        duration within = duration::max();
        if (w.chance(0.85)) {
            what.within_ms = static_cast<std::int64_t>(w.below(w.chance(0.2) ? 20'000 : 6000));
            within = std::chrono::milliseconds(what.within_ms);
            what.force = w.chance(0.3);
            s->is_forced = s->is_forced || what.force;
        }
        ++s->moves;
        auto asking = ask(s, what);
        const auto first = co_await asking;
        const auto length = std::chrono::milliseconds(w.below(25'000));
        if (!first || first->missing) {
            co_await sleep_for(std::min<duration>(length, 3s));
            continue;
        }
        auto watching = watch_drain(s, node, *first, within, what.force, length);
        co_await watching;
    }
    auto undoing = undo(s, node);
    co_await undoing;
    s->draining.erase(node);
    // An attempt that was told to end goes.
    co_await sleep_for(10s);
    --s->drains;
}

/// A host says that it is about to be taken away, and is not after all.
task<void> notice_once(stage* s, std::string node) {
    auto& w = s->w;
    ++s->drains;
    ++s->moves;
    s->draining.insert(node);
    {
        const loop::use there(s->c.network().loop_of(node));
        s->notices.at(node)->set();
    }
    const auto until = w.loop.now() + 5s;
    std::optional<drain_reply> first;
    while (w.loop.now() < until && !s->is_over && !(first && first->draining)) {
        co_await sleep_for(100ms);
        auto looking = ask(s, look_of(node));
        first = co_await looking;
    }
    if (!s->is_rough && !s->is_over && first && !first->draining)
        s->broken(node + " is about to be taken away, and does not drain");
    if (first && first->draining) {
        auto watching = watch_drain(s, node, *first, notice_within, false,
                                    std::chrono::milliseconds(w.below(15'000)));
        co_await watching;
    }
    auto undoing = undo(s, node);
    co_await undoing;
    s->draining.erase(node);
    co_await sleep_for(10s);
    --s->drains;
}

task<void> notice_around(stage* s) {
    auto& w = s->w;
    scope under_way;
    co_await sleep_for(std::chrono::milliseconds(w.below(20'000)));
    const bool are_all = w.chance(0.3);
    for (std::size_t i = 0; i < s->c.nodes() && !s->is_over; ++i) {
        const auto& host = s->c.at(i).host;
        if (!s->draining.contains(host) && (are_all || w.chance(0.4)))
            under_way.spawn(notice_once(s, host));
    }
    auto joined = under_way.join();
    co_await joined;
}

task<void> drain_around(stage* s) {
    auto& w = s->w;
    scope under_way;
    for (auto times = 1 + w.below(4); times > 0 && !s->is_over; --times) {
        co_await sleep_for(std::chrono::milliseconds(w.below(8000)));
        const auto node = s->c.at(w.below(s->c.nodes())).host;
        if (s->draining.contains(node)) continue;
        under_way.spawn(drain_once(s, node)); // several at a time, of all nodes, too
    }
    auto joined = under_way.join();
    co_await joined;
}

task<std::string> until_set(event* sign) {
    auto waiting = sign->wait();
    co_await waiting;
    co_return "the sign is there";
}

// ---- what hurts ---------------------------------------------------------------------------------

task<void> kill_head(stage* s) {
    if (!s->c.has_head()) co_return;
    s->w.network.counts().add(sim::fault::kill);
    s->heads_died = true;
    auto killed = s->c.kill_head();
    co_await killed;
    s->disk->crash();
    co_await sleep_for(std::chrono::milliseconds(s->w.below(1500)));
    s->c.start_head();
}

task<void> hurt(stage* s) {
    auto& w = s->w;
    for (auto blows = w.below(8); blows > 0; --blows) {
        co_await sleep_for(std::chrono::milliseconds(w.below(5000)));
        if (w.chance(0.25)) {
            auto& on = *s->c.at(w.below(s->c.nodes())).children;
            if (const auto all = on.running(); !all.empty()) on.kill(all[w.below(all.size())].pid);
        } else if (w.chance(0.6)) {
            auto killed = kill_head(s);
            co_await killed;
        } else {
            auto& node = s->c.at(w.below(s->c.nodes()));
            const bool machine = w.chance(0.5);
            auto replaced = s->c.replace_agent(node, machine);
            co_await replaced;
        }
    }
}

/// In calm worlds the head alone dies, and drains go on.
task<void> kill_heads(stage* s) {
    for (auto times = s->w.below(3); times > 0; --times) {
        co_await sleep_for(std::chrono::milliseconds(s->w.below(12'000)));
        auto killed = kill_head(s);
        co_await killed;
    }
}

// ---- the whole ----------------------------------------------------------------------------------

task<void> end_all(stage* s) {
    s->is_over = true;
    const auto last = s->w.loop.now() + 300s;
    std::string waits;
    do {
        waits.clear();
        for (auto& [id, job] : s->all) {
            if (!job.is_endless || job.end || job.stopped) continue;
            auto stopping = stop(s, id);
            co_await stopping;
        }
        co_await sleep_for(500ms);
        auto asking = as_result(with_timeout(s->jobs.list(), 3s));
        const auto all = co_await asking;
        if (!all) {
            waits = all.error().what();
            continue;
        }
        for (const auto& one : all->jobs) {
            look_at(s, one);
            if (!cluster::is_over(cluster::state_of(one)))
                waits += fmt::format("; {} is {}: {}", one.id, to_string(cluster::state_of(one)),
                                     one.reason);
        }
    } while (!waits.empty() && s->w.loop.now() < last);
    s->w.check(waits.empty(), "jobs have not ended long after the calm: " + waits);
}

void check_end(stage* s, const std::string& id, const told& job) {
    auto& w = s->w;
    std::uint64_t started = 0;
    for (const auto& [which, had] : s->jobs.attempts()) {
        if (which.first != id) continue;
        ++started;
        w.check(had.starts == 1,
                fmt::format("attempt {} of {} ran {} times", which.second, id, had.starts));
        w.check(had.others == 0 || s->is_rough,
                fmt::format("attempt {} of {} began beside {}", which.second, id, had.others));
        w.check(!job.stopped || which.second <= *job.stopped,
                fmt::format("{} was stopped in attempt {}, and {} began", id,
                            job.stopped.value_or(0), which.second));
    }
    w.check(job.end.has_value() || !job.is_taken, id + " was taken and has no end");
    if (!job.end) return;
    w.check(started <= job.what.retries + 1 + job.end->not_counted,
            fmt::format("{} began {} times with {} retries, and {} were not counted", id, started,
                        job.what.retries, job.end->not_counted));
    w.loop.trace(job.end->state * 1000U + job.end->attempt);
}

task<void> end_program(stage* s, sim_nodes::driver* d) {
    if (d == nullptr || std::exchange(s->is_program_over, true)) co_return;
    auto ended = as_result(with_timeout(sim::run_on(d->home, d->end()), 60s));
    (void)co_await ended;
}

task<void> drive(stage* s) {
    auto& w = s->w;
    auto& c = s->c;
    c.start_head();
    for (auto nodes = 1 + w.below(3); nodes > 0; --nodes) {
        auto& n = s->is_rough ? c.add_breaking_node(2 + static_cast<int>(w.below(2)))
                              : c.add_node(2 + static_cast<int>(w.below(2)));
        s->jobs.with_entries(n);
        n.children->add(spmd::rank_role, [](sim::process* self) { return be_rank(self); });
    }
    std::unique_ptr<sim_nodes::driver> program;
    scope working, draining;
    working.spawn(watch(s));
    if (w.chance(0.5)) working.spawn(train(s));
    if (w.chance(0.5)) {
        program = c.make_driver("app", 0);
        working.spawn(sim::run_on(program->home, program->self.run_here(call_around(s))));
    }
    auto submitting = submit_all(s);
    draining.spawn(drain_around(s));
    draining.spawn(stop_some(s));
    if (w.chance(0.5)) draining.spawn(notice_around(s));
    draining.spawn(s->is_rough ? hurt(s) : kill_heads(s));
    std::exception_ptr failure;
    try {
        co_await submitting;
        auto drained = draining.join();
        co_await drained;
        auto calming = c.be_calm();
        co_await calming;
        for (std::size_t i = 0; i < c.nodes(); ++i) { // an undo may have been lost with a head
            auto undoing = undo(s, c.at(i).host);
            co_await undoing;
        }
        s->is_over = true;
        auto over =
            end_program(s, program.get()); // it would keep its share from a job that needs more
        co_await over;
        auto ended = end_all(s);
        co_await ended;
    } catch (...) {
        failure = std::current_exception();
    }
    s->is_over = true;
    auto over = end_program(s, program.get());
    co_await over;
    co_await sleep_for(30s);
    for (auto* some : {&draining, &working}) {
        some->cancel();
        auto gone = as_result(some->join());
        (void)co_await gone;
    }
    auto all = c.end_when_empty(120s);
    const auto left = co_await all;
    w.check(s->violation.empty(), s->violation);
    if (failure) std::rethrow_exception(failure);
    w.check(left.empty(), left);
    for (const auto& [id, job] : s->all) check_end(s, id, job);
}

task<void> scenario(sim::world& w) {
    w.network.draw_clocks();
    sim::disk disk(w.loop.random(), {}, &w.network.counts());
    auto jobs = std::make_unique<test::sim_jobs>();
    sim_nodes c(w.loop, w.network);
    jobs->attach(c);
    c.use_log(disk);
    c.head_defaults.runs = "/runs";
    stage s{w, c, *jobs, &disk};
    s.is_rough = w.chance(0.5);
    c.head_defaults.lost_after = 10s;
    if (!s.is_rough) w.network.faults() = sim::faults{};
    c.dress_agent = [&s](cluster::agent_options& how, const std::string& host) {
        auto& sign = s.notices[host];
        if (!sign) sign = std::make_unique<event>();
        how.notice_within = notice_within;
        how.until_notice = [of = sign.get()] { return until_set(of); };
    };
    auto driving = drive(&s);
    co_await driving;
    w.loop.trace(s.all.size());
    w.loop.trace(static_cast<std::uint64_t>(s.trainings * 100 + s.moved));
}

const sim::scenario registered("handover", &scenario);

} // namespace handover_world
