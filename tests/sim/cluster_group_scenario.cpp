// SPDX-License-Identifier: Apache-2.0
// cluster_group: ranks meet, exchange and leave through resets, cuts and crashes. A group ends
// exactly once; if it ends well every rank has ended well with the same blobs; if not, every rank
// learns of it.
#include "sim/scenario.hpp"

#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/spmd/group.hpp>

#include <string>
#include <vector>

namespace {

using namespace skein;
using namespace std::chrono_literals;

struct rank_record {
    bool ended = false;
    bool left = false; ///< all exchanges done and left in order
    std::optional<error> why;
    int told = 0; ///< how often the lost callback ran
};

byte_buffer blob_of(int rank, int round) {
    return byte_buffer(static_cast<std::size_t>(1 + (rank * 37 + round * 101) % 3000),
                       static_cast<std::byte>(rank * 16 + round));
}

spmd::group_options options_of(int n, net::token secret) {
    spmd::group_options o;
    o.world_size = n;
    o.generation = 3;
    o.secret = secret;
    o.join_deadline = 30s;
    return o;
}

task<void> rank_life(sim::world* w, int rank, int n, int rounds, int dies_after, net::address at,
                     net::token secret, rank_record* record) {
    co_await sleep_for(std::chrono::milliseconds(w->below(200)));
    spmd::member_info self;
    self.rank = rank;
    self.world_size = n;
    self.host = "r" + std::to_string(rank);
    std::unique_ptr<spmd::group_client> client;
    try {
        auto joined =
            spmd::group_client::join(w->network.host(self.host), at, self, options_of(n, secret),
                                     [record](int, const error&) { ++record->told; });
        client = co_await joined;
        w->check(client->generation() == 3, "another generation than the server's");
        w->check(client->members().size() == static_cast<std::size_t>(n), "members are missing");
        for (int round = 0; round < rounds; ++round) {
            if (round == dies_after) w->network.crash(self.host, w->chance(0.5));
            co_await sleep_for(std::chrono::milliseconds(w->below(40)));
            auto exchanged =
                client->exchange("round " + std::to_string(round), blob_of(rank, round));
            const auto blobs = co_await exchanged;
            w->check(blobs.size() == static_cast<std::size_t>(n), "an exchange lost a rank");
            for (int r = 0; r < n; ++r) {
                w->check(blobs[static_cast<std::size_t>(r)] == blob_of(r, round),
                         "an exchange mixed blobs up");
            }
        }
    } catch (const error& e) {
        record->why = e;
    }
    if (client) {
        if (record->why) {
            auto failed = client->fail(*record->why);
            co_await failed;
        } else {
            auto left = client->leave();
            co_await left;
            record->left = true;
        }
    }
    record->ended = true;
}

task<void> serve(spmd::group_server* server, std::optional<spmd::group_outcome>* outcome) {
    auto run = server->run();
    *outcome = co_await run;
}

task<void> cluster_group(sim::world& w) {
    const int n = 1 + static_cast<int>(w.below(4));
    const int rounds = static_cast<int>(w.below(6));
    const auto secret = net::token::generate(w.loop.random());
    auto& boss = w.network.host("boss");
    spmd::group_server server(boss, net::address::sim("boss", 0), options_of(n, secret));
    const auto at = server.local();
    const int victim =
        w.chance(0.3) ? static_cast<int>(w.below(static_cast<std::uint64_t>(n))) : -1;
    const int fatal_round = static_cast<int>(w.below(6));

    std::optional<spmd::group_outcome> outcome;
    std::vector<rank_record> records(static_cast<std::size_t>(n));
    w.network.begin_link_faults();
    scope all;
    all.spawn(serve(&server, &outcome));
    for (int r = 0; r < n; ++r) {
        all.spawn(rank_life(&w, r, n, rounds, r == victim ? fatal_round : -1, at, secret,
                            &records[static_cast<std::size_t>(r)]));
    }
    co_await sleep_for(2s);
    w.network.stop_faults(); // from here on everything has to end
    auto joined = with_timeout(all.join(), 120s);
    co_await joined;

    w.check(outcome.has_value(), "the group did not end");
    for (const auto& r : records) {
        w.check(r.ended, "a rank did not end");
        w.check(r.told <= 1, "a rank was told twice");
        if (!outcome->failure)
            w.check(r.left && !r.why, "the group ended well, but a rank did not");
        if (r.why)
            w.check(outcome->failure.has_value(), "a rank failed in a group that ended well");
    }
}

const sim::scenario registered("cluster_group", &cluster_group);

} // namespace
