// SPDX-License-Identifier: Apache-2.0
// Who holds what of which worker, and whose cores somebody else has: rt/detail/lease_book.hpp and
// rt/detail/lent_cores.hpp.
#include <tests/support/placed_calls.hpp>

#include <skein/rt/detail/lease_book.hpp>
#include <skein/rt/detail/lent_cores.hpp>

#include <catch2/catch_test_macros.hpp>

namespace lease_book_test {

using namespace skein;
using namespace skein::rt::detail;
using skein_test::call_ptr;
using skein_test::make_room;
using skein_test::make_task;

struct booking {
    demand_lines lines;
    lease_book book{lines};

    lease_line& shared(sched::demand_id demand) {
        auto& line = lines.line_of(demand);
        line.by = lease_line::service::shared;
        return line;
    }
    void send(worker_room& to, call_base& call) {
        book.occupy(to, to.busy + call.cpus);
        book.sent(to, call);
    }
    void settle(worker_room& from, const call_base& call) {
        book.occupy(from, from.busy - call.cpus);
        book.settled(from, call, true);
    }
};

TEST_CASE("a line gets as many leases as a worker has cores", "[rt][lease_book]") {
    booking one;
    const auto room = make_room(1, 2);
    one.book.add(*room, "worker-1");
    CHECK(one.book.largest() == 2);
    auto& line = one.shared(sched::one_cpu);
    const auto first = make_task(), second = make_task();
    REQUIRE(one.book.ask(line));
    REQUIRE(one.book.choose(line) == room.get());
    one.send(*room, *first);
    CHECK(one.book.choose(line) == nullptr);
    REQUIRE(one.book.ask(line));
    one.send(*room, *second);
    CHECK_FALSE(one.book.ask(line));
    CHECK(one.book.is_asking());
    one.settle(*room, *first);
    CHECK(one.book.choose(line) == room.get()); // the line has kept the lease
    one.book.withdraw(line);
    CHECK_FALSE(one.book.is_asking());
}

TEST_CASE("another line gets what a line does not use", "[rt][lease_book]") {
    booking one;
    const auto room = make_room(1, 2);
    one.book.add(*room, "worker-1");
    auto& small = one.shared(sched::one_cpu);
    auto& large = one.shared(one.lines.demands().number(2).value());
    REQUIRE(one.book.ask(small));
    CHECK_FALSE(one.book.ask(large));
    CHECK(one.book.reclaim());
    CHECK(one.book.ask(large));
    CHECK(large.held == 1);
    CHECK(small.held == 0);
}

TEST_CASE("what a lost worker had is gone with it", "[rt][lease_book]") {
    booking one;
    const auto room = make_room(1, 1);
    one.book.add(*room, "worker-1");
    auto& line = one.shared(sched::one_cpu);
    REQUIRE(one.book.ask(line));
    room->up = false;
    CHECK(one.book.remove(*room));
    CHECK_FALSE(one.book.remove(*room));
    CHECK(line.held == 0);
    CHECK(one.book.largest() == 0);
    CHECK(one.book.workers().empty());
    CHECK_FALSE(one.book.ask(line));
}

TEST_CASE("a suspect gets a worker as a whole", "[rt][lease_book]") {
    booking one;
    const auto room = make_room(1, 4), busy = make_room(2, 4);
    one.book.add(*room, "worker-1");
    one.book.add(*busy, "worker-2");
    one.book.occupy(*busy, 1);
    const auto call = make_task();
    call->alone = 1;
    REQUIRE(one.book.take_whole(one.lines.demands().at(sched::one_cpu)) == room.get());
    room->alone = call.get();
    one.send(*room, *call);
    CHECK(one.book.take_whole(one.lines.demands().at(sched::one_cpu)) == nullptr);
    room->alone = nullptr;
    one.settle(*room, *call);
    CHECK(one.book.take_whole(one.lines.demands().at(sched::one_cpu)) == room.get());
}

TEST_CASE("a task that waits for its calls leaves its cores to others", "[rt][lent_cores]") {
    booking one;
    lent_cores cores(one.lines, one.book);
    const auto room = make_room(1, 1);
    one.book.add(*room, "worker-1");
    auto& line = one.shared(sched::one_cpu);
    REQUIRE(one.book.ask(line));
    const auto call = make_task(sched::one_cpu, 1, skein_test::coroutine_function());
    const call_id id({7, 1});
    one.send(*room, *call);
    cores.begin(id, *call, *room);
    CHECK(line.parents == 1);
    cores.begin_wait(*room, id);
    cores.begin_wait(*room, id);
    CHECK(room->busy == 0);
    CHECK(room->parents == 1);
    CHECK(one.book.choose(line) == room.get());
    cores.end_wait(*room, id);
    CHECK(room->busy == 0); // one of its two calls is under way
    cores.end_wait(*room, id);
    CHECK(room->busy == 1);
    CHECK(room->parents == 0);
    CHECK(one.book.choose(line) == nullptr);
    CHECK(cores.end(id, *call));
    CHECK(line.parents == 0);
}

TEST_CASE("a task at a worker of its own tells that it is blocked", "[rt][lent_cores]") {
    booking one;
    lent_cores cores(one.lines, one.book);
    skein_test::asked_source source;
    cores.tell(&source);
    const auto demand = one.lines.demands().number(8).value();
    const auto room = make_room(1, 8);
    room->demand = demand;
    one.book.add(*room, "worker-1");
    const auto call = make_task(demand, 8, skein_test::coroutine_function());
    const call_id id({7, 1});
    one.send(*room, *call);
    cores.begin(id, *call, *room);
    cores.begin_wait(*room, id);
    CHECK(source.blocks == std::vector<bool>{true});
    CHECK(cores.end(id, *call)); // its cores are its worker's
    CHECK(source.blocks == std::vector<bool>{true, false});
}

TEST_CASE("cores are lent by the workers with the least to do", "[rt][lent_cores]") {
    booking one;
    lent_cores cores(one.lines, one.book);
    const auto busy = make_room(1, 1), idle = make_room(2, 1);
    one.book.add(*busy, "worker-1");
    one.book.add(*idle, "worker-2");
    one.book.occupy(*busy, 1);
    cores.lend(1);
    CHECK(idle->lent);
    CHECK_FALSE(busy->lent);
    CHECK(cores.are_free());
    cores.lend(2);
    CHECK(busy->lent);
    CHECK_FALSE(cores.are_free());
    one.book.lent_changed().reset();
    one.book.occupy(*busy, 0);
    CHECK(one.book.lent_changed().is_set());
    CHECK(cores.are_free());
    cores.lend(0);
    CHECK_FALSE(idle->lent);
    CHECK_FALSE(busy->lent);
}

} // namespace lease_book_test
