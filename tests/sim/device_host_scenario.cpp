// SPDX-License-Identifier: Apache-2.0
// device_host: buffers on modelled devices that ranks share, through pinned memory and the TCP ring; with
// delays, resets and cuts of the network, ranks that crash, and devices that stand still. What a rank gets
// without an error is right; each ends within the deadline; no memory is used before its event or
// after its release.
#include "sim/scenario.hpp"

#include <skein/core/awaitable.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/dist/host_communicator.hpp>
#include <skein/dist/links.hpp>
#include <skein/dist/ring.hpp>
#include <skein/sim/device_model.hpp>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace {

using namespace skein;
using namespace skein::dist;
using namespace std::chrono_literals;

constexpr std::size_t most = 600; // elements of a buffer

struct host_plan {
    int ranks = 2, devices = 1;
    struct round {
        int kind = 0;
        std::size_t count = 1;
    };
    std::vector<round> rounds;
    int victim = -1; ///< -1: nobody
    bool pauses = false;
    std::size_t when = 0;
    net::token secret;
    std::vector<net::address> addresses;
};

float value_of(int rank, std::size_t round, std::size_t i) {
    return static_cast<float>((static_cast<std::size_t>(rank) * 7 + round * 5 + i * 3) % 13) - 6.0f;
}

/// One rank of the world, from its first allocation to the last release.
struct host_rank {
    host_rank(sim::world& world, const host_plan& p, const sim::device_model& m, int r)
        : w(world), plan(p), model(m), cuda(m.cuda()), rank(r), device(r % p.devices) {
        use();
        (void)cuda.stream_create(&work, cuda_stream_non_blocking);
        (void)cuda.allocate(&io, most * sizeof(float));
        (void)cuda.allocate(&all, most * sizeof(float) * 4);
    }
    host_rank(const host_rank&) = delete;
    host_rank& operator=(const host_rank&) = delete;

    void use() const { (void)cuda.set_device(device); }
    [[nodiscard]] buffer_view view(void* at, std::size_t count) const {
        return {at, count, dtype::f32, dist::device::cuda(static_cast<std::uint8_t>(device))};
    }
    void fill(std::size_t n, std::size_t count) const {
        use();
        auto* const to = static_cast<float*>(io);
        model.launch(work, "a forward", {{io, count * sizeof(float), true}}, [=, r = rank] {
            for (std::size_t i = 0; i < count; ++i) to[i] = value_of(r, n, i);
        });
    }
    /// A kernel behind the collective, by the stream alone.
    void expect(void* at, std::size_t first, std::size_t count,
                std::function<float(std::size_t)> want) {
        use();
        model.launch(work, "an update",
                     {{static_cast<float*>(at) + first, count * sizeof(float), true}},
                     [=, this, want = std::move(want)] {
                         for (std::size_t i = first; i < first + count; ++i)
                             wrong = wrong || static_cast<float*>(at)[i] != want(i);
                     });
    }
    [[nodiscard]] float sum_of(std::size_t n, std::size_t i) const {
        float sum = 0;
        for (int r = 0; r < plan.ranks; ++r) sum += value_of(r, n, i);
        return sum;
    }

    task<void> one_round(std::size_t n) {
        const auto count = plan.rounds[n].count;
        fill(n, count);
        const auto sums = [this, n](std::size_t i) { return sum_of(n, i); };
        if (plan.rounds[n].kind == 0) {
            auto sum = comm->all_reduce(view(io, count), reduce_op::sum);
            co_await std::move(sum);
            expect(io, 0, count, sums);
        } else if (plan.rounds[n].kind == 1) {
            const int root = static_cast<int>(n) % plan.ranks;
            auto spread = comm->broadcast(view(io, count), root);
            co_await std::move(spread);
            expect(io, 0, count, [=](std::size_t i) { return value_of(root, n, i); });
        } else if (plan.rounds[n].kind == 2) {
            auto gather = comm->all_gather(view(io, count),
                                           view(all, count * static_cast<std::size_t>(plan.ranks)));
            co_await std::move(gather);
            expect(all, 0, count * static_cast<std::size_t>(plan.ranks), [=](std::size_t i) {
                return value_of(static_cast<int>(i / count), n, i % count);
            });
        } else {
            const auto ranks = static_cast<std::size_t>(plan.ranks);
            std::vector<std::size_t> counts(ranks, count / ranks);
            counts.back() += count % ranks;
            auto parts = comm->reduce_scatter_v(view(io, count), counts, reduce_op::sum);
            co_await std::move(parts);
            const auto mine = static_cast<std::size_t>(rank);
            expect(io, mine * (count / ranks), counts[mine], sums);
        }
    }

    task<void> live(std::shared_ptr<links> net) {
        try {
            auto working = run(std::move(net));
            co_await std::move(working);
        } catch (const error& e) {
            if (e.code() == errc::internal || e.code() == errc::mismatch) throw;
            why = e;
        }
        if (comm) {
            auto closing = comm->close();
            co_await std::move(closing);
        }
        has_ended = true;
    }
    task<void> run(std::shared_ptr<links> net) {
        collective_options limits;
        limits.deadline = 5s;
        std::vector<int> group;
        for (int r = 0; r < plan.ranks; ++r) group.push_back(r);
        net->start();
        auto connecting = ring_communicator::connect(net, group, rank, {}, limits);
        auto ring = co_await std::move(connecting);
        comm = std::make_unique<host_communicator>(
            std::move(ring), [of = &model] { return of->cuda(); }, limits, work);
        for (std::size_t n = 0; n < plan.rounds.size(); ++n) {
            co_await sleep_for(std::chrono::milliseconds(w.below(20)));
            if (rank == plan.victim && n == plan.when) {
                if (plan.pauses)
                    model.pause(device);
                else
                    w.network.crash("r" + std::to_string(rank), w.chance(0.5));
            }
            const time_point began = w.loop.now();
            auto work_of = one_round(n);
            auto sure = as_result(std::move(work_of));
            const auto outcome = co_await std::move(sure);
            // The collective's deadline, and one more for copies that are in flight.
            w.check(w.loop.now() - began < 15s, "a collective outlived its deadlines");
            if (!outcome) throw outcome.error();
            ++done;
        }
    }
    /// When all have ended and all devices go on.
    void release() {
        use();
        w.check(cuda.stream_synchronize(work) == cuda_result::success, "a stream did not end");
        comm.reset();
        (void)cuda.release(io);
        (void)cuda.release(all);
        (void)cuda.stream_destroy(work);
    }

    sim::world& w;
    const host_plan& plan;
    const sim::device_model& model;
    const cuda_runtime cuda;
    const int rank, device;
    cuda_stream work = nullptr;
    void *io = nullptr, *all = nullptr;
    std::unique_ptr<host_communicator> comm;
    std::optional<error> why;
    std::size_t done = 0;
    bool wrong = false, has_ended = false;
};

host_plan drawn(sim::world& w) {
    host_plan plan;
    plan.ranks = 2 + static_cast<int>(w.below(3));
    plan.devices = 1 + static_cast<int>(w.below(2));
    for (auto n = 1 + w.below(6); n > 0; --n) {
        host_plan::round round;
        round.kind = static_cast<int>(w.below(4));
        round.count = static_cast<std::size_t>(1 + w.below(most - 1));
        plan.rounds.push_back(round);
    }
    if (w.chance(0.4))
        plan.victim = static_cast<int>(w.below(static_cast<std::uint64_t>(plan.ranks)));
    plan.pauses = w.chance(0.5);
    plan.when = static_cast<std::size_t>(w.below(plan.rounds.size()));
    plan.secret = net::token::generate(w.loop.random());
    return plan;
}

task<void> device_host(sim::world& w) {
    w.network.faults().flip = 0; // as in dist_ring
    auto plan = drawn(w);
    sim::device_model_options how;
    how.devices = plan.devices;
    how.seed = w.loop.random().next();
    how.is_one_thread = true;
    const sim::device_model model(how);
    std::vector<std::unique_ptr<net::listener>> listeners;
    for (int r = 0; r < plan.ranks; ++r) {
        const std::string name = "r" + std::to_string(r);
        listeners.push_back(w.network.host(name).listen(net::address::sim(name, 0)));
        plan.addresses.push_back(listeners.back()->local());
    }
    std::vector<std::unique_ptr<host_rank>> ranks;
    {
        scope all;
        for (int r = 0; r < plan.ranks; ++r) {
            auto& host = w.network.host("r" + std::to_string(r));
            auto net = std::make_shared<links>(
                std::shared_ptr<net::network>(std::shared_ptr<void>(), &host),
                std::move(listeners[static_cast<std::size_t>(r)]), r, plan.addresses, plan.secret,
                "test");
            ranks.push_back(std::make_unique<host_rank>(w, plan, model, r));
            all.spawn(ranks.back()->live(std::move(net)));
        }
        auto joined = with_timeout(all.join(), 200s);
        co_await std::move(joined);
    }
    for (int d = 0; d < plan.devices; ++d) model.resume(d);
    bool any_failed = false;
    for (const auto& r : ranks) any_failed = any_failed || r->why.has_value();
    for (const auto& r : ranks) {
        w.check(r->has_ended, "a rank did not end");
        r->release();
        w.check(r->why.has_value() || r->done == plan.rounds.size(),
                "a rank ended early without an error");
        w.check(!r->wrong || any_failed, "a collective gave wrong elements without an error");
    }
    while (model.run_one()) {}
    for (const auto& law : model.complaints()) w.check(false, law);
}

const sim::scenario registered("device_host", &device_host);

} // namespace
