// SPDX-License-Identifier: Apache-2.0
// New actors, and tasks that occupy no cores: rt/detail/unleased_calls.hpp.
#include <tests/support/placed_calls.hpp>

#include <skein/rt/detail/unleased_calls.hpp>

#include <optional>
#include <string>
#include <vector>

#include <catch2/catch_test_macros.hpp>

namespace unleased_calls_test {

using namespace skein;
using namespace skein::rt::detail;
using skein_test::call_ptr;
using skein_test::make_room;
using skein_test::make_task;

struct hearer {
    demand_lines lines;
    lease_book book{lines};
    second_processes asides{book};
    unleased_calls calls{lines, book, asides};
    std::vector<worker_room*> sent_to;
    std::vector<std::string> refused;
    const worker_room* full = nullptr; ///< has no credit

    void send(worker_room& to, const call_ptr& call) {
        if (call->kind == call_kind::create) ++to.actors;
        sent_to.push_back(&to);
    }
    void refuse(call_base& call, const error& why) {
        call.state = phase::done;
        refused.emplace_back(why.text());
    }
    bool has_credit(const worker_room& worker) const { return &worker != full; }
    std::optional<error> end_of(sched::demand_id) const { return {}; }
};

call_ptr new_actor() {
    auto call = make_task({}, 0);
    call->kind = call_kind::create;
    return call;
}

TEST_CASE("actors are spread over workers", "[rt][unleased_calls]") {
    hearer all;
    const auto first = make_room(1, 1), second = make_room(2, 1);
    all.book.add(*first, "worker-1");
    all.book.add(*second, "worker-2");
    first->busy = 1; // it would have to wait there
    for (int i = 0; i < 3; ++i) CHECK(all.calls.place(new_actor(), all));
    CHECK(all.sent_to == std::vector<worker_room*>{second.get(), first.get(), second.get()});
}

TEST_CASE("a task without cores goes to the worker with the least to do", "[rt][unleased_calls]") {
    hearer all;
    const auto busy = make_room(1, 1), needed = make_room(2, 1), idle = make_room(3, 1);
    for (const auto* room : {&busy, &needed, &idle}) all.book.add(**room, "a worker");
    busy->busy = 1;
    needed->coroutines = 1;
    CHECK(all.calls.place(make_task({}, 0), all));
    all.full = idle.get();
    CHECK(all.calls.place(make_task({}, 0), all));
    needed->retiring = true;
    CHECK(all.calls.place(make_task({}, 0), all));
    CHECK(all.sent_to == std::vector<worker_room*>{idle.get(), needed.get(), busy.get()});
}

TEST_CASE("what waits goes in its order, and what is done is left out", "[rt][unleased_calls]") {
    hearer all;
    const auto done = make_task({}, 0);
    CHECK_FALSE(all.calls.place(new_actor(), all)); // there is no worker
    CHECK_FALSE(all.calls.place(done, all));
    CHECK_FALSE(all.calls.place(make_task({}, 0), all));
    CHECK(all.calls.has_tasks());
    done->state = phase::done;
    const auto room = make_room(1, 1);
    all.book.add(*room, "worker-1");
    all.calls.pump(all);
    CHECK(all.sent_to.size() == 2);
    CHECK(all.calls.empty());
}

TEST_CASE("a call that no worker could ever hold fails", "[rt][unleased_calls]") {
    hearer all;
    const auto room = make_room(1, 1);
    all.book.add(*room, "worker-1");
    const auto large = make_task(all.lines.demands().number(2).value(), 2);
    CHECK_FALSE(all.calls.place(large, all));
    all.calls.pump(all);
    REQUIRE(all.refused.size() == 1);
    CHECK(all.refused[0] == "plain asks for cpu=2, more than any worker has");
}

} // namespace unleased_calls_test
