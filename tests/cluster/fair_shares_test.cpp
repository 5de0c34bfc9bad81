// SPDX-License-Identifier: Apache-2.0
#include "cluster/lease_support.hpp"

#include <skein/cluster/detail/fair_shares.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

namespace fair_shares_test {

using namespace lease_test;
using Catch::Matchers::ContainsSubstring;

struct shared_world : lease_test::world {
    parts::fair_shares shares{loop, leases};

    [[nodiscard]] std::size_t recalled() const {
        std::size_t out = 0;
        for (const auto& [driver, news] : head.told)
            out += std::holds_alternative<lease_recalled>(news) ? 1 : 0;
        return out;
    }
};

TEST_CASE("who has more than its share is asked for what others are short of",
          "[cluster][leases]") {
    shared_world w;
    w.node(n1, "cpu=4");
    for (std::uint64_t i = 1; i <= 4; ++i) w.want(app, i, "cpu=1");
    w.leases.pump();
    for (std::uint64_t i = 1; i <= 4; ++i) w.want(other, i, "cpu=1");
    w.leases.pump();
    w.shares.look();
    CHECK(w.recalled() == 0); // it was granted just now
    w.pass(3s);               // so long a driver keeps what it was granted
    w.shares.look();
    CHECK(w.recalled() == 2);
    w.shares.look();
    CHECK(w.recalled() == 2); // these are on their way
}

TEST_CASE("shares go by weight", "[cluster][leases]") {
    shared_world w;
    w.node(n1, "cpu=4");
    for (std::uint64_t i = 1; i <= 4; ++i) w.want(app, i, "cpu=1");
    w.leases.pump();
    w.leases.holder(app).weight = 3;
    for (std::uint64_t i = 1; i <= 4; ++i) w.want(other, i, "cpu=1");
    w.leases.pump();
    w.pass(3s); // so long a driver keeps what it was granted
    w.shares.look();
    CHECK(w.recalled() == 1);
}

TEST_CASE("a lease of its own kind makes its driver give back what is in the way",
          "[cluster][leases]") {
    shared_world w;
    w.node(n1, "cpu=2");
    w.want(app, 1, "cpu=1");
    w.want(app, 2, "cpu=1");
    w.leases.pump();
    w.pass(1s);
    w.want(app, 3, "cpu=2", "", true);
    w.leases.pump();
    w.shares.make_room(w.leases.holder(app), false);
    CHECK(w.recalled() == 2);
    CHECK_THAT(w.head.last<lease_recalled>().why, ContainsSubstring("room for cpu=2 on n1"));
}

TEST_CASE("so does a placement group", "[cluster][leases]") {
    shared_world w;
    w.node(n1, "cpu=2");
    w.want(app, 1, "cpu=1");
    w.want(app, 2, "cpu=1");
    w.leases.pump();
    w.leases.want_group(w.leases.holder(app), {7, 0, {"cpu=1"}, {}});
    w.leases.pump();
    w.shares.make_room(w.leases.holder(app), true);
    CHECK(w.recalled() == 1);
    CHECK_THAT(w.head.last<lease_recalled>().why, ContainsSubstring("room for placement group 7"));
}

} // namespace fair_shares_test
