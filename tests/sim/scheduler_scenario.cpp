// SPDX-License-Identifier: Apache-2.0
// scheduler: tasks that call tasks on places that come, drain and go, decided by one
// sched::scheduler.
//
// Invariants: a request is granted once; who runs can wait and can give its room back; every task
// ends, however deep it calls and whatever places went, once one place stays; nothing is taken
// then. What is spread over nodes with room is spread evenly then, whatever came before.
#include "sim/scenario.hpp"

#include <skein/core/event.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/sched/scheduler.hpp>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace scheduler_scenario {

using namespace skein;
using namespace std::chrono_literals;

/// The user of a scheduler: what an agent does for the workers of its host.
struct host {
    struct running {
        event moved; ///< granted, resumed or lost
        bool lost = false;
        sched::place_id place;
    };

    explicit host(sim::world& world) : w(world) {}

    void add_place() {
        const sched::place_id id(++last_place);
        sched::resources total;
        total.cpu = static_cast<int>(1 + w.below(3));
        if (w.chance(0.5)) total.gpu = 1;
        std::vector<std::string> labels;
        if (w.chance(0.7)) labels.push_back(fmt::format("node={}", w.below(3)));
        scheduler.add_place(id, fmt::format("worker-{}", last_place), total, labels).value();
        places.push_back(id);
        pump();
    }
    void remove_place() {
        const auto at = w.below(places.size());
        const auto gone = scheduler.remove_place(places[at]);
        places.erase(places.begin() + static_cast<std::ptrdiff_t>(at));
        for (const auto& e : gone) {
            auto& r = *all.at(e.id);
            r.lost = true;
            r.moved.set();
        }
        pump();
    }
    void pump() {
        std::vector<sched::grant> granted;
        scheduler.take_grants(granted);
        for (const auto& g : granted) {
            auto& r = *all.at(g.id);
            w.check(!r.moved.is_set(), "a grant for what has one");
            r.place = g.place;
            r.moved.set();
            w.loop.trace(g.id.value());
            w.loop.trace(g.place.value());
        }
    }

    sim::world& w;
    sched::scheduler scheduler;
    std::vector<sched::place_id> places;
    std::map<sched::request_id, std::shared_ptr<running>> all;
    std::uint64_t last_place = 0;
    int done = 0, lost = 0;
};

/// Room for one attempt; false: its place has gone.
task<bool> wait_for(host* h, sched::request_id id) {
    auto r = h->all.at(id);
    auto moved = r->moved.wait();
    co_await moved;
    r->moved.reset();
    if (r->lost) {
        h->all.erase(id);
        ++h->lost;
    }
    co_return !r->lost;
}

/// A task that computes, calls others and waits for them; it runs again when its place goes.
task<void> work(host* h, int depth, std::uint64_t job) {
    for (;;) {
        sched::request r;
        r.job = job_id(job);
        r.demand.cpu = sched::amount::of_steps(static_cast<std::int64_t>(1 + h->w.below(2)) * 5000);
        if (depth == 0 && h->w.chance(0.2)) r.demand.gpu = sched::amount::of_steps(5000);
        if (h->w.chance(0.3)) r.where = sched::constraint::spread();
        const auto id = h->scheduler.submit(r).value();
        h->all.emplace(id, std::make_shared<host::running>());
        h->pump();
        auto granted = wait_for(h, id);
        if (!co_await granted) continue;
        auto computing = sleep_for(std::chrono::milliseconds(1 + h->w.below(50)));
        co_await computing;
        auto r_now = h->all.at(id);
        if (!r_now->lost && depth > 0) {
            h->w.check(h->scheduler.wait_begin(id), "a running task cannot wait");
            h->pump();
            {
                scope children;
                const auto count = 1 + h->w.below(3);
                for (std::uint64_t i = 0; i < count; ++i) children.spawn(work(h, depth - 1, job));
                auto joined = children.join();
                co_await joined;
            }
            if (!r_now->lost && !h->scheduler.wait_end(id)) {
                h->pump();
                auto resumed = wait_for(h, id);
                if (!co_await resumed) continue;
            }
        }
        if (r_now->lost) { // while it computed or waited
            h->all.erase(id);
            ++h->lost;
            continue;
        }
        h->w.check(h->scheduler.release(id), "a task held nothing while it ran");
        h->all.erase(id);
        ++h->done;
        h->pump();
        co_return;
    }
}

/// On nodes of several places each.
void check_spread(host* h) {
    const auto nodes = 1 + h->w.below(5);
    std::map<sched::place_id, std::uint64_t> node_of;
    for (std::uint64_t n = 0; n < nodes; ++n)
        for (auto left = 1 + h->w.below(3); left > 0; --left) {
            const sched::place_id id(2000 + node_of.size());
            sched::resources total;
            total.cpu = 100;
            total.set("even", 100);
            const auto label = fmt::format("node=even-{}", n);
            h->scheduler.add_place(id, fmt::format("even-{}", id), total, {label}).value();
            node_of.emplace(id, n);
        }
    std::map<std::uint64_t, int> on;
    std::vector<sched::request_id> asked;
    const auto count = 1 + h->w.below(40);
    for (std::uint64_t i = 0; i < count; ++i) {
        sched::request r;
        r.job = job_id(1 + h->w.below(3));
        r.demand.set("even", 1);
        r.demand.cpu = static_cast<int>(h->w.below(2));
        r.where = sched::constraint::spread();
        asked.push_back(h->scheduler.submit(r).value());
    }
    std::vector<sched::grant> granted;
    h->scheduler.take_grants(granted);
    h->w.check(granted.size() == count, "there is room, and a request waits");
    for (const auto& g : granted) ++on[node_of.at(g.place)];
    for (std::uint64_t n = 0; n < nodes; ++n) {
        const auto least = static_cast<int>(count / nodes);
        h->w.check(on[n] == least || on[n] == least + 1, "what is spread is not even");
    }
    for (const auto id : asked) h->w.check(h->scheduler.release(id), "a grant holds nothing");
}

task<void> scenario(sim::world& w) {
    host h(w);
    for (int i = 0; i < 3; ++i) h.add_place();
    scope tasks;
    const auto count = 5 + w.below(20);
    for (std::uint64_t i = 0; i < count; ++i) {
        const auto what = static_cast<int>(w.below(4));
        tasks.spawn(work(&h, what, 1 + w.below(3)));
    }
    for (int i = 0; i < 30; ++i) {
        auto pause = sleep_for(std::chrono::milliseconds(1 + w.below(40)));
        co_await pause;
        const auto kind = w.below(4);
        if (kind == 0 && h.places.size() < 6) h.add_place();
        if (kind == 1 && !h.places.empty()) h.remove_place();
        if (kind == 2 && !h.places.empty()) {
            const auto which = w.below(h.places.size());
            h.scheduler.drain(h.places[which], w.chance(0.5));
            h.pump();
        }
    }
    for (const auto p : h.places) h.scheduler.drain(p, false);
    sched::resources enough; // what every demand fits on, for good
    enough.cpu = 1;
    enough.gpu = 1;
    h.scheduler.add_place(sched::place_id(1000), "last", enough).value();
    h.pump();
    auto joined = tasks.join();
    co_await joined;
    check_spread(&h);
    w.check(h.all.empty(), "a request is left");
    const auto totals = h.scheduler.stats();
    w.check(totals.queued == 0 && totals.granted == 0, "the scheduler still has a request");
    for (const auto& p : h.scheduler.places())
        w.check(p.used.empty(), "room is taken when all has ended");
    w.loop.trace(static_cast<std::uint64_t>(h.done));
    w.loop.trace(static_cast<std::uint64_t>(h.lost));
}

const sim::scenario registered("scheduler", &scenario);

} // namespace scheduler_scenario
