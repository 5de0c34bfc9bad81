// SPDX-License-Identifier: Apache-2.0
// ranks: trainings that take places on the nodes of a cluster, attempt after attempt, all of it with
// its real code. Ranks die, stand still, fail and are stopped and killed by their supervisor, starts
// fail and hang, agents and their machines die, the head dies, links break and are cut, clocks run
// fast and slow.
//
// Invariants: an attempt has room for all of its ranks or for none, and places that fit together; a
// rank's process is started at most once; each start is told an end, in bounded time, and an exit
// code that is told is the one that the process gave; a room that was given up is free again. At the
// end no lease and no process is left.
#include "sim/scenario.hpp"

#include <skein/cluster/leased_ranks.hpp>
#include <skein/core/timeout.hpp>
#include <skein/sim/disk.hpp>
#include <skein/spmd/environment.hpp>
#include <skein/spmd/meeting.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>
#include <tests/support/sim_nodes.hpp>

#include <csignal>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ranks_world {

using namespace skein;
using namespace std::chrono_literals;
using test::sim_nodes;

/// What a rank's processes did.
struct rank_record {
    int starts = 0;
    int code = -1; ///< that it gave; -1: none
};

struct stage {
    sim::world& w;
    sim_nodes& c;
    sim::disk* disk;
    std::map<std::string, rank_record> ranks{}; ///< by training, attempt and rank
    std::string violation{};
    std::uint64_t ends = 0, good = 0;

    void broken(std::string why) {
        if (violation.empty()) violation = std::move(why);
    }
};

/// Sleeps as long as it is told, and exits with what it is told.
task<int> live(stage* s, sim::process* self) {
    using places = std::map<std::string, std::string>;
    const auto told = wire::decode<places>(self->started_with().message).value();
    co_await sleep_for(1us); // killed as it began: it ends here
    auto& had = s->ranks[told.at("NAME")];
    ++had.starts;
    const auto& words = self->started_with().argv;
    co_await sleep_for(std::chrono::milliseconds(std::stoi(words.at(1))));
    had.code = std::stoi(words.at(2));
    co_return had.code;
}

void add_node(stage* s, int cpus) {
    s->c.add_breaking_node(cpus).children->add(spmd::rank_role,
                                               [s](sim::process* self) { return live(s, self); });
}

std::unique_ptr<cluster::leased_ranks> make_places(stage* s, const std::string& host) {
    cluster::leased_ranks_options how;
    how.head = sim_nodes::head_address();
    how.secret = s->c.secret();
    how.program = {"/app", "/", {}};
    how.name = how.host = host;
    how.pid = 1;
    how.join_within = 60s;
    how.incarnation = s->w.loop.random().next();
    const loop::use on_its_host(s->c.network().loop_of(host));
    return std::make_unique<cluster::leased_ranks>(s->c.network().loop_of(host),
                                                   s->c.network().host(host), how);
}

void check_places(stage* s, const std::vector<proc::child_place>& where, int ranks) {
    if (where.size() != static_cast<std::size_t>(ranks)) s->broken("another number of places");
    int expected = 0, size = 0;
    for (const auto& one : where) {
        if (expected == size) { // the next node
            expected = 0;
            size = one.local_size;
        }
        if (one.local_rank != expected++ || one.local_size != size || size < 1)
            s->broken("places that do not fit together");
    }
    if (expected != size) s->broken("a node with fewer ranks than it says");
}

/// Its end, which comes however many hosts have died.
task<void> hear_end(stage* s, proc::child* rank, std::string name) {
    auto ending = as_result(with_timeout(rank->ended(), 600s));
    const auto end = co_await ending;
    if (!end) {
        std::string now;
        if (s->c.has_head())
            for (const auto& j : s->c.head().status().jobs)
                now += fmt::format(" [{} {} leases, {} wait: {}]", j.name, j.workers, j.waiting,
                                   j.why);
        co_return s->broken(
            fmt::format("{} has no end: it was started {} times, gave {}; {}; the head: {}", name,
                        s->ranks[name].starts, s->ranks[name].code, rank->name(), now));
    }
    ++s->ends;
    const auto& had = s->ranks[name];
    if (!end->lost.empty()) co_return;
    if (end->status.code() >= 0 && end->status.code() != had.code)
        s->broken(fmt::format("{} is told to have given {}, and gave {}", name, end->status.code(),
                              had.code));
    s->good += end->status.success();
}

/// What a supervisor does with ranks: asks them, insists, or lets them be.
task<void> press(stage* s, std::vector<std::unique_ptr<proc::child>>* ranks) {
    auto& w = s->w;
    co_await sleep_for(std::chrono::milliseconds(w.below(3000)));
    const bool kills = w.chance(0.5);
    for (const auto& one : *ranks) {
        if (!w.chance(0.5)) continue;
        if (kills)
            one->kill();
        else
            one->signal(SIGTERM);
    }
}

task<void> attempt(stage* s, proc::children* places, std::string training, int number, int ranks) {
    auto& w = s->w;
    auto reserving = as_result(with_timeout(places->reserve(ranks), 30s));
    const auto where = co_await reserving;
    if (!where) {
        if (where.error().code() != errc::timeout) throw where.error();
        co_return; // too little room, or no head: another time
    }
    check_places(s, *where, ranks);
    std::vector<std::unique_ptr<proc::child>> all;
    std::vector<std::string> names;
    for (int r = 0; r < ranks; ++r) {
        proc::child_options what;
        names.push_back(fmt::format("{}.{}.{}", training, number, r));
        what.name = fmt::format("worker {}", r);
        what.message = wire::encode(std::map<std::string, std::string>{
            {"NAME", names.back()}, {spmd::group_variable, "tcp:*:4711"}});
        const auto length = w.below(4000);
        const auto code = w.below(3);
        what.argv = {"train", std::to_string(length), std::to_string(code)};
        what.stop_grace = 1s;
        auto starting = places->start(std::move(what));
        all.push_back(co_await starting);
    }
    scope beside;
    if (w.chance(0.4)) beside.spawn(press(s, &all));
    for (std::size_t r = 0; r < all.size(); ++r) beside.spawn(hear_end(s, all[r].get(), names[r]));
    auto over = shield(beside.join());
    co_await over;
    places->release();
}

task<void> train(stage* s, std::string name) {
    auto& w = s->w;
    for (int number = 0; number < 6 && s->violation.empty();) {
        const auto places = make_places(s, name);
        try {
            auto opening = places->open();
            co_await opening;
            for (auto more = 1 + w.below(3); more > 0; --more) {
                const auto ranks = 1 + static_cast<int>(w.below(4));
                auto trying = attempt(s, places.get(), name, number++, ranks);
                co_await trying;
            }
        } catch (const error& e) {
            ++number; // its driver was away for too long, or the head: a new one, as a person would
            w.loop.trace(static_cast<std::uint64_t>(e.code()));
        }
        auto closing = shield(places->close());
        co_await closing;
        co_await sleep_for(std::chrono::milliseconds(w.below(2000)));
    }
}

task<void> kill_head(stage* s) {
    auto& w = s->w;
    w.network.counts().add(sim::fault::kill);
    auto killed = s->c.kill_head();
    co_await killed;
    s->disk->crash();
    const std::uint64_t most_ms = w.chance(0.2) ? 60'000 : 1500;
    co_await sleep_for(std::chrono::milliseconds(w.below(most_ms)));
    s->c.start_head();
}

task<void> hurt(stage* s) {
    auto& w = s->w;
    for (auto blows = w.below(10); blows > 0; --blows) {
        co_await sleep_for(std::chrono::milliseconds(w.below(4000)));
        auto& node = s->c.at(w.below(s->c.nodes()));
        if (w.chance(0.3)) {
            if (const auto all = node.children->running(); !all.empty())
                node.children->kill(all[w.below(all.size())].pid);
        } else if (w.chance(0.4)) {
            auto killed = kill_head(s);
            co_await killed;
        } else if (w.chance(0.5)) {
            w.network.crash(node.host); // its connections alone
        } else {
            const bool machine = w.chance(0.5);
            auto replaced = s->c.replace_agent(node, machine);
            co_await replaced;
        }
    }
}

task<void> drive(stage* s) {
    auto& w = s->w;
    auto& c = s->c;
    c.start_head();
    for (auto nodes = 1 + w.below(3); nodes > 0; --nodes)
        add_node(s, 1 + static_cast<int>(w.below(3)));
    w.network.begin_link_faults();
    scope training;
    for (auto n = 1 + w.below(2); n > 0; --n) training.spawn(train(s, fmt::format("t{}", n)));
    auto hurts = hurt(s);
    co_await hurts;
    auto calming = c.be_calm();
    co_await calming;
    auto trained = as_result(with_timeout(training.join(), 3600s));
    const auto all_over = co_await trained;
    training.cancel();
    auto gone = as_result(training.join());
    (void)co_await gone;
    auto all = c.end_when_empty(120s);
    const auto left = co_await all;
    w.check(s->violation.empty(), s->violation);
    w.check(all_over.has_value(), "a training has not ended long after the calm");
    w.check(left.empty(), left);
    for (const auto& [name, had] : s->ranks) {
        w.check(had.starts <= 1, fmt::format("{} was started {} times", name, had.starts));
        w.loop.trace(static_cast<std::uint64_t>(had.code + 1));
    }
}

task<void> scenario(sim::world& w) {
    w.network.draw_clocks();
    sim::disk disk(w.loop.random(), {}, &w.network.counts());
    sim_nodes c(w.loop, w.network);
    c.use_log(disk);
    c.head_defaults.runs = "/runs";
    stage s{w, c, &disk};
    auto driving = drive(&s);
    co_await driving;
    w.loop.trace(s.ends);
    w.loop.trace(s.good);
}

const sim::scenario registered("ranks", &scenario);

} // namespace ranks_world
