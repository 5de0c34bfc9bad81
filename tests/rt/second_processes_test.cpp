// SPDX-License-Identifier: Apache-2.0
// Whether a plain task may go to a worker in which somebody waits: rt/detail/second_processes.hpp.
#include <tests/support/placed_calls.hpp>

#include <skein/rt/detail/second_processes.hpp>

#include <catch2/catch_test_macros.hpp>

namespace second_processes_test {

using namespace skein;
using namespace skein::rt::detail;
using skein_test::make_room;
using skein_test::make_task;

TEST_CASE("a second process is needed where somebody hears of calls that he has made",
          "[rt][second_processes]") {
    demand_lines lines;
    lease_book book(lines);
    second_processes asides(book);
    skein_test::asked_source source;
    const auto room = make_room(1, 1);
    const auto plain = make_task();
    const auto coroutine = make_task(sched::one_cpu, 1, skein_test::coroutine_function());
    room->calls_made = 1;
    room->actors = 1;
    CHECK_FALSE(asides.is_needed(*room, *plain)); // nobody could start one
    asides.tell(&source);
    CHECK(asides.is_needed(*room, *plain));
    CHECK_FALSE(asides.is_needed(*room, *coroutine)); // it lets others run
    room->actors = 0;
    CHECK_FALSE(asides.is_needed(*room, *plain)); // a plain function has made the call
    room->parents = 1;
    CHECK(asides.is_needed(*room, *plain));
    room->demand = sched::one_cpu;
    CHECK_FALSE(asides.is_needed(*room, *plain)); // one task at a time
}

TEST_CASE("a plain task waits rather for workers that are about to come",
          "[rt][second_processes]") {
    demand_lines lines;
    lease_book book(lines);
    second_processes asides(book);
    const auto first = make_room(1, 1), second = make_room(2, 1);
    const auto plain = make_task();
    book.add(*first, "worker-1");
    asides.expect(2);
    CHECK(asides.may_go_to(*first, *plain));
    first->actors = 1;
    CHECK_FALSE(asides.may_go_to(*first, *plain));
    book.add(*second, "worker-2");
    CHECK(asides.may_go_to(*first, *plain));
}

TEST_CASE("a second process is asked for once, and may be refused", "[rt][second_processes]") {
    demand_lines lines;
    lease_book book(lines);
    second_processes asides(book);
    skein_test::asked_source source;
    asides.tell(&source);
    const auto room = make_room(1, 1), second = make_room(2, 1);
    const auto plain = make_task();
    book.add(*room, "worker-1");
    room->parents = 1;
    CHECK_FALSE(asides.may_go_to(*room, *plain));
    CHECK_FALSE(asides.may_go_to(*room, *plain));
    CHECK(source.asides == 1);
    REQUIRE(asides.stand_beside(*second, *room->wire));
    CHECK(&second->for_whom() == room.get());
    CHECK(asides.may_go_to(*room, *plain));
    second->suspected = true;
    CHECK_FALSE(asides.may_go_to(*room, *plain));
    CHECK(second_processes::part(*second) == nullptr); // it has ended first
    CHECK(room->aside == nullptr);
    source.has_asides = false;
    CHECK(asides.may_go_to(*room, *plain));
    CHECK(source.asides == 2);
    CHECK(room->aside_is == second_process::refused);
}

} // namespace second_processes_test
