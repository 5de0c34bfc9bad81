// SPDX-License-Identifier: Apache-2.0
// dist_ring: the TCP ring's collectives through delays, torn writes, resets, cuts and crashes. What
// a rank gets without an error is right; no rank is more than one collective ahead of a rank that
// failed; every rank ends, within the deadline of the collective it is in.
#include "sim/scenario.hpp"

#include <skein/core/awaitable.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/dist/links.hpp>
#include <skein/dist/ring.hpp>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace {

using namespace skein;
using namespace skein::dist;
using namespace std::chrono_literals;

struct rank_record {
    bool ended = false;
    int done = 0; ///< collectives that ended well
    std::optional<error> why;
};

struct shared_plan {
    int ranks = 2, rounds = 0;
    int first_kind = 0; ///< of the collectives
    std::vector<std::size_t> counts;
    int victim = -1, fatal_round = 0;
    net::token secret;
    std::vector<net::address> addresses;
};

float value_of(int rank, int round, std::size_t i) {
    return static_cast<float>(
        (static_cast<std::size_t>(rank) * 31 + static_cast<std::size_t>(round) * 7 + i) % 97);
}

/// The exact sum: whole numbers, so that every order of adding in float32 is exact. Most have more
/// bits than a bfloat16: rounding at every hop would give others.
float sum_of(const shared_plan& plan, int round, std::size_t i) {
    float sum = 0;
    for (int r = 0; r < plan.ranks; ++r) sum += value_of(r, round, i);
    return sum;
}

template <class T>
T element(float x) {
    if constexpr (std::is_same_v<T, bf16_t>)
        return to_bf16(x);
    else if constexpr (std::is_same_v<T, f16_t>)
        return to_f16(x);
    else
        return x;
}

template <class T>
std::vector<T> brought(const shared_plan& plan, int rank, int round) {
    std::vector<T> mine(plan.counts[static_cast<std::size_t>(round)]);
    for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = element<T>(value_of(rank, round, i));
    return mine;
}

/// The first rank has nothing, the last one what is left over.
std::vector<std::size_t> uneven_counts(const shared_plan& plan, int round) {
    const auto ranks = static_cast<std::size_t>(plan.ranks);
    const std::size_t count = plan.counts[static_cast<std::size_t>(round)];
    std::vector<std::size_t> counts(ranks, count / ranks);
    counts.back() += count % ranks + counts.front();
    counts.front() = 0;
    return counts;
}

template <class T>
task<bool> sum_everywhere(ring_communicator* ring, const shared_plan* plan, int rank, int round) {
    auto mine = brought<T>(*plan, rank, round);
    auto work = ring->all_reduce(view_of(std::span(mine)), reduce_op::sum);
    co_await std::move(work);
    bool right = true;
    for (std::size_t i = 0; i < mine.size(); ++i)
        right = right && mine[i] == element<T>(sum_of(*plan, round, i));
    co_return right;
}

task<bool> most_everywhere(ring_communicator* ring, const shared_plan* plan, int rank, int round) {
    auto mine = brought<float>(*plan, rank, round);
    auto work = ring->all_reduce(view_of(std::span(mine)), reduce_op::max);
    co_await std::move(work);
    bool right = true;
    for (std::size_t i = 0; i < mine.size(); ++i) {
        float want = value_of(0, round, i);
        for (int r = 1; r < plan->ranks; ++r) want = std::max(want, value_of(r, round, i));
        right = right && mine[i] == want;
    }
    co_return right;
}

/// Parts of the sum, in place or in float32.
template <class T>
task<bool> sum_parts(ring_communicator* ring, const shared_plan* plan, int rank, int round,
                     bool into_f32) {
    auto mine = brought<T>(*plan, rank, round);
    const auto counts = uneven_counts(*plan, round);
    const auto own = counts[static_cast<std::size_t>(rank)];
    std::size_t first = 0;
    for (int r = 0; r < rank; ++r) first += counts[static_cast<std::size_t>(r)];
    std::vector<float> out(own);
    const auto io = view_of(std::span(mine));
    auto work = into_f32
                    ? ring->reduce_scatter_v(io, counts, view_of(std::span(out)), reduce_op::sum)
                    : ring->reduce_scatter_v(io, counts, reduce_op::sum);
    co_await std::move(work);
    bool right = true;
    for (std::size_t i = 0; i < own; ++i) {
        const float want = sum_of(*plan, round, first + i);
        right = right && (into_f32 ? out[i] == want : mine[first + i] == element<T>(want));
    }
    co_return right;
}

/// Equal parts, from an input that stays as it was.
template <class T>
task<bool> sum_equal_parts(ring_communicator* ring, const shared_plan* plan, int rank, int round) {
    auto mine = brought<T>(*plan, rank, round);
    const std::size_t part = mine.size() / static_cast<std::size_t>(plan->ranks);
    mine.resize(part * static_cast<std::size_t>(plan->ranks));
    const auto before = mine;
    std::vector<T> out(part);
    auto work =
        ring->reduce_scatter(view_of(std::span(mine)), view_of(std::span(out)), reduce_op::sum);
    co_await std::move(work);
    bool right = mine == before;
    for (std::size_t i = 0; i < part; ++i) {
        const std::size_t at = static_cast<std::size_t>(rank) * part + i;
        right = right && out[i] == element<T>(sum_of(*plan, round, at));
    }
    co_return right;
}

task<bool> gather_all(ring_communicator* ring, const shared_plan* plan, int rank, int round) {
    auto mine = brought<float>(*plan, rank, round);
    std::vector<float> all(mine.size() * static_cast<std::size_t>(plan->ranks));
    auto work = ring->all_gather(view_of(std::span(mine)), view_of(std::span(all)));
    co_await std::move(work);
    bool right = true;
    for (std::size_t i = 0; i < all.size(); ++i) {
        right =
            right && all[i] == value_of(static_cast<int>(i / mine.size()), round, i % mine.size());
    }
    co_return right;
}

task<bool> spread(ring_communicator* ring, const shared_plan* plan, int rank, int round) {
    auto mine = brought<float>(*plan, rank, round);
    const int root = round % plan->ranks;
    auto work = ring->broadcast(view_of(std::span(mine)), root);
    co_await std::move(work);
    co_return mine == brought<float>(*plan, root, round);
}

/// One collective of the round; whether it gave the right elements.
task<bool> one_round(ring_communicator* ring, const shared_plan* plan, int rank, int round) {
    switch ((plan->first_kind + round) % 12) {
    case 0: return sum_everywhere<float>(ring, plan, rank, round);
    case 1: return most_everywhere(ring, plan, rank, round);
    case 2: return gather_all(ring, plan, rank, round);
    case 3: return sum_parts<float>(ring, plan, rank, round, false);
    case 4: return spread(ring, plan, rank, round);
    case 5: return sum_everywhere<bf16_t>(ring, plan, rank, round);
    case 6: return sum_parts<bf16_t>(ring, plan, rank, round, true);
    case 7: return sum_parts<f16_t>(ring, plan, rank, round, false);
    case 8: return sum_equal_parts<bf16_t>(ring, plan, rank, round);
    case 9: return sum_everywhere<f16_t>(ring, plan, rank, round);
    case 10: return sum_parts<bf16_t>(ring, plan, rank, round, false);
    default: return sum_parts<f16_t>(ring, plan, rank, round, true);
    }
}

task<void> rank_life(sim::world* w, const shared_plan* plan, int rank, std::shared_ptr<links> net,
                     rank_record* record) {
    co_await sleep_for(std::chrono::milliseconds(w->below(100)));
    ring_options pieces;
    pieces.piece_bytes = 2048;
    pieces.small_bytes = 512;
    collective_options limits;
    limits.deadline = 5s;
    std::vector<int> group;
    for (int r = 0; r < plan->ranks; ++r) group.push_back(r);
    std::unique_ptr<ring_communicator> ring;
    try {
        net->start();
        auto connecting = ring_communicator::connect(net, group, rank, pieces, limits);
        ring = co_await std::move(connecting);
        for (int round = 0; round < plan->rounds; ++round) {
            if (rank == plan->victim && round == plan->fatal_round) {
                w->network.crash("r" + std::to_string(rank), w->chance(0.5));
            }
            co_await sleep_for(std::chrono::milliseconds(w->below(20)));
            const time_point began = w->loop.now();
            auto work = one_round(ring.get(), plan, rank, round);
            auto outcome = as_result(std::move(work));
            auto right = co_await std::move(outcome);
            w->check(w->loop.now() - began < 10s, "a collective outlived its deadline");
            if (!right) throw right.error();
            w->check(*right, "a collective gave wrong elements without an error");
            ++record->done;
        }
    } catch (const error& e) {
        if (e.code() == errc::internal || e.code() == errc::mismatch || e.code() == errc::malformed)
            throw;
        record->why = e;
    }
    if (ring) {
        auto closing = ring->close();
        co_await std::move(closing);
    }
    record->ended = true;
}

task<void> dist_ring(sim::world& w) {
    w.network.faults().flip = 0; // elements travel without a checksum, see docs/limitations.md
    shared_plan plan;
    plan.ranks = 2 + static_cast<int>(w.below(4));
    plan.rounds = 1 + static_cast<int>(w.below(8));
    plan.first_kind = static_cast<int>(w.below(12));
    for (int i = 0; i < plan.rounds; ++i)
        plan.counts.push_back(
            static_cast<std::size_t>(w.below(3) == 0 ? w.below(20000) : w.below(400)));
    plan.victim =
        w.chance(0.3) ? static_cast<int>(w.below(static_cast<std::uint64_t>(plan.ranks))) : -1;
    plan.fatal_round = static_cast<int>(w.below(8));
    plan.secret = net::token::generate(w.loop.random());

    std::vector<std::unique_ptr<net::listener>> listeners;
    for (int r = 0; r < plan.ranks; ++r) {
        const std::string name = "r" + std::to_string(r);
        listeners.push_back(w.network.host(name).listen(net::address::sim(name, 0)));
        plan.addresses.push_back(listeners.back()->local());
    }
    std::vector<rank_record> records(static_cast<std::size_t>(plan.ranks));
    scope all;
    for (int r = 0; r < plan.ranks; ++r) {
        auto& host = w.network.host("r" + std::to_string(r));
        auto net =
            std::make_shared<links>(std::shared_ptr<net::network>(std::shared_ptr<void>(), &host),
                                    std::move(listeners[static_cast<std::size_t>(r)]), r,
                                    plan.addresses, plan.secret, "test");
        all.spawn(rank_life(&w, &plan, r, std::move(net), &records[static_cast<std::size_t>(r)]));
    }
    auto joined = with_timeout(all.join(), 200s);
    co_await std::move(joined);

    bool any_failed = false;
    int least = plan.rounds, most = 0;
    for (const auto& r : records) {
        w.check(r.ended, "a rank did not end");
        w.check(r.why.has_value() || r.done == plan.rounds, "a rank ended early without an error");
        any_failed = any_failed || r.why.has_value();
        least = std::min(least, r.done);
        most = std::max(most, r.done);
    }
    // A broadcast's root may be ahead of the others, but the next collective needs everybody.
    w.check(most - least <= 2, "a rank went on without the others");
    if (!any_failed) w.check(least == plan.rounds, "all ended well, but not all rounds were run");
}

const sim::scenario registered("dist_ring", &dist_ring);

} // namespace
