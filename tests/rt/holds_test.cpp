// SPDX-License-Identifier: Apache-2.0
// The count of handles, alone: an owner, its workers, and messages that cross each other.
#include <catch2/catch_test_macros.hpp>

#include <skein/core/random.hpp>
#include <skein/rt/detail/holds.hpp>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace holds_test {

using namespace skein;
using namespace skein::rt;
using rt::detail::borrows;
using rt::detail::holds;
using rt::detail::late_holders;
using rt::detail::lent_handles;
using numbers = std::vector<std::uint64_t>;

actor_id actor(std::uint64_t n) { return actor_id({7, n}); }

TEST_CASE("a thing is held until every process has given all of its handles back", "[rt][holds]") {
    const peer_id a(1), b(2);
    holds<std::uint64_t> held;
    CHECK_FALSE(held.is_held(10));
    held.add(a, 10);
    held.add(a, 10);
    held.add(b, 10);
    CHECK(held.is_held_besides(a, 10));
    CHECK(held.give_back(b, 10, 1));
    CHECK_FALSE(held.is_held_by(b, 10));
    CHECK_FALSE(held.is_held_besides(a, 10));
    CHECK(held.is_held_besides(b, 10));
    CHECK(held.give_back(a, 10, 1));
    CHECK(held.is_held(10));
    CHECK(held.give_back(a, 10, 1));
    CHECK_FALSE(held.is_held(10));
    CHECK_FALSE(held.is_held_besides(b, 10));
    CHECK(held.count(a) == 0);
}

TEST_CASE("nobody gives back what it has not", "[rt][holds]") {
    const peer_id a(1), b(2);
    holds<std::uint64_t> held;
    held.add(a, 10);
    CHECK_FALSE(held.give_back(b, 10, 1));
    CHECK_FALSE(held.give_back(a, 11, 1));
    CHECK_FALSE(held.give_back(a, 10, 2));
    CHECK(held.is_held_by(a, 10)); // and nothing of it was taken
    CHECK(held.give_back(a, 10, 0));
    CHECK(held.is_held(10));
    held.forget(10); // it was ended by force
    held.forget(10);
    CHECK_FALSE(held.is_held(10));
    CHECK_FALSE(held.give_back(a, 10, 1));
    CHECK(held.count(a) == 0);
}

TEST_CASE("a lost process takes its handles along, and what nobody else holds is told in order",
          "[rt][holds]") {
    const peer_id a(1), b(2);
    holds<std::uint64_t> held;
    for (std::uint64_t n = 9; n > 0; --n) held.add(n == 5 ? b : a, n, n % 2 == 0);
    held.add(b, 3);
    held.add(a, 8); // a reply had it besides
    CHECK(held.count(a) == 8);
    CHECK(held.lose_but_lent(a) == numbers{1, 7, 9});
    CHECK(held.count(a) == 4);
    CHECK(held.is_held(8));
    CHECK(held.is_held_besides(a, 3));
    CHECK(held.lose(a) == numbers{2, 4, 6, 8});
    CHECK(held.lose(a).empty());
    CHECK(held.lose(b) == numbers{3, 5});
}

TEST_CASE("a holder gives back just what its owner knows of", "[rt][holds]") {
    borrows<std::uint64_t> here;
    here.borrow(5);
    CHECK(here.has_untold());
    CHECK(here.let_go(5) == 0); // never told, nothing to give back
    CHECK_FALSE(here.has_untold());

    for (const auto n : {9, 2, 4}) here.borrow(static_cast<std::uint64_t>(n));
    here.hold(4); // a reply has counted it meanwhile
    CHECK(here.tell() == numbers{2, 9});
    CHECK(here.tell().empty());
    here.hold(9);
    CHECK(here.is_counted(4));
    CHECK(here.let_go(4) == 1);
    CHECK_FALSE(here.is_counted(4));
    CHECK(here.let_go(2) == 1);
    CHECK(here.let_go(9) == 2);
    CHECK(here.let_go(9) == 0);

    CHECK(here.lend(6)); // of it the owner is told at once
    CHECK_FALSE(here.lend(6));
    CHECK_FALSE(here.has_untold());
    here.hold(6);
    CHECK(here.let_go(6) == 2);
    CHECK(here.lend(6)); // it comes anew
}

TEST_CASE("a lost process counts until the last of its actors is back", "[rt][holds]") {
    late_holders late;
    late.await(peer_id(1), {actor(1), actor(2)});
    late.await(peer_id(2), {actor(3)});
    CHECK(late.contains(peer_id(1)));
    CHECK(late.settle(actor(1)).empty());
    CHECK(late.settle(actor(9)).empty());
    CHECK(late.settle(actor(3)) == std::vector<peer_id>{peer_id(2)});
    CHECK_FALSE(late.contains(peer_id(2)));
    CHECK(late.settle(actor(2)) == std::vector<peer_id>{peer_id(1)});
    CHECK(late.settle(actor(2)).empty());
}

TEST_CASE("a result has each thing once, in its order", "[rt][holds]") {
    lent_handles<std::uint64_t, std::string> lent;
    CHECK(lent.empty());
    for (const auto n : {7, 3, 7}) lent.add(static_cast<std::uint64_t>(n));
    CHECK(lent.known() == numbers{7, 3});
    CHECK_FALSE(lent.empty());
    lent.clear();
    lent.add_foreign("elsewhere");
    CHECK(lent.known().empty());
    CHECK_FALSE(lent.empty());
    lent.clear();
    CHECK(lent.empty());
}

/// A worker beside its owner: two lanes of messages, each in order, as a link has them.
struct worker {
    struct message {
        bool is_release = false; ///< else one handle
        std::uint64_t thing = 0;
        std::uint32_t times = 0;
    };
    peer_id number;
    borrows<std::uint64_t> here;
    std::map<std::uint64_t, int> handles; ///< in this process
    std::deque<std::uint64_t> replies;    ///< on their way here, with a handle each
    std::deque<message> to_owner;

    void drop_one(std::uint64_t thing) {
        if (--handles[thing] > 0) return;
        handles.erase(thing);
        if (const auto times = here.let_go(thing); times > 0)
            to_owner.push_back({true, thing, times});
    }
};

TEST_CASE("a thing never ends while a handle exists or is on its way, and always afterwards",
          "[rt][holds]") {
    for (std::uint64_t seed = 1; seed <= 50; ++seed) {
        seeded_random draw(seed);
        holds<std::uint64_t> held;
        std::vector<worker> workers(3);
        for (std::size_t i = 0; i < workers.size(); ++i) workers[i].number = peer_id(i + 1);
        const auto deliver = [&](worker& w) {
            if (!w.to_owner.empty()) {
                const auto m = w.to_owner.front();
                w.to_owner.pop_front();
                if (m.is_release)
                    REQUIRE(held.give_back(w.number, m.thing, m.times));
                else
                    held.add(w.number, m.thing);
            } else if (!w.replies.empty()) {
                w.here.hold(w.replies.front());
                ++w.handles[w.replies.front()];
                w.replies.pop_front();
            }
        };
        for (int step = 0; step < 300; ++step) {
            auto& w = workers[draw.below(workers.size())];
            const std::uint64_t thing = 1 + draw.below(4);
            switch (draw.below(4)) {
            case 0: // the owner answers with a handle: it has one itself
                held.add(w.number, thing);
                w.replies.push_back(thing);
                break;
            case 1: // a call brings one, whose caller holds it until the answer
                if (!w.handles.contains(thing)) w.here.borrow(thing);
                ++w.handles[thing];
                if (draw.below(2) == 0) w.drop_one(thing);
                for (const auto told : w.here.tell()) w.to_owner.push_back({false, told, 0});
                break;
            case 2:
                if (w.handles.contains(thing)) w.drop_one(thing);
                break;
            default: deliver(w);
            }
            for (const auto& one : workers) {
                for (const auto& [n, count] : one.handles) {
                    const bool is_told =
                        std::any_of(one.to_owner.begin(), one.to_owner.end(),
                                    [&](const auto& m) { return !m.is_release && m.thing == n; });
                    REQUIRE((held.is_held_by(one.number, n) || is_told));
                }
                for (const auto n : one.replies) REQUIRE(held.is_held_by(one.number, n));
            }
        }
        for (auto& w : workers) {
            while (!w.replies.empty() || !w.to_owner.empty()) deliver(w);
            while (!w.handles.empty()) w.drop_one(w.handles.begin()->first);
            while (!w.to_owner.empty()) deliver(w);
        }
        for (std::uint64_t thing = 1; thing <= 4; ++thing) REQUIRE_FALSE(held.is_held(thing));
    }
}

} // namespace holds_test
