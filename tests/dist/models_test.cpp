// SPDX-License-Identifier: Apache-2.0
#include "ranks.hpp"

#include <skein/dist/models.hpp>
#include <skein/dist/stub.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <string>
#include <vector>

using namespace skein;
using namespace skein::dist;

namespace {

/// Each rank on its own: a model that a program may bring along.
comm_model everyone_alone() {
    return {"everyone-alone",
            [](const comm_site& site) {
                if (site.ranks() > 3) return comm_fit{0, "it is shy of more than three ranks"};
                return comm_fit{-1, ""};
            },
            [](const comm_site&) -> std::unique_ptr<communicator> {
                return std::make_unique<stub_communicator>();
            }};
}

void add_once() {
    const auto names = comm_model_names();
    if (std::find(names.begin(), names.end(), "everyone-alone") == names.end())
        add_comm_model(everyone_alone());
}

} // namespace

TEST_CASE("models are known by name and a wrong name shows the right ones") {
    CHECK(checked_comm_model("ring").value() == "ring");
    CHECK(checked_comm_model("automatic").value() == "automatic");
    const auto wrong = checked_comm_model("rings");
    REQUIRE(!wrong);
    CHECK(wrong.error().code() == errc::invalid_argument);
    CHECK(wrong.error().hint().find("automatic, shm, ring, hierarchical") != std::string::npos);
}

TEST_CASE("a program's own model is found by name and says itself where it does not fit") {
    add_once();
    CHECK(checked_comm_model("everyone-alone").value() == "everyone-alone");
    const auto two = ranks::group({"a", "b"}, "everyone-alone", [](ranks::rank_view& c) {
        if (c.comm.name() != "single") throw error(errc::internal, c.comm.name());
    });
    CHECK(ranks::first_error(two).empty());
    const auto four =
        ranks::group({"a", "b", "c", "d"}, "everyone-alone", [](ranks::rank_view&) {});
    for (const auto& e : four) {
        REQUIRE(e);
        CHECK(e->code() == errc::not_supported);
        CHECK(e->cause() == "it is shy of more than three ranks");
    }
}

TEST_CASE("automatic prefers a higher score and a name is taken once") {
    add_once();
    const auto errors = ranks::group({"a", "b"}, "automatic", [](ranks::rank_view& c) {
        if (c.comm.name() != "ring x2") throw error(errc::internal, c.comm.name());
    });
    INFO(ranks::first_error(errors));
    CHECK(ranks::first_error(errors).empty());
    CHECK_THROWS_AS(add_comm_model(everyone_alone()), error);
    CHECK_THROWS_AS(add_comm_model({"automatic", {}, {}}), error);
}

TEST_CASE("an unknown model is refused on every rank, with the names of the known ones") {
    const auto errors = ranks::group({"a", "a"}, "unheard-of", [](ranks::rank_view&) {});
    for (const auto& e : errors) {
        REQUIRE(e);
        CHECK(e->code() == errc::invalid_argument);
        CHECK(e->hint().find("hierarchical") != std::string::npos);
    }
}
