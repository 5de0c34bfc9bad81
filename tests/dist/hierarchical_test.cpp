// SPDX-License-Identifier: Apache-2.0
// Failures that have to cross from one side to the other. The laws of collectives are in
// communicator_test.cpp.
#include "ranks.hpp"

#include <skein/dist/hierarchical.hpp>

#include <catch2/catch_test_macros.hpp>

#include <vector>

using namespace skein;
using namespace skein::dist;
using namespace std::chrono_literals;

TEST_CASE("a follower that is missing on one host is named on all hosts") {
    ranks::event_gate gate;
    comm_options options;
    options.limits.deadline = 300ms;
    const auto errors = ranks::group(
        {"a", "a", "b", "b", "c"}, "hierarchical",
        [&](ranks::rank_view& c) {
            std::vector<float> v(20000, 1.0f);
            c.all_reduce(view_of(std::span(v)), reduce_op::mean);
            if (c.rank == 1) {
                gate.wait_for_others(4);
                return;
            }
            try {
                c.broadcast(view_of(std::span(v)), 0);
                c.all_reduce(view_of(std::span(v)), reduce_op::mean);
            } catch (...) {
                gate.arrive();
                throw;
            }
            gate.arrive();
        },
        options);
    for (const int r : {0, 2, 3, 4}) {
        const auto& e = errors[static_cast<std::size_t>(r)];
        REQUIRE(e);
        INFO("rank " << r << ": " << e->what());
        CHECK(e->code() == errc::timeout);
        CHECK(std::string(e->what()).find("rank 1 failed in") != std::string::npos);
    }
}

TEST_CASE("an abort ends a message between hosts at once, and every later one") {
    const auto begin = std::chrono::steady_clock::now();
    ranks::event_gate gate;
    const auto errors =
        ranks::group({"a", "a", "b", "b"}, "hierarchical", [&](ranks::rank_view& c) {
            std::vector<float> v(10, 1.0f);
            c.barrier();
            const auto view = view_of(std::span(v));
            if (c.rank == 1) { // no leader; rank 3 sends nothing
                auto end = c.comm.recv(view, 3);
                c.comm.abort(error(errc::aborted, "enough"));
                for (int i = 0; i < 2; ++i) {
                    try {
                        end.wait();
                    } catch (const error& e) {
                        if (e.code() != errc::aborted) throw error(errc::internal, e.what());
                    }
                    end = c.comm.send(view, 3);
                }
                gate.arrive();
                end.wait();
            } else {
                gate.wait_for_others(1);
            }
        });
    REQUIRE(errors[1]);
    INFO(errors[1]->what());
    CHECK(errors[1]->code() == errc::aborted);
    CHECK(std::string(errors[1]->what()).find("enough") != std::string::npos);
    CHECK(std::chrono::steady_clock::now() - begin < 60s); // the default deadline is minutes
}
