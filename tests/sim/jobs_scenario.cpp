// SPDX-License-Identifier: Apache-2.0
// jobs: commands that are sent to a cluster, all of it with its real code. Entry processes are
// killed and stand still, starts fail and hang, agents and their machines die, nodes are silent for
// 1 to 60 s, or until they are given up, and cannot start anything for seconds, the head dies with
// all that its disk had not written, also between an order and its record, or behind the loss of a
// node, links break and are cut, clocks run fast and slow; jobs are submitted, stopped and followed
// all the while.
//
// Invariants: a job that was acknowledged is known to the end, ends once, and its end never changes;
// an attempt's entry process runs at most once; no more attempts begin than were asked for, and what
// a node could not start for a reason of its own is none; one that lives on a silent node is not
// given up before the time that was set, and none begins beside one that lives (where no connection
// was broken); soon after the calm no job is on its way in a process that is not there; a stop that
// was acknowledged is followed by no other attempt; the end that is told is the one that the process
// came to. Lines reach a follower whole and in order; what he has seen and what he was told was left
// out is what was printed. At the end no lease and no process is left.
#include "sim/scenario.hpp"

#include <skein/core/timeout.hpp>
#include <skein/sim/disk.hpp>
#include <tests/support/sim_jobs.hpp>
#include <tests/support/sim_nodes.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace jobs_world {

using namespace skein;
using namespace std::chrono_literals;
using cluster::job_info;
using cluster::job_state;
using test::sim_nodes;

/// What is known of a job by who has submitted it.
struct told {
    cluster::job_request what;
    bool is_taken = false;                ///< acknowledged
    bool was_stopped = false;             ///< somebody has asked for it
    std::optional<std::uint32_t> stopped; ///< acknowledged, in this attempt
    std::optional<job_info> end;          ///< the first that was heard of
    time_point heard_at{};                ///< of it
    std::set<std::uint32_t> ran;          ///< attempts that were seen to run
    std::uint64_t seen = 0, left_out = 0; ///< lines of its follower
    bool is_heard = false;                ///< the follower has heard the end
};

struct stage {
    sim::world& w;
    sim_nodes& c;
    test::sim_jobs& jobs;
    sim::disk* disk;
    std::map<std::string, told> all{};
    duration lost_after{};
    bool breaks_links = false; ///< connections are broken, and links cut for a while
    bool loses_nodes = false;  ///< one is cut off until it is given up, while it runs something
    bool agents_died = false;
    std::map<std::string, time_point>
        heard{}; ///< nodes: when their way to a head was open for long
    std::set<std::pair<std::string, std::uint32_t>> losses{}; ///< attempts that were given up
    time_point looked_at{};                                   ///< at all jobs

    /// It was heard not long ago, as far as that is known.
    [[nodiscard]] bool was_heard(const std::string& node) const {
        const auto found = heard.find(node);
        return found != heard.end() && w.loop.now() - found->second < lost_after - 2s;
    }
    std::string violation{};

    void broken(std::string why) {
        if (violation.empty()) violation = std::move(why);
    }
};

/// Nodes are heard while nothing is cut between them and a head for so long; links come back by then.
constexpr duration surely_heard = std::chrono::seconds(20);

/// When each node could be heard.
task<void> listen(stage* s) {
    std::map<std::string, time_point> open_since;
    for (;;) {
        const auto now = s->w.loop.now();
        for (std::size_t i = 0; i < s->c.nodes(); ++i) {
            const auto& n = s->c.at(i);
            const bool is_open = s->c.has_head() && n.agent &&
                                 !s->w.network.is_blocked(n.host, "head") &&
                                 !s->w.network.is_blocked("head", n.host);
            if (!is_open)
                open_since.erase(n.host);
            else if (const auto since = open_since.try_emplace(n.host, now).first->second;
                     now - since >= surely_heard)
                s->heard[n.host] = now;
        }
        co_await sleep_for(100ms);
    }
}

/// A node that was given up for its silence has been silent for so long.
void look_at_loss(stage* s, const job_info& now) {
    const auto says = [&](const char* text) { return now.reason.find(text) != std::string::npos; };
    const bool was_silent = says("was lost") && says("silent");
    const bool was_away = says("did not come back to the head") && !s->breaks_links;
    if (s->agents_died || (!was_silent && !was_away)) return;
    const bool is_news =
        s->losses.emplace(now.id, now.attempt).second && s->w.loop.now() - s->looked_at < 2s;
    if (is_news && s->was_heard(now.node))
        s->broken(
            fmt::format("{} on {} was given up {:.3g} s after that was heard, not {:.3g} s: {}",
                        now.id, now.node, to_seconds(s->w.loop.now() - s->heard[now.node]),
                        to_seconds(s->lost_after), now.reason));
}

/// asked_at: what was asked for before an end was heard of may come after it.
void look_at(stage* s, const job_info& now, time_point asked_at = {}) {
    const auto found = s->all.find(now.id);
    if (found == s->all.end()) return s->broken("there is a job that nobody has submitted");
    auto& job = found->second;
    const auto state = cluster::state_of(now);
    if (state == job_state::running) job.ran.insert(now.attempt);
    look_at_loss(s, now);
    if (job.ran.size() > job.what.retries + 1)
        s->broken(fmt::format("{} ran {} times with {} retries", now.id, job.ran.size(),
                              job.what.retries));
    if (!job.end) {
        if (cluster::is_over(state)) {
            job.end = now;
            job.heard_at = s->w.loop.now();
        }
        return;
    }
    if (asked_at < job.heard_at && !cluster::is_over(state)) return;
    const auto& end = *job.end;
    if (now.state != end.state || now.ended != end.ended || now.attempt != end.attempt ||
        now.exit_code != end.exit_code || now.reason != end.reason)
        s->broken(fmt::format("{} had ended as {} of attempt {} ({}), and is {} of attempt {} ({})",
                              now.id, to_string(cluster::state_of(end)), end.attempt, end.reason,
                              to_string(state), now.attempt, now.reason));
}

/// Looks at all jobs now and then.
task<void> watch(stage* s) {
    for (;;) {
        co_await sleep_for(std::chrono::milliseconds(20 + s->w.below(600)));
        const auto asked_at = s->w.loop.now();
        auto asking = as_result(with_timeout(s->jobs.list(), 3s));
        const auto all = co_await asking;
        if (!all) continue;
        for (const auto& one : all->jobs) look_at(s, one, asked_at);
        s->looked_at = s->w.loop.now();
    }
}

/// What it does, and how often, and how long.
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
    for (auto parts = 1 + w.below(3); parts > 0; --parts) {
        if (w.chance(0.8)) add("talk", 1 + w.below(w.chance(0.1) ? 2000 : 20));
        add("sleep", w.below(w.chance(0.2) ? 8000 : 1000));
    }
    if (w.chance(0.15)) add("sleep", 10'000'000);         // until somebody ends it
    const bool is_long = s->loses_nodes && w.chance(0.4); // it outlives the silence of its node
    if (is_long) add("sleep", 20'000 + w.below(60'000));
    if (w.chance(0.3))
        add("exit-after", w.below(4));
    else
        add("exit", w.chance(0.7) ? 0 : 1 + w.below(200));
    what.demand = w.chance(0.8) ? "cpu=1" : w.chance(0.5) ? "cpu=2" : "cpu=0.5";
    what.retries = static_cast<std::uint32_t>(w.below(4));
    if (is_long)
        what.retries = std::max(what.retries, 1U);
    else if (w.chance(0.3))
        what.timeout_ms = 500 + w.below(5000);
    if (w.chance(0.1)) {
        what.label = "zone=none";
        what.pending_ms = 500 + w.below(3000);
    }
    return what;
}

/// Lines are whole and in order: "attempt number".
void hear(stage* s, told* job, const cluster::job_lines& said, std::uint64_t* next,
          std::pair<std::uint64_t, std::uint64_t>* last) {
    const auto& id = said.now.id;
    look_at(s, said.now);
    if (said.first > *next) job->left_out += said.first - *next;
    const bool is_gap = said.first != *next;
    *next = said.first + said.lines.size();
    job->seen += said.lines.size();
    bool is_first = true;
    for (const auto& line : said.lines) {
        const auto space = line.text.find(' ');
        const bool is_whole =
            space != std::string::npos && space != 0 && space + 1 < line.text.size() &&
            line.text.find_first_not_of("0123456789", space + 1) == std::string::npos;
        if (!is_whole) return s->broken(fmt::format("{}: not a whole line: {}", id, line.text));
        const std::pair<std::uint64_t, std::uint64_t> now{std::stoull(line.text.substr(0, space)),
                                                          std::stoull(line.text.substr(space + 1))};
        const bool may_jump = std::exchange(is_first, false) && is_gap;
        const bool fits =
            now.first == last->first
                ? (may_jump ? now.second > last->second : now.second == last->second + 1)
                : now.first > last->first && (may_jump || now.second == 1);
        if (!fits)
            return s->broken(fmt::format("{}: line {} of attempt {} came after line {} of {}", id,
                                         now.second, now.first, last->second, last->first));
        *last = now;
    }
}

task<void> follow(stage* s, std::string id) {
    auto* const job = &s->all.at(id);
    std::uint64_t next = 1;
    std::pair<std::uint64_t, std::uint64_t> last{0, 0};
    const auto each = [&](const cluster::job_lines& said) { hear(s, job, said, &next, &last); };
    for (;;) {
        auto following = as_result(cluster::follow_to_end(s->jobs.tool(), s->jobs.as_tool(), id, 1,
                                                          each, std::chrono::hours(1)));
        const auto end = co_await following;
        if (end) break;
        if (end.error().code() == errc::cancelled) throw end.error();
        if (next != 1) { // it may only give up before it has begun
            s->broken(fmt::format("the follower of {} gave up: {}", id, end.error().what()));
            co_return;
        }
        co_await sleep_for(500ms);
    }
    job->is_heard = true;
}

/// Until somebody says that it is taken, or that he has it already.
task<void> submit(stage* s, int number, scope* following) {
    auto& w = s->w;
    auto what = draw_job(s, number);
    auto& job = s->all[what.id];
    job.what = what;
    bool may_be_there = false;
    for (;;) {
        auto asking = as_result(with_timeout(s->jobs.submit(what), 5s));
        const auto taken = co_await asking;
        if (taken) {
            job.is_taken = true;
            if (!taken->not_durable.empty()) s->broken("not durable: " + taken->not_durable);
            break;
        }
        if (taken.error().code() == errc::already_exists) {
            if (!may_be_there) s->broken("an id is taken that nobody has used");
            break;
        }
        may_be_there = true;
        co_await sleep_for(std::chrono::milliseconds(w.below(500)));
    }
    if (job.is_taken && w.chance(0.5)) following->spawn(follow(s, what.id));
}

task<void> stop(stage* s, std::string id) {
    auto* const job = &s->all.at(id);
    job->was_stopped = true;
    const auto asked_at = s->w.loop.now();
    auto asking = as_result(with_timeout(s->jobs.stop(id), 3s));
    const auto answer = co_await asking;
    if (!answer) co_return;
    look_at(s, answer->now, asked_at);
    if (!job->stopped) job->stopped = answer->now.attempt;
}

task<void> submit_around(stage* s, scope* following) {
    auto& w = s->w;
    const int count = 4 + static_cast<int>(w.below(12));
    for (int i = 1; i <= count; ++i) {
        auto submitting = submit(s, i, following);
        co_await submitting;
        if (w.chance(0.3)) {
            auto stopping = stop(s, fmt::format("j{}", 1 + w.below(static_cast<std::uint64_t>(i))));
            co_await stopping;
        }
        if (w.chance(0.7)) co_await sleep_for(std::chrono::milliseconds(w.below(1500)));
    }
}

/// Between a change and its being durable, or just after that.
task<void> kill_head(stage* s) {
    auto& w = s->w;
    if (!s->c.has_head()) co_return; // somebody else has
    w.network.counts().add(sim::fault::kill);
    auto killed = s->c.kill_head();
    co_await killed;
    s->disk->crash();
    const std::uint64_t most_ms = w.chance(0.3) ? 9000 : 1000;
    co_await sleep_for(std::chrono::milliseconds(w.below(most_ms)));
    s->c.start_head();
}

/// Until a process has just started or ended: its news may be on the way.
task<void> next_change(stage* s) {
    const auto before = s->c.processes();
    for (int i = 0; i < 5000 && s->c.processes() == before; ++i) co_await sleep_for(200us);
    co_await sleep_for(std::chrono::microseconds(s->w.below(4000)));
}

/// Until a job has just been placed: its node may have been told, and the log not.
task<void> next_order(stage* s) {
    const auto placed = [s] { // without a head nothing is
        std::uint64_t leases = 0;
        if (!s->c.has_head()) return leases;
        for (const auto& n : s->c.head().status().nodes) leases += n.workers;
        return leases;
    };
    if (!s->c.has_head()) co_return;
    for (auto before = placed(), i = std::uint64_t{0}; i < 20'000 && placed() <= before; ++i) {
        before = std::min(before, placed());
        co_await sleep_for(50us);
    }
    co_await sleep_for(std::chrono::microseconds(s->w.below(1000)));
}

/// Nothing comes from a node, and nothing reaches it, for 1 to 60 s; what it runs goes on.
task<void> silence(stage* s) {
    auto& w = s->w;
    for (auto times = w.below(4); times > 0; --times) {
        co_await sleep_for(std::chrono::milliseconds(w.below(5000)));
        const auto host = s->c.at(w.below(s->c.nodes())).host;
        w.network.partition(host, "head");
        const std::uint64_t most_ms = w.chance(0.5) ? 9000 : 59'000;
        co_await sleep_for(std::chrono::milliseconds(1000 + w.below(most_ms)));
        w.network.heal(host, "head");
    }
}

/// A node that runs something is cut off until it is given up; then the head dies, or does not, and
/// the node comes back before what it ran has surely ended, or after that.
task<void> lose_node(stage* s) {
    auto& w = s->w;
    const auto busy = [s]() -> sim_nodes::node* {
        for (std::size_t i = 0; i < s->c.nodes(); ++i)
            if (!s->c.at(i).children->running().empty()) return &s->c.at(i);
        return nullptr;
    };
    co_await sleep_for(std::chrono::milliseconds(w.below(8000)));
    for (int i = 0; i < 100 && busy() == nullptr; ++i) co_await sleep_for(100ms);
    const auto* const node = busy();
    if (node == nullptr) co_return;
    const auto host = node->host;
    w.network.partition(host, "head");
    co_await sleep_for(s->lost_after + std::chrono::milliseconds(500 + w.below(4000)));
    if (w.chance(0.5)) {
        auto killed = kill_head(s);
        co_await killed;
    }
    co_await sleep_for(std::chrono::milliseconds(w.below(60'000)));
    w.network.heal(host, "head");
}

/// A node that runs out of something: it fails at once, and so looks emptier than the others.
task<void> start_nothing(stage* s) {
    auto& w = s->w;
    for (;;) {
        co_await sleep_for(std::chrono::milliseconds(w.below(4000)));
        auto& faults = s->c.at(w.below(s->c.nodes())).children->faults();
        const auto before = std::exchange(faults.no_descriptors, 1);
        co_await sleep_for(std::chrono::milliseconds(w.below(8000)));
        faults.no_descriptors = before;
    }
}

task<void> hurt(stage* s) {
    auto& w = s->w;
    for (auto blows = w.below(12); blows > 0; --blows) {
        co_await sleep_for(std::chrono::milliseconds(w.below(2000)));
        if (w.chance(0.5)) {
            auto waiting = w.chance(0.4) ? next_order(s) : next_change(s);
            co_await waiting;
        }
        if (w.chance(0.3)) {
            auto& on = *s->c.at(w.below(s->c.nodes())).children;
            if (const auto all = on.running(); !all.empty()) on.kill(all[w.below(all.size())].pid);
        } else if (w.chance(0.6)) {
            auto killed = kill_head(s);
            co_await killed;
        } else if (w.chance(0.3)) {
            if (!s->breaks_links) continue;
            w.network.crash(s->c.at(w.below(s->c.nodes())).host); // its connections alone
        } else {
            s->agents_died = true;
            auto& node = s->c.at(w.below(s->c.nodes())); // one draw after the other
            auto replaced = s->c.replace_agent(node, w.chance(0.5));
            co_await replaced;
        }
    }
}

/// Jobs that are on their way, and of which no process is there, by attempt and state.
task<std::set<std::string>> hollow(stage* s) {
    std::set<std::string> out;
    auto asking = as_result(with_timeout(s->jobs.list(), 3s));
    const auto all = co_await asking;
    if (!all) co_return out;
    for (const auto& one : all->jobs) {
        const auto state = cluster::state_of(one);
        if (state != job_state::starting && state != job_state::running) continue;
        if (s->jobs.alive(one.id) == 0)
            out.insert(fmt::format("attempt {} of {} is {} on {}", one.attempt, one.id,
                                   to_string(state), one.node));
    }
    co_return out;
}

/// When all nodes are back, and what hung has been given up, there is nothing to wait for.
task<void> check_calm(stage* s) {
    const auto until = s->w.loop.now() + 30s;
    const auto are_back = [s] {
        const auto now = s->c.head().status();
        return now.nodes.size() == s->c.nodes() &&
               std::none_of(now.nodes.begin(), now.nodes.end(),
                            [](const auto& n) { return n.suspect; });
    };
    while (!are_back() && s->w.loop.now() < until) co_await sleep_for(100ms);
    if (!are_back()) co_return s->broken("not all nodes are back 30 s after the calm");
    co_await sleep_for(6s); // a start that hangs is given up after 5 s
    auto first = hollow(s);
    const auto before = co_await first;
    co_await sleep_for(3s);
    auto second = hollow(s);
    for (const auto& one : co_await second)
        if (before.contains(one)) s->broken(one + ", and no process of it is there");
}

/// Those that would never end are stopped; all others end by themselves.
task<void> end_all(stage* s) {
    for (auto& [id, job] : s->all) {
        const auto& words = job.what.command;
        const bool is_endless = std::find(words.begin(), words.end(), "10000000") != words.end();
        if (!is_endless || job.what.timeout_ms != 0) continue;
        for (int tries = 0; tries < 20 && !job.end; ++tries) {
            auto stopping = stop(s, id);
            co_await stopping;
            if (job.stopped) break;
            co_await sleep_for(500ms);
        }
    }
    const auto last = s->w.loop.now() + 400s;
    std::string waits;
    do {
        waits.clear();
        co_await sleep_for(500ms);
        const auto asked_at = s->w.loop.now();
        auto asking = as_result(with_timeout(s->jobs.list(), 3s));
        const auto all = co_await asking;
        if (!all) {
            waits = all.error().what();
            continue;
        }
        std::set<std::string> known;
        for (const auto& one : all->jobs) {
            look_at(s, one, asked_at);
            known.insert(one.id);
            if (!cluster::is_over(cluster::state_of(one)))
                waits += fmt::format("; {} is {}: {}", one.id, to_string(cluster::state_of(one)),
                                     one.reason);
        }
        for (const auto& [id, job] : s->all)
            if (job.is_taken && !known.contains(id)) s->broken(id + " was taken and is not known");
    } while (!waits.empty() && s->w.loop.now() < last);
    s->w.check(waits.empty(), "jobs have not ended long after the calm: " + waits);
}

void check_end(stage* s, const std::string& id, const told& job) {
    auto& w = s->w;
    std::uint64_t printed = 0, started = 0;
    for (const auto& [which, had] : s->jobs.attempts()) {
        if (which.first != id) continue;
        printed += had.printed;
        ++started;
        w.check(
            had.others == 0 || s->breaks_links || s->agents_died,
            fmt::format("attempt {} of {} began beside {} that ran", which.second, id, had.others));
        w.check(had.starts == 1,
                fmt::format("attempt {} of {} ran {} times", which.second, id, had.starts));
        w.check(!job.stopped || which.second <= *job.stopped,
                fmt::format("{} was stopped in attempt {}, and {} began", id,
                            job.stopped.value_or(0), which.second));
    }
    w.check(started <= job.what.retries + 1,
            fmt::format("{} started {} times with {} retries", id, started, job.what.retries));
    if (!job.end) return w.check(!job.is_taken, id + " was taken and has no end");
    const auto& end = *job.end;
    w.loop.trace(end.state * 1000U + end.attempt);
    const auto found = s->jobs.attempts().find({id, end.attempt});
    const int code = found == s->jobs.attempts().end() ? -1 : found->second.code;
    const auto state = cluster::state_of(end);
    w.check(state != job_state::succeeded || code == 0,
            fmt::format("{} has succeeded, and its process gave {}", id, code));
    w.check(state != job_state::failed || end.exit_code < 0 || end.exit_code == code || code == -1,
            fmt::format("{} failed with {}, and its process gave {}", id, end.exit_code, code));
    w.check(state != job_state::failed || code != 0 || job.what.timeout_ms != 0 ||
                end.exit_code != 0,
            id + " failed, and its process ended well: " + end.reason);
    w.check(state != job_state::stopped || job.was_stopped, id + " was stopped by nobody");
    w.check(state != job_state::failed || job.what.pending_ms != 0 ||
                end.reason.find("too many open files") == std::string::npos,
            id + " failed for a start that was no attempt: " + end.reason);
    if (!job.is_heard) return;
    w.check(job.seen + job.left_out <= printed,
            fmt::format("{} printed {} lines, {} were seen and {} left out", id, printed, job.seen,
                        job.left_out));
    // Its agent has told how many lines there were. The last attempt may have been killed before it
    // began, and the one before with its node.
    const bool is_last = found != s->jobs.attempts().end() && found->second.starts == 1;
    const bool is_sure = started == 1 && is_last && (end.exit_code >= 0 || end.signal != 0);
    w.check(
        !is_sure || job.seen + job.left_out == printed,
        fmt::format("{} printed {} lines, {} were seen and {} counted as left out; the head knows "
                    "of {}; {} {}",
                    id, printed, job.seen, job.left_out, end.lines, to_string(state), end.reason));
}

task<void> drive(stage* s) {
    auto& w = s->w;
    auto& c = s->c;
    c.start_head();
    for (auto nodes = 1 + w.below(3); nodes > 0; --nodes)
        s->jobs.with_entries(c.add_breaking_node(2 + static_cast<int>(w.below(2))));
    if (s->breaks_links) w.network.begin_link_faults();
    scope watching, following, submitting, silencing;
    watching.spawn(watch(s));
    watching.spawn(listen(s));
    silencing.spawn(s->loses_nodes ? lose_node(s) : silence(s));
    submitting.spawn(submit_around(s, &following));
    scope starving;
    if (w.chance(0.5)) starving.spawn(start_nothing(s));
    std::exception_ptr failure;
    try {
        auto hurts = hurt(s);
        co_await hurts;
        auto submitted = submitting.join();
        co_await submitted;
        auto silenced = silencing.join();
        co_await silenced;
        for (std::size_t i = 0; i < c.nodes(); ++i)
            s->agents_died = s->agents_died || c.at(i).agent->over;
        starving.cancel();
        auto fed = as_result(starving.join());
        (void)co_await fed;
        auto calming = c.be_calm();
        co_await calming;
        auto checking = check_calm(s);
        co_await checking;
        auto ended = end_all(s);
        co_await ended;
        auto heard = as_result(with_timeout(following.join(), 120s));
        const auto all_heard = co_await heard;
        w.check(all_heard.has_value(), "a follower has not heard the end of its job");
    } catch (...) {
        failure = std::current_exception();
    }
    for (auto* some : {&submitting, &silencing, &following, &starving, &watching}) {
        some->cancel();
        auto gone = as_result(some->join());
        (void)co_await gone;
    }
    auto all = c.end_when_empty(60s);
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
    stage s{w, c, *jobs, &disk};
    s.lost_after = w.chance(0.7) ? 30s : w.chance(0.5) ? 5s : 90s;
    s.breaks_links = w.chance(0.5);
    s.loses_nodes = !s.breaks_links && s.lost_after < 60s && w.chance(0.5);
    c.head_defaults.lost_after = s.lost_after;
    if (!s.breaks_links) { // a connection that was closed means that its process has died
        w.network.faults().reset = w.network.faults().flip = 0;
    }
    auto driving = drive(&s);
    co_await driving;
    w.loop.trace(s.all.size());
}

const sim::scenario registered("jobs", &scenario);

} // namespace jobs_world
