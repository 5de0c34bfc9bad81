// SPDX-License-Identifier: Apache-2.0
// label: cuda
// Buffers of modelled devices over NCCL's table and those of the host over shared memory, as one
// communicator: who carries what, and one end for both.
#include "ranks.hpp"

#include <skein/dist/call_record.hpp>
#include <skein/dist/nccl_model.hpp>
#include <skein/dist/paired_communicator.hpp>
#include <skein/net/loop_thread.hpp>
#include <skein/sim/device_model.hpp>

#include "support/device_buffers.hpp"
#include "support/error_of.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

using namespace skein;
using namespace skein::dist;
using namespace std::chrono_literals;
using skein::sim::local_world;

namespace paired_communicator_test {

void require(bool good, const std::string& what) {
    if (!good) throw error(errc::internal, what);
}

/// One rank, a process of its own as a thread, with a device of its own.
struct rank_pair {
    comm_thread& comm;
    int rank, size;
    cuda_runtime cuda;

    [[nodiscard]] test::device_vector<float> on_device(const std::vector<float>& from) const {
        cuda_check(cuda, cuda.set_device(rank), "a device current");
        return {cuda, nullptr, from};
    }
    void sum_there(float mine) const {
        auto io = on_device({mine, 1.0f});
        try {
            comm.all_reduce(io.view(), reduce_op::sum).wait();
        } catch (...) { // memory goes when the thread that has it knows that nothing works there
            (void)cuda.device_synchronize();
            throw;
        }
        require(io.read()[1] == static_cast<float>(size), "another sum on a device");
    }
    void sum_here() const {
        std::vector<double> io{1.0 + rank};
        comm.all_reduce(view_of(std::span(io)), reduce_op::sum).wait();
        require(io[0] == size * (size + 1) / 2.0, "another sum on the host");
    }
};

/// The model called nccl, with which each rank does what body says.
ranks::outcome each_rank(const sim::device_model& model, int n,
                         const std::function<void(rank_pair&)>& body, time_span deadline = 60s) {
    local_world world(n);
    return ranks::each(n, [&](int r) {
        const auto made = nccl_model([&](const comm_site& site) {
            nccl_place place;
            place.domain = std::make_shared<nccl_domain>(model.cuda(), model.nccl(), model.math());
            place.where.device = site.world.rank();
            return place;
        });
        comm_options options;
        options.model = "nccl";
        options.limits.deadline = deadline;
        auto worker = std::make_unique<net::loop_thread>("test-pair");
        comm_site site{.world = world.at(r), .options = options, .worker = *worker, .where = {}};
        site.where = placement::from(std::vector<std::string>(static_cast<std::size_t>(n), "a"), r);
        site.key = "pair";
        auto pair = made.make(site);
        comm_thread comm(std::move(worker), std::move(pair));
        rank_pair self{comm, r, n, model.cuda()};
        body(self);
    });
}

void all_well(const ranks::outcome& errors, const sim::device_model& model) {
    INFO(ranks::first_error(errors));
    CHECK(ranks::first_error(errors).empty());
    CHECK(model.complaints() == std::vector<std::string>{});
}

/// Both are at an end, with the same reason.
error require_ended(const rank_pair& c) {
    const error there = test::error_of([&] { c.sum_there(1.0f); });
    const error here = test::error_of([&] { c.sum_here(); });
    require(there.code() != errc::unknown, "NCCL goes on");
    require(here.code() != errc::unknown, "the host's communicator goes on");
    return here;
}

TEST_CASE("buffers of devices go over NCCL, and all else over the host's communicator beside it") {
    const int n = GENERATE(2, 3);
    const sim::device_model model({.devices = n});
    const auto errors = each_rank(model, n, [](rank_pair& c) {
        const auto own = device::cuda(static_cast<std::uint8_t>(c.rank));
        const auto next = device::cuda(static_cast<std::uint8_t>(c.rank + 1));
        require(reaches(c.comm, device::cpu()) && reaches(c.comm, own), "it does not reach both");
        require(!reaches(c.comm, next), "it reaches another's device");
        const auto count = std::to_string(c.size);
        require(c.comm.name() == "nccl x" + count + " and shm x" + count, c.comm.name());

        c.sum_there(1.0f);
        c.sum_here();
        std::vector<std::int64_t> from{c.rank}, all(static_cast<std::size_t>(c.size));
        c.comm.all_gather(view_of(std::span(from)), view_of(std::span(all))).wait();
        require(all.back() == c.size - 1, "another gather on the host");
        auto mine = c.on_device({static_cast<float>(c.rank)});
        auto gathered = c.on_device(std::vector<float>(static_cast<std::size_t>(c.size)));
        std::vector<std::size_t> each(static_cast<std::size_t>(c.size), 1);
        c.comm.all_gather_v(mine.view(), gathered.view(), each).wait();
        require(gathered.read().back() == static_cast<float>(c.size - 1), "another gather there");
        c.comm.reduce_scatter(gathered.view(), mine.view(), reduce_op::sum).wait();
        require(mine.read()[0] == static_cast<float>(c.size * c.rank), "another part");
        c.comm.reduce_scatter_v(gathered.view(), each, reduce_op::sum).wait();
        c.comm.broadcast(gathered.view(), 0).wait();
        c.comm.broadcast(view_of(std::span(all)), 0).wait();
        c.comm.barrier().wait();
        if (c.rank == 0) c.comm.send(mine.view(), 1).wait();
        if (c.rank == 1) c.comm.recv(mine.view(), 0).wait();
        if (c.rank == 0) c.comm.send(view_of(std::span(all)), 1).wait();
        if (c.rank == 1) c.comm.recv(view_of(std::span(all)), 0).wait();
        require(c.comm.allocate(64, memory_kind::own) != nullptr, "no memory of the group");
        // NCCL compares nothing; the other one each of its calls.
        require(calls_of(c.comm)->name() == "nccl x" + count, calls_of(c.comm)->name());
        require(calls_of(c.comm)->last().size() == 5, "a record of other calls");
        (void)c.cuda.device_synchronize(); // before the memory goes
    });
    all_well(errors, model);
}

TEST_CASE("buffers of a device and of the host in one call are refused by name, and it goes on") {
    const sim::device_model model({.devices = 2});
    const auto errors = each_rank(model, 2, [](rank_pair& c) {
        auto there = c.on_device({1.0f, 2.0f});
        std::vector<float> here{1.0f};
        const error why = test::error_of(
            [&] { c.comm.all_gather(view_of(std::span(here)), there.view()).wait(); });
        require(why.code() == errc::not_supported, why.what());
        require(std::string(why.what())
                        .find("a collective of buffers on cpu and cuda:" + std::to_string(c.rank) +
                              " over nccl x2 and shm x2") != std::string::npos,
                why.what());
        auto elsewhere = there.view();
        elsewhere.where = device::cuda(7);
        const error other = test::error_of([&] { c.comm.broadcast(elsewhere, 0).wait(); });
        require(other.code() == errc::not_supported, other.what());
        c.sum_there(1.0f);
        c.sum_here();
    });
    all_well(errors, model);
}

TEST_CASE("an asynchronous error over NCCL ends the host's communicator of all ranks, too") {
    const sim::device_model model({.devices = 2, .seed = GENERATE(range(1u, 5u))});
    ranks::event_gate working;
    const auto errors = each_rank(
        model, 2,
        [&](rank_pair& c) {
            c.sum_there(1.0f);
            c.sum_here();
            working.arrive(); // nobody is told of an error before its sums are over
            working.wait_for_others(2);
            if (c.rank == 0) model.fail(0, nccl_result::system_error);
            const error first = test::error_of([&] { c.sum_there(1.0f); });
            require(first.code() == errc::io || first.code() == errc::peer_lost ||
                        first.code() == errc::timeout || first.code() == errc::aborted,
                    first.what());
            if (c.rank == 0) require(first.code() == errc::io, first.what());
            (void)require_ended(c);
        },
        2s);
    all_well(errors, model);
}

TEST_CASE("an error of the host's communicator ends the one over NCCL, too") {
    const sim::device_model model({.devices = 2});
    const auto errors = each_rank(model, 2, [](rank_pair& c) {
        std::vector<double> io(static_cast<std::size_t>(1 + c.rank));
        const error first = test::error_of(
            [&] { c.comm.all_reduce(view_of(std::span(io)), reduce_op::sum).wait(); });
        require(first.code() == errc::mismatch, first.what());
        const error then = test::error_of([&] { c.sum_there(1.0f); });
        require(then.code() == errc::mismatch, then.what());
    });
    all_well(errors, model);
}

TEST_CASE("a rank that leaves in a collective of devices is an error by the deadline") {
    const sim::device_model model({.devices = 3, .seed = GENERATE(range(1u, 4u))});
    const auto begin = std::chrono::steady_clock::now();
    const auto errors = each_rank(
        model, 3,
        [](rank_pair& c) {
            c.comm.barrier().wait();
            if (c.rank == 1) return;
            const error first = test::error_of([&] { c.sum_there(1.0f); });
            require(first.code() == errc::timeout || first.code() == errc::peer_lost ||
                        first.code() == errc::aborted,
                    first.what());
            (void)require_ended(c);
        },
        1s);
    all_well(errors, model);
    CHECK(std::chrono::steady_clock::now() - begin < 30s);
}

TEST_CASE("who is told that a rank is lost ends both, also what runs on the device") {
    const sim::device_model model({.devices = 2});
    ranks::event_gate working;
    const auto errors = each_rank(model, 2, [&](rank_pair& c) {
        c.sum_there(1.0f);
        working.arrive();
        working.wait_for_others(2);
        if (c.rank == 1) { // its process is no more
            c.comm.abort(error(errc::aborted, "gone"));
            return;
        }
        std::thread other([&] { c.comm.abort(error(errc::peer_lost, "rank 1 is lost")); });
        const error why = test::error_of([&] { c.sum_there(1.0f); });
        other.join();
        require(why.code() == errc::peer_lost || why.code() == errc::aborted, why.what());
        (void)require_ended(c);
    });
    all_well(errors, model);
}

TEST_CASE("unlike calls on devices that hang are named when the deadline has passed") {
    const sim::device_model model({.devices = 2, .seed = GENERATE(range(1u, 4u))});
    const auto errors = each_rank(
        model, 2,
        [](rank_pair& c) {
            auto io = c.on_device({1.0f, 2.0f});
            const collective_tag tag{.unit = 3, .phase = tag_phase::reduce, .step = 12};
            if (c.rank == 0) c.comm.all_reduce(io.view(), reduce_op::sum, tag).wait();
            if (c.rank == 1) c.comm.broadcast(io.view(), 0).wait();
        },
        1s);
    for (const auto& e : errors) {
        REQUIRE(e);
        INFO(e->what());
        CHECK(e->code() == errc::mismatch);
        CHECK(std::string(e->what()).find("over nccl x2: ranks do not agree: rank 0 is in "
                                          "all_reduce") != std::string::npos);
    }
}

} // namespace paired_communicator_test
