// SPDX-License-Identifier: Apache-2.0
#include "ranks.hpp"

#include <skein/dist/split.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <memory>
#include <string>
#include <vector>

using namespace skein;
using namespace skein::dist;
using skein::sim::local_world;
using namespace std::chrono_literals;

namespace {

void must_hold(bool good, const std::string& what) {
    if (!good) throw error(errc::internal, what);
}

double sum_of(comm_thread& comm, double value) {
    std::vector<double> v(3000, value);
    comm.all_reduce(view_of(std::span(v)), reduce_op::sum).wait();
    must_hold(v.front() == v.back(), "elements differ");
    return v.front();
}

/// A world in a later generation.
class later : public spmd::rendezvous {
public:
    later(spmd::rendezvous& real, int generation) : real_(real), generation_(generation) {}
    int rank() const override { return real_.rank(); }
    int world_size() const override { return real_.world_size(); }
    int local_rank() const override { return real_.local_rank(); }
    int local_size() const override { return real_.local_size(); }
    int generation() const override { return generation_; }
    std::string host() const override { return real_.host(); }
    net::token secret() const override { return real_.secret(); }
    std::vector<byte_buffer> exchange(std::string_view key, byte_span mine) override {
        return real_.exchange(key, mine);
    }
    spmd::subscription on_lost(spmd::loss_listeners::listener lost) override {
        return real_.on_lost(std::move(lost));
    }

private:
    spmd::rendezvous& real_;
    int generation_;
};

/// A rank that is gone after its first round.
class leaves final : public later {
public:
    leaves(local_world& world, int rank) : later(world.at(rank), 0), world_(world) {}
    std::vector<byte_buffer> exchange(std::string_view key, byte_span mine) override {
        if (!key.ends_with("round-0")) {
            const error why(errc::peer_lost, "killed by signal 9");
            world_.lose(rank(), why);
            throw why;
        }
        return later::exchange(key, mine);
    }

private:
    local_world& world_;
};

} // namespace

TEST_CASE("groups inside and across hosts work at the same time") {
    local_world world({"a", "a", "b", "b"});
    const auto errors = ranks::each(4, [&](int r) {
        auto local = split(world.at(r), r / 2, {.name = "local"});
        auto cross = split(world.at(r), r % 2, {.name = "cross"});
        must_hold(local->name() == "shm x2" && cross->name() == "ring x2", local->name());
        must_hold(local->rank() == r % 2 && cross->rank() == r / 2, "rank");
        for (int round = 0; round < 10; ++round) {
            std::vector<double> v(50000, r), w(50000, r);
            auto one = local->all_reduce(view_of(std::span(v)), reduce_op::sum);
            auto two = cross->all_reduce(view_of(std::span(w)), reduce_op::sum);
            one.wait();
            two.wait();
            must_hold(v.back() == (r < 2 ? 1.0 : 5.0), "sum inside a host");
            must_hold(w.back() == (r % 2 == 0 ? 2.0 : 4.0), "sum across hosts");
        }
    });
    INFO(ranks::first_error(errors));
    CHECK(ranks::first_error(errors).empty());
}

TEST_CASE("groups may have any sizes, one rank and none included") {
    local_world world({"a", "b", "a", "b", "a", "a"});
    const std::vector<int> colors = {7, -1, 7, 3, 7, 0};
    const auto errors = ranks::each(6, [&](int r) {
        const auto comm = split(world.at(r), colors[static_cast<std::size_t>(r)], {.name = "odd"});
        if (r == 1) return must_hold(comm == nullptr, "no color, no communicator");
        const bool alone = r == 3 || r == 5;
        must_hold(comm->name() == (alone ? "single" : "shm x3"), comm->name());
        must_hold(sum_of(*comm, r) == (alone ? r : 6.0), "sum");
    });
    INFO(ranks::first_error(errors));
    CHECK(ranks::first_error(errors).empty());
}

TEST_CASE("every model works in a group, and calls the ranks as the world does") {
    const auto model =
        GENERATE(std::string("shm"), std::string("ring"), std::string("hierarchical"));
    std::vector<std::string> hosts = {"z", "a", "z", "a", "z", "b", "b"};
    if (model == "shm") hosts = {"z", "a", "z", "a", "z", "a", "a"};
    local_world world(hosts);
    const auto errors = ranks::each(7, [&](int r) {
        const bool member = r % 2 == 1 || r == 6; // 1 3 5 6
        const auto comm = split(world.at(r), member ? 0 : -1, {.model = model, .name = "part"});
        if (!member) return;
        must_hold(sum_of(*comm, r) == 15.0, "sum");
        std::vector<float> v(100, static_cast<float>(r));
        const int me = comm->rank();
        if (me == 0) comm->send(view_of(std::span(v)), 3).wait();
        if (me == 3) {
            comm->recv(view_of(std::span(v)), 0).wait();
            must_hold(v[0] == 1.0f, "message");
        }
        const collective_tag tag{.unit = r == 6 ? 2u : 1u, .phase = tag_phase::reduce};
        comm->all_reduce(view_of(std::span(v)), reduce_op::sum, tag).wait();
    });
    for (const int r : {1, 3, 5, 6}) {
        const auto& e = errors[static_cast<std::size_t>(r)];
        REQUIRE(e);
        INFO(e->what());
        CHECK(e->code() == errc::mismatch);
        const std::string text = e->what();
        // A hierarchy's parts of it: a reduction inside each host.
        const bool named = text.find("rank 6 in all_reduce") != std::string::npos ||
                           text.find("rank 6 in reduce") != std::string::npos;
        CHECK(named);
    }
    for (const int r : {0, 2, 4}) CHECK(!errors[static_cast<std::size_t>(r)]);
}

TEST_CASE("a rank that is lost during a split fails the others") {
    const int color = GENERATE(-1, 0, 1);
    local_world world({"a", "b", "a", "b"});
    const auto errors = ranks::each(4, [&](int r) {
        if (r == 3) {
            leaves mine(world, r);
            (void)split(mine, color, {.model = "ring", .name = "part"});
        }
        (void)split(world.at(r), r % 2, {.model = "ring", .name = "part"});
    });
    for (const int r : {0, 1, 2}) {
        const auto& e = errors[static_cast<std::size_t>(r)];
        REQUIRE(e);
        INFO(e->what());
        CHECK(e->code() == errc::peer_lost);
        CHECK(std::string(e->what()).find("rank 3") != std::string::npos);
    }
}

TEST_CASE("what one group cannot do is the error of the whole world") {
    local_world world({"a", "a", "a", "b", "a"});
    const auto errors = ranks::each(5, [&](int r) { // color 1 would span hosts
        (void)split(world.at(r), r < 2 ? 0 : r < 4 ? 1 : -1, {.model = "shm", .name = "part"});
    });
    for (const auto& e : errors) {
        REQUIRE(e);
        INFO(e->what());
        CHECK(e->code() == errc::not_supported);
        CHECK(std::string(e->what()).find("rank 2 failed in split") != std::string::npos);
    }
}

TEST_CASE("a rank of another group that is lost later ends this group too") {
    local_world world({"a", "a", "b", "b"});
    ranks::event_gate gate;
    const auto errors = ranks::each(4, [&](int r) {
        auto comm = split(world.at(r), r / 2, {.name = "part"});
        (void)sum_of(*comm, r);
        gate.arrive();
        gate.wait_for_others(4);
        if (r == 3) return world.lose(3, error(errc::peer_lost, "killed by signal 9"));
        for (;;) (void)sum_of(*comm, r);
    });
    for (const int r : {0, 1, 2}) {
        const auto& e = errors[static_cast<std::size_t>(r)];
        REQUIRE(e);
        INFO(e->what());
        CHECK(e->code() == errc::peer_lost);
        CHECK(std::string(e->what()).find("rank 3") != std::string::npos);
    }
}

TEST_CASE("a new generation splits the same way under the same name") {
    local_world world({"a", "a", "b", "b"});
    const auto errors = ranks::each(4, [&](int r) {
        for (int generation = 1; generation <= 3; ++generation) {
            later now(world.at(r), generation);
            auto local = split(now, r / 2, {.name = "local"});
            auto cross = split(now, r % 2, {.name = "cross"});
            must_hold(sum_of(*local, 1) == 2.0 && sum_of(*cross, 1) == 2.0, "sum");
        }
    });
    INFO(ranks::first_error(errors));
    CHECK(ranks::first_error(errors).empty());
}
