// SPDX-License-Identifier: Apache-2.0
#include "ranks.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <atomic>
#include <thread>
#include <vector>

using namespace skein;
using namespace skein::dist;
using skein::sim::local_world;
using namespace std::chrono_literals;

TEST_CASE("operations run in the order of submission, while the compute thread goes on") {
    const auto errors = ranks::group({"a", "a"}, "shm", [](ranks::rank_view& c) {
        std::vector<std::vector<double>> buffers;
        for (int i = 0; i < 40; ++i)
            buffers.emplace_back(static_cast<std::size_t>(1 + i * 501), c.rank + i);
        std::vector<ticket> ends;
        for (auto& b : buffers)
            ends.push_back(c.comm.all_reduce(view_of(std::span(b)), reduce_op::sum));
        ends.back().wait();
        for (std::size_t i = 0; i < ends.size(); ++i) {
            if (!ends[i].done())
                throw error(errc::internal, "a later operation overtook an earlier one");
            ends[i].wait();
            if (buffers[i].back() != 1.0 + 2.0 * static_cast<double>(i))
                throw error(errc::internal, "wrong sum");
        }
        const auto stats = c.comm.stats();
        if (stats.operations != 40 || stats.busy <= 0s)
            throw error(errc::internal, "wrong statistics");
    });
    INFO(ranks::first_error(errors));
    CHECK(ranks::first_error(errors).empty());
}

TEST_CASE(
    "a small collective does not wait in its call, and the last rank's is done when it returns") {
    ranks::event_gate gate;
    const auto errors = ranks::group({"a", "a", "a"}, "shm", [&](ranks::rank_view& c) {
        std::vector<float> v(1000, 1.0f);
        const auto io = view_of(std::span(v));
        c.barrier();
        if (c.rank == 2) gate.wait_for_others(2);
        auto end = c.comm.all_reduce(io, reduce_op::sum);
        if (c.rank == 2 && !end.done()) throw error(errc::internal, "it was handed over");
        if (c.rank != 2 && end.done()) throw error(errc::internal, "it ended without rank 2");
        gate.arrive();
        end.wait();
        if (v[7] != 3.0f) throw error(errc::internal, "wrong sum");
        if (c.comm.stats().operations != 2 || c.comm.stats().bytes != 4000)
            throw error(errc::internal, "wrong statistics");
    });
    INFO(ranks::first_error(errors));
    CHECK(ranks::first_error(errors).empty());
}

TEST_CASE("a small collective that nobody waits for ends: asked, drained, or by itself") {
    const int how = GENERATE(0, 1, 2);
    ranks::event_gate gate;
    const auto errors = ranks::group({"a", "a"}, "shm", [&](ranks::rank_view& c) {
        std::vector<float> v(1000, 1.0f);
        if (c.rank == 1) gate.wait_for_others(1);
        auto end = c.comm.all_reduce(view_of(std::span(v)), reduce_op::sum);
        gate.arrive();
        const auto until = steady_now() + 20s;
        const auto ended = [&] { return how == 0 ? end.done() : c.comm.stats().operations == 1; };
        if (how == 1) c.comm.drain();
        while (!ended() && steady_now() < until) std::this_thread::yield();
        if (!ended() || v[999] != 2.0f) throw error(errc::internal, "it has not ended");
        end.wait();
    });
    INFO(ranks::first_error(errors));
    CHECK(ranks::first_error(errors).empty());
}

TEST_CASE("a late rank is found though nobody waits") {
    ranks::event_gate gate;
    const auto errors = ranks::group({"a", "a"}, "shm", [&](ranks::rank_view& c) {
        std::vector<float> v(1000, 1.0f);
        const auto io = view_of(std::span(v));
        c.comm.set_deadline(50ms);
        c.comm.drain();
        if (c.rank == 0) {
            auto end = c.comm.all_reduce(io, reduce_op::sum);
            const auto until = steady_now() + 20s;
            while (c.comm.stats().operations < 2 && steady_now() < until) std::this_thread::yield();
            gate.arrive();
            end.wait();
        } else {
            gate.wait_for_others(1);
            c.comm.all_reduce(io, reduce_op::sum).wait();
        }
    });
    for (const auto& e : errors) {
        REQUIRE(e);
        CHECK(e->code() == errc::timeout);
    }
}

TEST_CASE("ranks may submit to two groups in different orders") {
    local_world world({"a", "a"});
    const auto errors = ranks::each(2, [&](int r) {
        comm_options other;
        other.name = "other";
        auto one = make_comm_thread(world.at(r));
        auto two = make_comm_thread(world.at(r), other);
        std::vector<float> a(100, 1.0f), b(100, 2.0f);
        for (int round = 0; round < 50; ++round) {
            auto* const first = r == 0 ? one.get() : two.get();
            auto* const second = r == 0 ? two.get() : one.get();
            auto begun = first->all_reduce(view_of(std::span(r == 0 ? a : b)), reduce_op::mean);
            second->all_reduce(view_of(std::span(r == 0 ? b : a)), reduce_op::mean).wait();
            begun.wait();
        }
        if (a[0] != 1.0f || b[99] != 2.0f) throw error(errc::internal, "wrong sum");
    });
    INFO(ranks::first_error(errors));
    CHECK(ranks::first_error(errors).empty());
}

TEST_CASE("an error of a collective that began in its call is the ticket's, now and later") {
    const auto errors = ranks::group({"a", "a"}, "shm", [](ranks::rank_view& c) {
        std::vector<float> v(100, 1.0f);
        const auto io = view_of(std::span(v));
        c.comm.all_reduce(io, reduce_op::sum).wait();
        c.comm.abort(error(errc::aborted, "enough"));
        auto end = c.comm.all_reduce(io, reduce_op::sum); // does not throw in the call
        if (!end.done()) throw error(errc::internal, "an abort was not seen");
        for (int i = 0; i < 2; ++i) {
            try {
                end.wait();
                throw error(errc::internal, "it ended well");
            } catch (const error& e) {
                if (e.code() != errc::aborted) throw;
            }
        }
        c.comm.drain();
    });
    INFO(ranks::first_error(errors));
    CHECK(ranks::first_error(errors).empty());
}

TEST_CASE("any work on the communicator can be submitted and its error is the ticket's") {
    const auto errors = ranks::group({"a", "a"}, "shm", [](ranks::rank_view& c) {
        std::vector<float> ones(100, 1.0f);
        const auto twice = [](communicator* on, std::span<float> v) -> task<void> {
            for (int i = 0; i < 2; ++i) {
                auto sum = on->all_reduce(view_of(v), reduce_op::sum);
                co_await std::move(sum);
            }
        };
        auto both = c.comm.submit(400, [&](communicator& on) { return twice(&on, ones); });
        both.wait();
        if (ones[7] != 4.0f) throw error(errc::internal, "wrong sum");
        auto wrong = c.comm.submit(0, [](communicator&) -> task<void> {
            throw error(errc::invalid_argument, "not today");
        });
        try {
            wrong.wait();
            throw error(errc::internal, "it ended well");
        } catch (const error& e) {
            if (e.code() != errc::invalid_argument) throw;
        }
    });
    INFO(ranks::first_error(errors));
    CHECK(ranks::first_error(errors).empty());
}

TEST_CASE("an empty ticket is done") {
    ticket t;
    CHECK(t.done());
    t.wait();
}

TEST_CASE("the deadline can be changed between operations") {
    const auto errors = ranks::group({"a", "a"}, "shm", [](ranks::rank_view& c) {
        c.barrier();
        c.comm.set_deadline(100ms);
        if (c.rank == 0)
            c.barrier(); // rank 1 does not come
        else
            c.comm.recv(view_of(std::span<float>()), 0).wait();
    });
    REQUIRE(errors[0]);
    CHECK(errors[0]->code() == errc::timeout);
    CHECK(errors[1]);
}

TEST_CASE("after an abort drain returns and no operation touches a buffer any more") {
    const auto kind = GENERATE(std::string("ring"), std::string("hierarchical"));
    const auto errors = ranks::group({"a", "b"}, kind, [](ranks::rank_view& c) {
        if (c.rank == 1) return; // leaves at once
        auto buffer = std::make_unique<std::vector<float>>(100000, 1.0f);
        std::vector<ticket> ends;
        for (int i = 0; i < 8; ++i)
            ends.push_back(c.comm.all_reduce(view_of(std::span(*buffer)), reduce_op::sum));
        c.comm.abort(error(errc::aborted, "no more"));
        c.comm.drain();
        buffer.reset();
        for (auto& t : ends) {
            if (!t.done()) throw error(errc::internal, "drain came back too early");
            try {
                t.wait();
                throw error(errc::internal, "an operation without a peer ended well");
            } catch (const error& e) {
                if (e.code() == errc::internal) throw;
            }
        }
    });
    INFO(ranks::first_error(errors));
    CHECK(ranks::first_error(errors).empty());
}

TEST_CASE("the destructor ends what was submitted before it leaves") {
    std::vector<float> values[2] = {std::vector<float>(50000, 1.0f),
                                    std::vector<float>(50000, 2.0f)};
    local_world world(2);
    const auto errors = ranks::each(2, [&](int r) {
        auto comm = make_comm_thread(world.at(r));
        auto end = comm->all_reduce(view_of(std::span(values[r])), reduce_op::sum);
        (void)end;
    });
    CHECK(ranks::first_error(errors).empty());
    CHECK(values[0].back() == 3.0f);
    CHECK(values[1].front() == 3.0f);
}
