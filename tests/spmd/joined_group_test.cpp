// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of this process, each with its own control thread, on an abstract Unix socket.
#include <skein/core/unique_fd.hpp>
#include <skein/spmd/joined_group.hpp>
#include <skein/spmd/meeting.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/core.h>
#include <unistd.h>

using namespace skein;
using namespace skein::spmd;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

namespace {

/// An address of this test's own, which every rank of it finds in the environment.
struct own_address {
    own_address() {
        static std::atomic<int> number{0};
        ::setenv(spmd::group_variable,
                 fmt::format("unix-abstract:@skein-membership-{}-{}", ::getpid(), number++).c_str(),
                 1);
    }
    ~own_address() { ::unsetenv(spmd::group_variable); }
};

/// What each rank did: nothing, or its error.
std::vector<std::string> hold(int n, const std::function<void(spmd::joined_group&)>& life,
                              duration exchange_deadline = 20s) {
    const own_address address;
    const auto secret = net::token::generate();
    std::vector<std::string> errors(static_cast<std::size_t>(n));
    std::vector<std::thread> ranks;
    for (int r = 0; r < n; ++r) {
        ranks.emplace_back([&, r] {
            spmd::launch_environment where;
            where.source = "torch";
            where.rank = where.local_rank = r;
            where.world_size = where.local_size = n;
            where.attempt = 4;
            try {
                spmd::joined_group_options options;
                options.join_deadline = 20s;
                options.exchange_deadline = exchange_deadline;
                spmd::joined_group world(where, secret, options);
                life(world);
            } catch (const error& e) {
                errors[static_cast<std::size_t>(r)] = e.what();
            }
        });
    }
    for (auto& r : ranks) r.join();
    return errors;
}

} // namespace

TEST_CASE("ranks meet, exchange in rank order, and leave") {
    const auto errors = hold(3, [](spmd::joined_group& world) {
        const auto mine = std::string(static_cast<std::size_t>(world.rank()) + 1, 'x');
        const auto all = world.exchange("size", as_bytes(mine));
        for (std::size_t r = 0; r < all.size(); ++r) {
            if (all[r].size() != r + 1) throw error(errc::internal, "blobs out of order");
        }
        if (all.size() != 3 || world.generation() != 4 || world.members().size() != 3 ||
            world.host().empty())
            throw error(errc::internal, "the world is not what it should be");
        world.leave();
    });
    for (const auto& e : errors) CHECK(e == "");
}

TEST_CASE("a world of one needs nobody else") {
    CHECK(hold(1, [](spmd::joined_group& world) {
              (void)world.exchange("k", {});
              world.leave();
          })[0] == "");
}

TEST_CASE("the failure of one rank reaches the others' callback and their exchanges") {
    std::atomic<int> told{0};
    const auto errors = hold(2, [&](spmd::joined_group& world) {
        (void)world.exchange("both are there", {}); // who fails earlier fails the other's joining
        if (world.rank() == 1) {
            world.fail(error(errc::disk_full, "no space left"));
            return;
        }
        const auto watching = world.on_lost([&](int rank, const error& why) {
            if (rank == 1 && why.code() == errc::disk_full) ++told;
        });
        if (!world.wait_lost(20s)) throw error(errc::internal, "nobody told");
        (void)world.exchange("k", {});
    });
    CHECK(told == 1);
    CHECK_THAT(errors[0], ContainsSubstring("no space left"));
    CHECK(errors[1] == "");
}

TEST_CASE("a rank that goes without leaving is a lost one") {
    std::atomic<int> lost_rank{-2};
    const auto errors = hold(2, [&](spmd::joined_group& world) {
        (void)world.exchange("both are there", {});
        if (world.rank() == 1) return; // the destructor
        const auto watching = world.on_lost([&](int rank, const error&) { lost_rank = rank; });
        if (!world.wait_lost(20s)) throw error(errc::internal, "nobody told");
    });
    CHECK(lost_rank == 1);
    for (const auto& e : errors) CHECK(e == "");
}

TEST_CASE("a callback that is taken back does not run") {
    std::atomic<bool> taken_back{false}, too_late{false}, waited{false};
    hold(2, [&](spmd::joined_group& world) {
        (void)world.exchange("both are there", {}); // who fails earlier fails the other's joining
        if (world.rank() == 1) {
            world.fail(error(errc::io, "x"));
            return;
        }
        auto watching =
            world.on_lost([&](int, const error&) { // it may come before it is taken back
                if (taken_back) too_late = true;
            });
        watching.reset();
        taken_back = true;
        waited = world.wait_lost(20s);
    });
    CHECK(waited);
    CHECK_FALSE(too_late);
}

TEST_CASE("an exchange that others do not come to ends at its deadline") {
    const auto errors = hold(
        2,
        [](spmd::joined_group& world) {
            if (world.rank() == 0)
                (void)world.exchange("k", {});
            else
                (void)world.wait_lost(20s);
        },
        50ms);
    CHECK_THAT(errors[0], ContainsSubstring("rank 0 waited 0.05 s") && ContainsSubstring("'k'"));
}

TEST_CASE("a stop request ends the wait for the other ranks at once") {
    const own_address address;
    auto [asked, ask] = make_pipe();
    spmd::launch_environment where;
    where.source = "torch";
    where.world_size = where.local_size = 2;
    spmd::joined_group_options options;
    options.join_deadline = 1h; // only the request may end it
    options.stop_fd = asked.get();
    REQUIRE(::write(ask.get(), "x", 1) == 1);
    try {
        const spmd::joined_group world(where, net::token::generate(), options);
        FAIL("joined");
    } catch (const error& e) {
        CHECK(e.code() == errc::cancelled);
        CHECK_THAT(e.what(), ContainsSubstring("rank 0 was stopped while the ranks were meeting"));
    }
}
