// SPDX-License-Identifier: Apache-2.0
// Which worker a task or a new actor goes to, and when: rt/detail/dispatch.hpp, with its parts for
// second processes and for calls without a lease.
#include <tests/support/manual_loop.hpp>
#include <tests/support/placed_calls.hpp>

#include <skein/rt/detail/dispatch.hpp>

#include <optional>
#include <string>
#include <vector>

#include <catch2/catch_test_macros.hpp>

namespace dispatch_test {

using namespace skein;
using namespace skein::rt::detail;
using skein_test::asked_source;
using skein_test::call_ptr;
using skein_test::make_room;
using skein_test::make_task;

/// Hears what dispatch tells, and counts what it is to count.
struct hearer {
    dispatch parts;
    std::vector<worker_room*> sent_to; ///< the processes in which tasks run
    std::vector<call_ptr> sent;
    std::vector<std::string> refused;
    bool has_room = true;
    std::optional<error> end;
    skein_test::manual_loop loop;
    skein::loop::use here{loop};

    static call_id id_of(const call_base& call) { return call_id({1, call.number}); }
    void send(worker_room& to, call_ptr call) {
        if (call->kind == call_kind::create) {
            parts.begin_actor(to);
            sent_to.push_back(&to);
        } else {
            sent_to.push_back(&parts.begin_task(to, *call, id_of(*call)));
        }
        sent.push_back(std::move(call));
    }
    void refuse(call_base& call, const error& why) {
        call.state = phase::done;
        refused.emplace_back(why.text());
    }
    bool has_credit(const worker_room&) const { return has_room; }
    std::optional<error> end_of(sched::demand_id) const { return end; }

    void submit(call_ptr call) {
        parts.line_up(std::move(call));
        parts.pump_leases(*this);
    }
    void end_task(std::size_t i) {
        parts.end_task(*sent_to[i], *sent[i], id_of(*sent[i]));
        parts.pump(*this);
    }
};

TEST_CASE("tasks go as far as there are cores, and then as others end", "[rt][dispatch]") {
    hearer all;
    const auto room = make_room(1, 2);
    all.parts.add(*room, "worker-1");
    for (int i = 0; i < 3; ++i) all.submit(make_task());
    CHECK(all.sent.size() == 2);
    CHECK(all.parts.waits());
    all.end_task(0);
    CHECK(all.sent.size() == 3);
    CHECK_FALSE(all.parts.waits());
    CHECK(room->busy == 2);
}

TEST_CASE("a task goes straight where its line has a lease without a task", "[rt][dispatch]") {
    hearer all;
    const auto room = make_room(1, 1);
    all.parts.add(*room, "worker-1");
    const auto next = make_task();
    CHECK(all.parts.straight_to(*next) == nullptr); // there may be a lease: it has to be asked for
    all.submit(make_task());
    all.end_task(0);
    CHECK(all.parts.straight_to(*next) == room.get());
    next->alone = 1;
    CHECK(all.parts.straight_to(*next) == nullptr);
}

TEST_CASE("a demand that no worker can serve fails without a source of workers", "[rt][dispatch]") {
    hearer all;
    const auto room = make_room(1, 1);
    all.parts.add(*room, "worker-1");
    all.submit(make_task(all.parts.demands().number(4).value(), 4));
    REQUIRE(all.refused.size() == 1);
    CHECK(all.refused[0] == "plain asks for cpu=4, more than any worker has");
}

TEST_CASE("workers are asked for a demand that others cannot serve", "[rt][dispatch]") {
    hearer all;
    asked_source source;
    all.parts.ask(&source);
    const auto demand = all.parts.demands().number(4).value();
    const auto room = make_room(1, 1), own = make_room(2, 4);
    all.parts.add(*room, "worker-1");
    all.submit(make_task(demand, 4));
    all.submit(make_task(demand, 4));
    CHECK(all.sent.empty());
    CHECK(source.wanted == std::vector<std::size_t>{1, 2});
    own->demand = demand;
    all.parts.add(*own, "worker-2");
    all.parts.pump(all);
    REQUIRE(all.sent_to.size() == 1);
    CHECK(all.sent_to[0] == own.get());
    CHECK(source.wanted.size() == 2); // what waits and what runs there, together
    all.end_task(0);
    CHECK(all.sent.size() == 2);
    CHECK(source.wanted == std::vector<std::size_t>{1, 2, 1});
    all.submit(make_task(demand, 4));
    all.parts.refuse_demand(demand, error(errc::exhausted, "no such worker").with_hint("buy one"),
                            all);
    REQUIRE(all.refused.size() == 1);
    CHECK(all.refused[0] == "plain did not run: no such worker");
    all.end = error(errc::closed, "the group was removed");
    all.submit(make_task(demand, 4));
    REQUIRE(all.refused.size() == 2);
    CHECK(all.refused[1] == "plain did not run: the group was removed");
}

TEST_CASE("a suspect waits for a worker with nothing to do", "[rt][dispatch]") {
    hearer all;
    const auto room = make_room(1, 2);
    all.parts.add(*room, "worker-1");
    all.submit(make_task());
    const auto suspect = make_task();
    suspect->alone = call_base::most_passes;
    all.parts.line_up_again({}, suspect);
    all.parts.pump(all);
    CHECK(all.sent.size() == 1);
    all.end_task(0);
    REQUIRE(all.sent.size() == 2);
    CHECK(all.sent[1] == suspect);
    CHECK(room->alone == suspect.get());
    all.submit(make_task()); // nothing is sent behind it
    CHECK(all.sent.size() == 2);
    all.end_task(1);
    CHECK(all.sent.size() == 3);
}

TEST_CASE("nothing new goes to a worker that retires or is lost", "[rt][dispatch]") {
    hearer all;
    const auto first = make_room(1, 1), second = make_room(2, 1);
    all.parts.add(*first, "worker-1");
    all.parts.add(*second, "worker-2");
    all.parts.retire(*first, true);
    all.submit(make_task());
    all.submit(make_task());
    REQUIRE(all.sent_to.size() == 1);
    CHECK(all.sent_to[0] == second.get());
    second->up = false;
    all.parts.remove(*second);
    CHECK(second->busy == 0);
    all.parts.retire(*first, false);
    all.parts.line_up_again({all.sent[0]}, {});
    all.parts.pump(all);
    REQUIRE(all.sent.size() == 2);
    CHECK(all.sent[1] == all.sent[0]); // before the one that has waited
    CHECK(all.sent_to[1] == first.get());
}

TEST_CASE("an actor waits for workers that are about to come", "[rt][dispatch]") {
    hearer all;
    const auto make_actor = [] {
        auto call = make_task({}, 0);
        call->kind = call_kind::create;
        return call;
    };
    all.parts.expect(2);
    const auto first = make_room(1, 1), second = make_room(2, 1);
    all.parts.add(*first, "worker-1");
    all.parts.place(make_actor(), all);
    CHECK(all.sent.size() == 1);
    all.parts.place(make_actor(), all);
    CHECK(all.sent.size() == 1);
    CHECK(all.parts.has_waiting());
    all.parts.add(*second, "worker-2");
    all.parts.pump(all);
    REQUIRE(all.sent_to.size() == 2);
    CHECK(all.sent_to[1] == second.get());
    CHECK_FALSE(all.parts.end_actor(*second));
    CHECK(second->actors == 0);
}

TEST_CASE("a task without cores waits for credit alone", "[rt][dispatch]") {
    hearer all;
    const auto room = make_room(1, 1);
    all.parts.add(*room, "worker-1");
    all.submit(make_task());
    all.has_room = false;
    all.parts.place(make_task({}, 0), all);
    CHECK(all.parts.waits_for_credit());
    all.has_room = true;
    all.parts.pump(all);
    CHECK(all.sent.size() == 2);
    CHECK(room->busy == 1);
}

TEST_CASE("plain tasks run in a second process beside a worker in which somebody waits",
          "[rt][dispatch]") {
    hearer all;
    asked_source source;
    all.parts.ask(&source);
    const auto room = make_room(1, 2), second = make_room(2, 2);
    all.parts.add(*room, "worker-1");
    room->parents = 1;
    all.submit(make_task());
    all.parts.pump(all);
    CHECK(all.sent.empty());
    CHECK(source.asides == 1);
    CHECK_FALSE(all.parts.asides().stand_beside(*second, *second->wire));
    REQUIRE(all.parts.asides().stand_beside(*second, *room->wire));
    all.parts.add(*second, "worker-2"); // no place of its own
    all.parts.pump(all);
    REQUIRE(all.sent_to.size() == 1);
    CHECK(all.sent_to[0] == second.get());
    CHECK(room->busy == 1); // on the cores of the first
    all.end_task(0);
    CHECK(room->busy == 0);
    CHECK(second_processes::part(*room) == second.get());
    CHECK(second->spent);
    all.submit(make_task());
    CHECK(source.asides == 2);
    all.parts.asides().refuse(*room->wire);
    all.parts.pump(all);
    REQUIRE(all.sent_to.size() == 2);
    CHECK(all.sent_to[1] == room.get());
}

TEST_CASE("an idle worker may have what waits at a crowded one", "[rt][dispatch]") {
    hearer all;
    const auto crowded = make_room(1, 1), idle = make_room(2, 1);
    all.parts.add(*crowded, "worker-1");
    crowded->pace.window = 4;
    for (int i = 0; i < 3; ++i) all.submit(make_task());
    CHECK(all.sent.size() == 3);
    CHECK(crowded->busy == 3);
    all.parts.add(*idle, "worker-2");
    REQUIRE(all.parts.wants_more(*idle));
    bool has_more = true;
    CHECK(all.parts.may_move(*idle, *all.sent[2], has_more) == move_answer::goes);
    CHECK(all.parts.may_move(*idle, *make_task({}, 0), has_more) == move_answer::goes);
    CHECK_FALSE(all.parts.wants_more(*crowded));
}

TEST_CASE("the demands of a group are forgotten when nobody has them", "[rt][dispatch]") {
    hearer all;
    asked_source source;
    all.parts.ask(&source);
    sched::resources need;
    need.cpu = 1;
    const auto demand = all.parts.demands().number(need, sched::group_label(3, -1)).value();
    const auto call = make_task(demand, 1);
    all.submit(call);
    CHECK_FALSE(all.parts.forget_group(3));
    call->state = phase::done;
    CHECK(all.parts.forget_group(3));
    CHECK(all.parts.lines().find(demand) == nullptr);
}

} // namespace dispatch_test
