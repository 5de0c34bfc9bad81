// SPDX-License-Identifier: Apache-2.0
// What a decision of the scheduler costs: with 10 and with 1,000 places, beside a plain queue, and
// with a million requests in it. All of it in one thread, in processor time.

#include "bench.hpp"

#include <skein/core/philox.hpp>
#include <skein/sched/scheduler.hpp>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include <malloc.h>

#include <fmt/format.h>

namespace {

using namespace skein;

sched::request asking(const char* demand, std::uint64_t job = 1) {
    sched::request r;
    r.job = job_id(job);
    r.demand = sched::parse_resources(demand).value();
    return r;
}
void add_places(sched::scheduler& s, std::uint64_t from, std::uint64_t count, const char* total) {
    for (std::uint64_t p = from; p < from + count; ++p)
        s.add_place(sched::place_id(p), fmt::format("worker-{}", p),
                    sched::parse_resources(total).value())
            .value();
}

/// A cluster that is full and has a queue: each decision follows the end of one running request,
/// anywhere.
class busy_cluster {
public:
    busy_cluster(std::uint64_t places, int queues, sched::placement policy, bool mixed,
                 bool in_turn)
        : scheduler_([&] {
              sched::scheduler_options o;
              o.policy = policy;
              return o;
          }()) {
        for (std::uint64_t p = 1; p <= places; ++p)
            add_places(scheduler_, p, 1,
                       mixed && p % 4 == 0 ? "cpu=8,gpu=4,memory=64GiB" : "cpu=8,memory=64GiB");
        for (int i = 0; i < queues; ++i) {
            const auto job = static_cast<std::uint64_t>(1 + i % 4);
            demands_.push_back(asking("cpu=1", job));
            if (mixed && i % 4 == 1) demands_.back() = asking("cpu=1,gpu=0.5", job);
            if (mixed && i % 4 == 2) demands_.back() = asking("cpu=2,memory=4GiB", job);
            if (mixed && i % 4 == 3) demands_.back() = asking("cpu=0.5", job);
            if (in_turn) demands_.back().where = sched::constraint::spread();
        }
        for (std::uint64_t i = 0; i < places * 12 + 100; ++i) submit();
        take();
    }
    void turn() {
        for (int i = 0; i < 4; ++i) { // what ends together in one turn of a loop
            const auto at = static_cast<std::size_t>(random_.below(running_.size()));
            scheduler_.release(running_[at]);
            running_[at] = running_.back();
            running_.pop_back();
        }
        take();
        while (next_ - granted_ < 100) submit(); // so many are queued
    }
    [[nodiscard]] std::uint64_t granted() const { return granted_; }

private:
    void submit() { (void)scheduler_.submit(demands_[next_++ % demands_.size()]).value(); }
    void take() {
        got_.clear();
        granted_ += scheduler_.take_grants(got_);
        for (const auto& g : got_) running_.push_back(g.id);
    }

    sched::scheduler scheduler_;
    std::vector<sched::request> demands_;
    std::vector<sched::request_id> running_;
    std::vector<sched::grant> got_;
    philox_stream random_{1};
    std::size_t next_ = 0;
    std::uint64_t granted_ = 0;
};

/// Nanoseconds per grant, with the submit before it and the release that made room.
double per_grant(busy_cluster& cluster, int turns) {
    const auto before = cluster.granted();
    const double s = bench::cpu_seconds([&] {
        for (int i = 0; i < turns; ++i) cluster.turn();
    });
    return s * 1e9 / static_cast<double>(cluster.granted() - before);
}

/// The least a queue of the same turns costs: push, pop, and an id to take away at random.
double plain_queue(std::uint64_t slots, int turns) {
    std::deque<std::uint64_t> queue;
    std::vector<std::uint64_t> running;
    philox_stream random(1);
    std::uint64_t next = 0;
    for (std::uint64_t i = 0; i < slots; ++i) running.push_back(next++);
    for (int i = 0; i < 100; ++i) queue.push_back(next++);
    const double s = bench::cpu_seconds([&] {
        for (int i = 0; i < turns; ++i) {
            for (int k = 0; k < 4; ++k) {
                const auto at = static_cast<std::size_t>(random.below(running.size()));
                running[at] = running.back();
                running.pop_back();
            }
            for (int k = 0; k < 4; ++k) {
                running.push_back(queue.front());
                queue.pop_front();
                queue.push_back(next++);
            }
            bench::keep(running.back());
        }
    });
    return s * 1e9 / (4.0 * turns);
}

std::size_t heap_bytes() {
    const auto info = ::mallinfo2();
    return info.uordblks + info.hblkhd;
}

bool flat(const char* name, int queues, sched::placement policy, bool mixed, double bar,
          bool in_turn = false) {
    constexpr int rounds = 15, turns = 5000;
    busy_cluster small(10, queues, policy, mixed, in_turn);
    busy_cluster large(1000, queues, policy, mixed, in_turn);
    const auto [few, many, plain] = bench::in_turns<3>(
        rounds, {[&] { return per_grant(small, turns); }, [&] { return per_grant(large, turns); },
                 [] { return plain_queue(8000, turns); }});
    const bool ok = bench::figure(fmt::format("scheduler.{}_1000_places", name), many.median, "ns")
                        .against("10 places", few.median)
                        .at_most(bar)
                        .print();
    bench::figure(fmt::format("scheduler.{}_rate", name), 1e9 / many.median, "grants/s")
        .against("a deque", 1e9 / plain.median)
        .print();
    return ok;
}

/// Bytes of each of a million queued requests, and what it costs to queue one and to grant one.
bool million() {
    constexpr std::size_t count = 1'000'000;
    sched::scheduler s;
    add_places(s, 1, 1, "cpu=1");
    const auto r = asking("cpu=1");
    const auto before = heap_bytes();
    const double submit = bench::cpu_ns_per(count, [&] {
        for (std::size_t i = 0; i < count; ++i) (void)s.submit(r).value();
    });
    const auto bytes = static_cast<double>(heap_bytes() - before) / static_cast<double>(count);
    const bool ok = bench::figure("scheduler.queued_request", bytes, "B").at_most(64).print();
    bench::figure("scheduler.submit", submit, "ns").print();
    std::vector<sched::grant> got;
    const double each = bench::cpu_ns_per(count, [&] {
        for (std::size_t i = 0; i < count; ++i) {
            got.clear();
            s.take_grants(got);
            s.release(got.front().id);
        }
    });
    bench::figure("scheduler.grant_release_of_a_million", each, "ns").print();
    const auto left = static_cast<double>(s.stats().bytes) / 1024;
    return bench::figure("scheduler.table_after_a_million", left, "KiB").at_most(256).print() && ok;
}

/// A group of eight bundles on a thousand places, made and removed.
void group() {
    sched::scheduler s;
    add_places(s, 1, 1000, "cpu=8");
    sched::group_request g;
    g.job = job_id(1);
    g.strategy = sched::group_strategy::strict_spread;
    g.bundles.assign(8, sched::parse_resources("cpu=4").value());
    std::vector<sched::grant> got;
    std::vector<sched::notice> said;
    const double each = bench::cpu_ns_per(200, [&] {
        for (int i = 0; i < 200; ++i) {
            const auto id = s.create_group(g).value();
            s.take_grants(got);
            said.clear();
            s.take_notices(said);
            s.remove_group(id);
        }
    });
    bench::figure("scheduler.group_of_8_on_1000_places", each / 1000, "us").print();
}

} // namespace

int main() {
    bool ok = million();
    ok &= flat("pack", 1, sched::placement::pack, false, 2.0);
    ok &= flat("spread", 1, sched::placement::spread, false, 2.0);
    ok &= flat("in_turn", 1, sched::placement::pack, false, 2.0, true);
    ok &= flat("mixed", 8, sched::placement::pack, true, 2.0);
    group();
    return ok ? 0 : 1;
}
