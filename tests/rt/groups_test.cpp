// SPDX-License-Identifier: Apache-2.0
// The table of placement groups, alone: names, numbers of workers, and who keeps a group.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <skein/rt/detail/group_message.hpp>
#include <skein/rt/detail/groups.hpp>
#include <skein/sched/demands.hpp>

#include <cstdint>
#include <string>
#include <utility>

namespace groups_test {

using namespace skein;
using namespace skein::rt;
using Catch::Matchers::ContainsSubstring;
using rt::detail::first_of_worker;
using rt::detail::group_state;
using rt::detail::groups;

/// As a program makes one; without an owner that would hear of its last use.
groups::state_ptr make(groups& known, std::string name = {}) {
    groups::state_ptr group(new group_state);
    group->number = known.new_number();
    group->name = std::move(name);
    known.enter(*group);
    known.name(*group);
    return group;
}

TEST_CASE("a group is found by its number and its name, which others may have afterwards",
          "[rt][groups]") {
    groups known;
    const auto first = make(known, "ingest");
    const auto nameless = make(known);
    CHECK(known.size() == 2);
    CHECK(known.state_of(first->number).get() == first.get());
    CHECK(known.named("ingest").get() == first.get());
    CHECK_FALSE(known.named("egress"));
    CHECK_FALSE(known.named(""));
    CHECK_FALSE(known.state_of(99));
    CHECK(known.find(99) == nullptr);
    CHECK(known.held().size() == 2);

    known.forget_name(*first);
    CHECK_FALSE(known.named("ingest"));
    const auto second = make(known, "ingest");
    known.forget_name(*first); // it has it no more
    CHECK(known.named("ingest").get() == second.get());

    known.find(nameless->number)->state = nullptr; // nobody holds it
    CHECK_FALSE(known.state_of(nameless->number));
    CHECK(known.find(nameless->number) != nullptr);
    known.erase(nameless->number);
    CHECK(known.size() == 2);
}

TEST_CASE("a name in a location becomes a number, or an error says which names there are",
          "[rt][groups]") {
    groups known;
    const auto group = make(known, "ingest");
    auto on = group_named("ingest", 2).with_children();
    CHECK_FALSE(known.resolve(on));
    CHECK(on.is_group());
    CHECK(on.group() == group->number);
    CHECK(on.bundle() == 2);
    CHECK(on.has_children());
    auto nowhere = group_named("ingress");
    const auto why = known.resolve(nowhere);
    REQUIRE(why);
    CHECK_THAT(why->what(), ContainsSubstring("ingest"));
    location anywhere;
    CHECK_FALSE(known.resolve(anywhere));
}

TEST_CASE("the place of a worker's call has a name, or the worker's own number", "[rt][groups]") {
    const peer_id a(1), b(2);
    groups known;
    const auto group = make(known, "web");
    const auto read = [&](peer_id worker, std::string label) {
        auto on = sched::place::from_text(label);
        const auto why = known.resolve(worker, on);
        return why ? std::string("error") : on.to_text();
    };
    CHECK(read(a, "@=2/web") == sched::group_label(group->number, 2));
    CHECK(read(a, "@=/web") == sched::group_label(group->number, -1));
    CHECK(read(a, "@=+/web") == sched::group_label(group->number, -1) + "+");
    CHECK(read(a, "@=x/web") == "error");
    CHECK(read(a, "@=2web") == "error");
    CHECK(read(a, "@=/other") == "error");
    CHECK(read(a, "gpu") == "gpu");

    const auto own = first_of_worker + 5;
    CHECK(known.number_of(a, own) == own);
    known.enter_alias(a, own, group->number);
    CHECK(known.number_of(a, own) == group->number);
    CHECK(known.number_of(b, own) == own); // each worker counts by itself
    CHECK(known.has_alias(a, own));
    CHECK(known.count_aliases(a) == 1);
    CHECK(read(a, sched::group_label(own, 1) + "+") == sched::group_label(group->number, 1) + "+");
    CHECK(read(b, sched::group_label(own, 1)) == sched::group_label(own, 1));
    known.forget_alias(a, own);
    known.forget_alias(b, own);
    CHECK_FALSE(known.has_alias(a, own));
    CHECK(known.count_aliases(a) == 0);
}

TEST_CASE("a group is kept for workers until the last of them has given it back", "[rt][groups]") {
    const peer_id a(1), b(2);
    groups known;
    const auto group = make(known);
    const auto number = group->number;
    CHECK_FALSE(known.for_workers(number));
    known.hold(a, number);
    known.hold(b, number);
    known.hold(b, number);
    CHECK(known.count_held(b) == 1);
    CHECK_FALSE(known.give_back(a, number, 2));
    CHECK(known.give_back(a, number, 1));
    CHECK_FALSE(known.is_held_by(a, number));
    CHECK(known.for_workers(number).get() == group.get());
    CHECK(known.give_back(b, number, 2));
    CHECK_FALSE(known.for_workers(number));

    known.hold(a, 77); // of a group that had ended: it is counted all the same
    CHECK(known.is_held_by(a, 77));
    CHECK_FALSE(known.for_workers(77));
    CHECK(known.give_back(a, 77, 1));
}

TEST_CASE("a lost worker keeps what it got in calls, while actors of it are made again",
          "[rt][groups]") {
    const peer_id a(1);
    groups known;
    const auto made = make(known), lent = make(known);
    known.hold(a, made->number);
    known.hold(a, lent->number, true);
    known.enter_alias(a, first_of_worker, made->number);
    known.lose_lent(a); // too early
    CHECK(known.count_held(a) == 2);
    known.lose(a, true);
    CHECK_FALSE(known.for_workers(made->number));
    CHECK(known.for_workers(lent->number));
    CHECK(known.count_aliases(a) == 0);
    known.lose_lent(a);
    CHECK_FALSE(known.for_workers(lent->number));
}

TEST_CASE("a question of a worker is found, and taken back with all others of it", "[rt][groups]") {
    const peer_id a(1), b(2);
    groups known;
    const auto first = make(known), second = make(known);
    const auto ask = [](group_state& group, peer_id worker, std::uint64_t slot) {
        group.askers.push_back({worker, slot_id(slot), call_id(), false});
    };
    ask(*first, a, 1);
    ask(*second, a, 2);
    ask(*second, b, 2);
    ask(*second, a, 3);
    CHECK(known.asked_by(a, slot_id(1)).get() == first.get());
    CHECK(known.asked_by(b, slot_id(2)).get() == second.get());
    CHECK_FALSE(known.asked_by(b, slot_id(1)));
    CHECK(second->take_askers(a, slot_id(2)).size() == 1);
    CHECK(second->take_askers(a, {}).size() == 1);
    CHECK(second->askers.size() == 1);
}

} // namespace groups_test
