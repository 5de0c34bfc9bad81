// SPDX-License-Identifier: Apache-2.0
// Places that take nothing for a while, and resources that nobody but the books' owner knows.
#include <skein/sched/scheduler.hpp>

#include <string>
#include <string_view>
#include <vector>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

using namespace skein;
using Catch::Matchers::ContainsSubstring;
using sched::constraint;
using sched::place_id;
using sched::scheduler;

namespace {

sched::resources of_text(std::string_view text) { return sched::parse_resources(text).value(); }

sched::request_id want(scheduler& s, std::string_view demand, const constraint& where = {},
                       bool fails = false) {
    sched::request r;
    r.job = job_id(1);
    r.demand = of_text(demand);
    r.where = where;
    r.fail_if_infeasible = fails;
    return s.submit(r).value();
}
void add(scheduler& s, std::uint64_t id, std::string_view total) {
    const auto name = "n" + std::to_string(id);
    s.add_place(place_id(id), name, of_text(total), {"node=" + name}).value();
}
std::vector<std::uint64_t> granted_at(scheduler& s) {
    std::vector<sched::grant> got;
    s.take_grants(got);
    std::vector<std::uint64_t> out;
    for (const auto& g : got) out.push_back(g.place.value());
    return out;
}
using list = std::vector<std::uint64_t>;

} // namespace

TEST_CASE("a place that rests takes nothing, could hold what it could before, and takes it then",
          "[rt][scheduler]") {
    scheduler s;
    add(s, 1, "cpu=4");
    add(s, 2, "cpu=1");
    CHECK(s.rest(place_id(1), "cannot start anything: full"));
    CHECK_FALSE(s.rest(place_id(9), "nobody"));
    const auto small = want(s, "cpu=1");
    CHECK(granted_at(s) == list{2});
    const auto large = want(s, "cpu=2", {}, true); // not refused: it could be held
    const auto there = want(s, "cpu=1", constraint::labelled("node=n1"), true);
    CHECK(granted_at(s).empty());
    std::vector<sched::notice> said;
    s.take_notices(said);
    CHECK(said.empty());
    CHECK_THAT(s.why(large), ContainsSubstring("n2 has most free, cpu=0") &&
                                 ContainsSubstring("n1 cannot start anything: full"));
    CHECK_THAT(s.why(there), ContainsSubstring("waits for cpu=1 on n1: n1 cannot start anything"));
    CHECK(s.places().at(0).resting);
    CHECK_FALSE(s.places().at(1).resting);
    CHECK(s.rest(place_id(1), ""));
    CHECK(granted_at(s) == list{1, 1});
    CHECK(s.release(small));
}

TEST_CASE("what is kept free on a place that rests is kept on another", "[rt][scheduler]") {
    scheduler s;
    add(s, 1, "cpu=2");
    const auto first = want(s, "cpu=1");
    CHECK(granted_at(s) == list{1});
    const auto large = want(s, "cpu=2");
    CHECK(granted_at(s).empty());
    CHECK(s.set_leaving(first));
    CHECK(s.keep_room(large));
    CHECK(s.places().at(0).reserved);
    CHECK(s.rest(place_id(1), "cannot start anything"));
    CHECK_FALSE(s.places().at(0).reserved);
    add(s, 2, "cpu=2");
    CHECK(granted_at(s) == list{2});
}

TEST_CASE("bundles without work leave a place that rests, if another could hold them",
          "[rt][scheduler]") {
    scheduler s;
    add(s, 1, "cpu=2");
    sched::group_request g;
    g.job = job_id(1);
    g.bundles = {of_text("cpu=1"), of_text("cpu=1")};
    g.tag = 7;
    const auto id = s.create_group(g).value();
    std::vector<sched::notice> said;
    CHECK(granted_at(s).empty());
    s.take_notices(said);
    REQUIRE(said.size() == 1);
    CHECK(s.rest(place_id(1), "cannot start anything"));
    s.move_bundles(place_id(1)); // there is no other
    CHECK(s.groups().at(0).placed);
    add(s, 2, "cpu=2");
    s.move_bundles(place_id(1));
    said.clear();
    CHECK(granted_at(s).empty());
    s.take_notices(said);
    REQUIRE(said.size() == 2);
    CHECK(said[0].what == sched::notice::kind::group_broken);
    CHECK_THAT(said[0].why.what(), ContainsSubstring("n1 takes nothing for now"));
    CHECK(said[1].what == sched::notice::kind::group_placed);
    CHECK(said[1].bundles == std::vector{place_id(2), place_id(2)});
    want(s, "cpu=1", constraint::in(id, 0));
    CHECK(granted_at(s).size() == 1);
}

TEST_CASE("a resource whose name begins with a dot is counted, and nobody reads or writes it",
          "[rt][resources]") {
    auto total = of_text("cpu=2,ssd=1");
    total.set(".cpus for entry processes", 1);
    CHECK(to_string(total) == "cpu=2,ssd=1");
    CHECK_FALSE(sched::parse_resources(".cpus=1"));
    scheduler s;
    s.add_place(place_id(1), "n1", total).value();
    sched::request r;
    r.job = job_id(1);
    r.demand = of_text("cpu=1");
    r.demand.set(".cpus for entry processes", 1);
    const auto first = s.submit(r).value();
    const auto second = s.submit(r).value();
    CHECK(granted_at(s) == list{1});
    CHECK(s.why(second) == "waits for cpu=1: n1 has most free, 0 cpus for entry processes");
    CHECK(s.wait_begin(first)); // its cpus are lent, but not to the next one of its kind
    CHECK(granted_at(s).empty());
    want(s, "cpu=2");
    CHECK(granted_at(s) == list{1});
    sched::resources many; // as many as one may name, and one more
    for (int i = 0; i < 32; ++i) many.set("r" + std::to_string(i), 1);
    many.set(".own", 1);
    CHECK(sched::check_total(many));
    many.set("more", 1);
    CHECK_FALSE(sched::check_total(many));
}
