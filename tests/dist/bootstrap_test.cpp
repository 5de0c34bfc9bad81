// SPDX-License-Identifier: Apache-2.0
#include "ranks.hpp"

#include <skein/dist/detail/place_card.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <array>
#include <chrono>
#include <filesystem>
#include <latch>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

using namespace skein;
using namespace skein::dist;
using skein::sim::local_world;

namespace {

std::string automatic_name(std::vector<std::string> hosts) {
    std::string name;
    std::mutex guard;
    const auto errors = ranks::group(std::move(hosts), "automatic", [&](ranks::rank_view& c) {
        std::vector<double> v(10, c.rank);
        c.all_reduce(view_of(std::span(v)), reduce_op::max);
        if (v[9] != c.size - 1) throw error(errc::internal, "wrong maximum");
        const std::lock_guard lock(guard);
        name = c.comm.name();
    });
    INFO(ranks::first_error(errors));
    CHECK(ranks::first_error(errors).empty());
    return name;
}

/// A world that loses a rank when its ranks are connected.
class lossy final : public spmd::rendezvous {
public:
    explicit lossy(spmd::rendezvous& real) : real_(real) {}
    int rank() const override { return real_.rank(); }
    int world_size() const override { return real_.world_size(); }
    int local_rank() const override { return real_.local_rank(); }
    int local_size() const override { return real_.local_size(); }
    int generation() const override { return real_.generation(); }
    std::string host() const override { return real_.host(); }
    net::token secret() const override { return real_.secret(); }
    std::vector<byte_buffer> exchange(std::string_view key, byte_span mine) override {
        auto all = real_.exchange(key, mine);
        if (key.ends_with("/connected")) throw error(errc::peer_lost, "rank 7 is lost");
        return all;
    }
    spmd::subscription on_lost(spmd::loss_listeners::listener lost) override {
        return real_.on_lost(std::move(lost));
    }

private:
    spmd::rendezvous& real_;
};

/// Counts a latch down at the end of its scope, however that comes.
class counts_down {
public:
    explicit counts_down(std::latch& gate) : gate_(gate) {}
    counts_down(const counts_down&) = delete;
    counts_down& operator=(const counts_down&) = delete;
    ~counts_down() { gate_.count_down(); }

private:
    std::latch& gate_;
};

} // namespace

TEST_CASE("the automatic choice follows who shares a host") {
    CHECK(automatic_name({"a"}) == "single");
    CHECK(automatic_name({"a", "a", "a"}) == "shm x3");
    CHECK(automatic_name({"a", "b"}) == "ring x2");
    CHECK(automatic_name({"a", "b", "a"}) == "hierarchical x3 on 2 hosts");
}

TEST_CASE("shared memory across hosts is refused on every rank") {
    const auto errors = ranks::group({"a", "b"}, "shm", [](ranks::rank_view&) {});
    for (const auto& e : errors) {
        REQUIRE(e);
        CHECK(e->code() == errc::not_supported);
    }
}

TEST_CASE("two communicators work in one world at the same time, each with its own order") {
    const std::string model = GENERATE(std::string("shm"), std::string("ring"));
    local_world world(ranks::hosts_for(model, 3));
    const auto errors = ranks::each(3, [&](int r) {
        auto gradients = make_comm_thread(world.at(r), {.model = model});
        auto control = make_comm_thread(world.at(r), {.model = "ring", .name = "control"});
        for (int round = 0; round < 20; ++round) {
            std::vector<float> large(20000, 1.0f);
            std::vector<double> small(3, r);
            std::vector<ticket> ends;
            const auto reduce = [&] {
                ends.push_back(gradients->all_reduce(view_of(std::span(large)), reduce_op::sum));
            };
            if (r != 1) reduce(); // the ranks do not agree which one comes first, nor need to
            ends.push_back(control->all_reduce(view_of(std::span(small)), reduce_op::max));
            if (r == 1) reduce();
            for (auto& end : ends) end.wait();
            if (large.back() != 3.0f || small.back() != 2.0)
                throw error(errc::internal, "wrong values");
        }
    });
    INFO(ranks::first_error(errors));
    CHECK(ranks::first_error(errors).empty());
}

TEST_CASE("ranks meet over IPv6 as over IPv4") {
    const std::string at = GENERATE(std::string("127.0.0.1"), std::string("::1"));
    try {
        net::real_loop loop;
        net::real_network(loop).listen(net::address::tcp(at, 0))->close();
    } catch (const error& e) {
        SKIP("this machine cannot listen at " << at << ": " << e.what());
    }
    comm_options options;
    options.advertise = at;
    const auto errors =
        ranks::group({"a", "b"}, "ring", [](ranks::rank_view& c) { c.barrier(); }, options);
    INFO(ranks::first_error(errors));
    CHECK(ranks::first_error(errors).empty());
}

TEST_CASE("a lost rank ends every communicator of its world, whichever else is gone") {
    local_world world({"a", "b", "c"});
    // Both are counted down however a rank ends: a failed check must not leave the others waiting.
    std::latch met(3), told(2);
    std::array<std::string, 3> failures;
    const auto errors = ranks::each(3, [&](int r) {
        std::optional<counts_down> leaves;
        if (r != 2) leaves.emplace(told);
        auto [first, last] = [&] {
            const counts_down arrives(met);
            auto a = make_comm_thread(world.at(r));
            auto brief = make_comm_thread(world.at(r), {.name = "brief"});
            auto b = make_comm_thread(world.at(r), {.name = "last"});
            for (auto* comm : {a.get(), b.get(), brief.get()}) comm->barrier().wait();
            brief.reset(); // takes its own subscription back, not those of the others
            return std::pair(std::move(a), std::move(b));
        }();
        met.wait(); // a barrier ends on one rank before it ends on another
        if (r == 2) {
            world.lose(2, error(errc::peer_lost, "killed by signal 9"));
            told.wait(); // it takes part in nothing more, and closes nothing before
            return;
        }
        for (auto* comm : {first.get(), last.get()}) {
            try {
                comm->barrier().wait();
                failures[static_cast<std::size_t>(r)] += " it went on;";
            } catch (const error& e) {
                const std::string text = e.what();
                if (e.code() != errc::peer_lost || text.find("rank 2 is lost") == text.npos)
                    failures[static_cast<std::size_t>(r)] += " " + text + ";";
            }
        }
    });
    CHECK(failures == std::array<std::string, 3>{});
    INFO(ranks::first_error(errors));
    CHECK(ranks::first_error(errors).empty());
}

TEST_CASE("a communicator can be made again and again, and leaves no thread or descriptor") {
    const auto count = [] {
        int n = 0;
        for (const auto& e : std::filesystem::directory_iterator("/proc/self/fd"))
            n += e.exists() || true;
        for (const auto& e : std::filesystem::directory_iterator("/proc/self/task"))
            n += e.exists() || true;
        return n;
    };
    const auto once = [] {
        for (const char* kind : {"shm", "ring", "hierarchical"}) {
            const auto errors = ranks::group(ranks::hosts_for(kind, 3), kind,
                                             [](ranks::rank_view& c) { c.barrier(); });
            CHECK(ranks::first_error(errors).empty());
        }
    };
    once();
    const int before = count();
    for (int i = 0; i < 5; ++i) once();
    CHECK(count() == before);
}

TEST_CASE("a rank that is lost while the others connect is not waited for") {
    local_world world({"a", "b"});
    const auto begin = std::chrono::steady_clock::now();
    const auto errors = ranks::each(2, [&](int r) {
        comm_options options;
        options.model = "ring";
        if (r == 0) {
            auto comm = make_comm_thread(world.at(0), options);
        } else { // goes through the first exchanges, listens nowhere and dies
            const std::string card = dist::detail::place_card::of(world.at(1)).encode();
            world.at(1).exchange("skein-comm-0-world/places", as_bytes(std::string_view(card)));
            world.at(1).exchange("skein-comm-0-world/addresses",
                                 as_bytes(std::string_view("tcp:127.0.0.1:1")));
            world.lose(1, error(errc::peer_lost, "killed by signal 9"));
        }
    });
    REQUIRE(errors[0]);
    INFO(errors[0]->what());
    CHECK(errors[0]->code() == errc::peer_lost);
    CHECK(std::string(errors[0]->what()).find("rank 1") != std::string::npos);
    CHECK(std::chrono::steady_clock::now() - begin <
          std::chrono::seconds(20)); // connecting may take 60
}

TEST_CASE("a rank that is lost when all have connected is an error of the others, not their end") {
    const auto kind = GENERATE(std::string("ring"), std::string("hierarchical"));
    local_world world({"a", "b", "b"});
    const auto errors = ranks::each(3, [&](int r) {
        comm_options options;
        options.model = kind;
        lossy mine(world.at(r));
        auto comm = make_comm_thread(mine, options);
    });
    for (const auto& e : errors) {
        REQUIRE(e);
        CHECK(e->code() == errc::peer_lost);
    }
}
