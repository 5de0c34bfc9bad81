// SPDX-License-Identifier: Apache-2.0
// Which tasks wait for which cores: rt/detail/demand_lines.hpp.
#include <tests/support/placed_calls.hpp>

#include <skein/rt/detail/demand_lines.hpp>

#include <vector>

#include <catch2/catch_test_macros.hpp>

namespace demand_lines_test {

using namespace skein;
using namespace skein::rt::detail;
using skein_test::call_ptr;
using skein_test::make_task;

call_ptr nested_task() {
    auto call = make_task();
    call->nested = true;
    return call;
}

TEST_CASE("what other calls have made leaves its line first", "[rt][demand_lines]") {
    demand_lines lines;
    const auto first = make_task(), second = make_task(), inner = nested_task();
    lines.push(first);
    lines.push(second);
    lines.push(inner);
    CHECK(lines.waiting() == 3);
    auto& line = lines.line_of(sched::one_cpu);
    CHECK(lines.pop(line) == inner);
    CHECK(lines.pop(line) == first);
    lines.push_front({first});
    CHECK(lines.front(line) == first.get());
    first->state = phase::done;
    CHECK(lines.front(line) == second.get());
    CHECK(lines.gone() == 3);
    lines.forget(sched::one_cpu);
    CHECK(lines.find(sched::one_cpu) == nullptr);
}

TEST_CASE("a suspect stands behind all that wait when it comes", "[rt][demand_lines]") {
    demand_lines lines;
    const auto plain = make_task(), suspect = make_task();
    suspect->alone = 2;
    lines.push(plain);
    lines.push_front({suspect});
    CHECK(lines.waiting() == 1);
    CHECK(lines.suspects() == 1);
    const auto one = lines.pop_suspect();
    CHECK(one.call == suspect);
    CHECK(one.turn == 1);
}

TEST_CASE("tasks that are taken out thin their lines", "[rt][demand_lines]") {
    demand_lines lines;
    const auto first = make_task(), second = make_task(), third = make_task();
    third->alone = 1;
    for (const auto& call : {first, second, third}) lines.push(call);
    demand_lines::calls out;
    lines.take_if([&](const call_ptr& call) { return call != first; }, out);
    REQUIRE(out.size() == 2);
    CHECK(out[0] == second);
    CHECK(out[1] == third);
    CHECK(lines.were_thinned());
    CHECK_FALSE(lines.were_thinned());
    CHECK(lines.waits());
    out.clear();
    lines.take_all(out);
    CHECK(out.size() == 1);
    CHECK_FALSE(lines.waits());
}

} // namespace demand_lines_test
