// SPDX-License-Identifier: Apache-2.0
// The placement groups of a driver, alone, and what handles to groups ask of a worker's driver:
// rt/detail/group_desk.hpp, rt/detail/group_handles.hpp.
#include <tests/support/manual_loop.hpp>
#include <tests/support/placed_calls.hpp>

#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/rt/detail/group_desk.hpp>
#include <skein/rt/detail/group_handles.hpp>
#include <skein/rt/detail/message.hpp>
#include <skein/sched/scheduler.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include "rt/fake_channel.hpp"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <fmt/format.h>

namespace group_desk_test {

using namespace skein;
using namespace skein::rt;
using namespace skein::rt::detail;
using Catch::Matchers::ContainsSubstring;
using rt_test::far_end;
using skein_test::make_task;
using texts = std::vector<std::string>;

/// Remembers which groups it is asked for.
class group_source final : public skein_test::asked_source {
public:
    std::vector<std::uint64_t> groups, dropped;
    void want_group(const worker_group& group) override { groups.push_back(group.number); }
    void drop_group(std::uint64_t number) override { dropped.push_back(number); }
};

/// A process with groups: a driver with one worker, or a worker once it follows its driver.
struct process final : reply_events, group_events, driver_questions {
    void tell_holds() override {}
    kept_actors keep_lent(const lent_actors&) override { return {}; }
    void send_along(kept_actors) override {}
    rt::peer* worker_at(peer_id number) override {
        return number == worker.peer->number ? worker.peer.get() : nullptr;
    }
    void workers_are_needed() override { ++starts; }
    void end_actors(const group_state& group) override { ended.push_back(group.number); }
    void refuse_demand(sched::demand_id demand, const error& why) override {
        refused.push_back(fmt::format("{}: {}", demand.value(), why.text()));
    }
    void cores_are_free() override { ++pumped; }
    void ask_driver(counted_ptr<call_base> call, std::string name, std::uint16_t kind,
                    encoder body) override {
        CHECK(kind == message_group);
        wire::writer written;
        body(written);
        questions.push_back(*wire::decode<group_question>(written.bytes()));
        asked.push_back(std::move(name));
        calls.push_back(std::move(call));
    }

    process() {
        worker.peer->number = peer_id(4);
        worker.peer->room.place = sched::place_id(4);
        worker.peer->room.capacity = 2;
        worker.peer->room.link = worker.peer.get();
        worker.peer->room.wire = worker.wire.get();
        parts.add(worker.peer->room, "worker");
        parts.ask(&source);
    }
    ~process() { parts.ask(nullptr); }

    skein_test::manual_loop loop;
    far_end worker = rt_test::peer_at(peer_role::program); ///< or the driver of this worker
    group_source source;
    dispatch parts;
    counted_ptr<runtime_anchor> home{new runtime_anchor};
    borrows<actor_id> borrowed;
    replies out{{"here", "host", 7}, home, borrowed, *this};
    group_desk desk{parts, out, handles, *this};
    group_handles handles{desk, out, *this};

    int starts = 0, pumped = 0;
    std::vector<std::uint64_t> ended;
    texts refused, asked;
    std::vector<group_question> questions;
    std::vector<counted_ptr<call_base>> calls;

    group_desk::state_ptr make(const texts& bundles, std::string_view name = {},
                               bool get_if_exists = false) {
        return handles.make(bundles, sched::group_strategy::pack, name, get_if_exists);
    }
    void ask(std::uint64_t slot, group_matter matter, std::uint64_t number, std::uint32_t times = 0,
             std::string name = {}) {
        group_question what;
        what.matter = static_cast<std::uint8_t>(matter);
        what.number = number;
        what.times = times;
        what.name = std::move(name);
        what.bundles = {"cpu=1"};
        desk.on_question(*worker.peer, slot_id(slot), wire::encode(what));
    }
    /// What was sent since the last look: "slot answer".
    texts told() {
        texts all;
        for (const auto& f : std::exchange(worker.sent(), {})) {
            if (f.kind == message_group) {
                const auto what = *wire::decode<group_question>(f.body);
                all.push_back(fmt::format("matter {} group {} times {}", what.matter,
                                          what.number & ~first_of_worker, what.times));
                continue;
            }
            all.push_back(f.flags == reply_failed
                              ? fmt::format("{} {}", f.id, decode_failure(f.body).what.text())
                              : fmt::format("{} done", f.id));
        }
        return all;
    }
};

std::string why_of(const group_desk::state_ptr& group) {
    return group->why ? std::string(group->why->text()) : std::string();
}

TEST_CASE("a driver asks for the places of a group, which ends with its last handle",
          "[rt][groups]") {
    process p;
    auto group = p.make({"cpu=1", "cpu=2"}, "web");
    const auto number = group->number;
    CHECK(p.starts == 1);
    CHECK(p.source.groups == std::vector<std::uint64_t>{number});
    CHECK(group->bundles.size() == 2);
    CHECK_FALSE(group->placed);
    p.desk.placed(number, true);
    CHECK(group->placed);
    CHECK(p.make({"cpu=1"}, "web", true).get() == group.get());
    CHECK_THAT(why_of(p.make({"cpu=1"}, "web")), ContainsSubstring("named \"web\" already"));

    group = {};
    CHECK(p.source.dropped == std::vector<std::uint64_t>{number});
    CHECK_FALSE(p.desk.table().named("web"));
    CHECK(p.desk.table().find(number) != nullptr); // until nothing of it is left
    p.desk.gone(number);
    CHECK(p.desk.table().find(number) == nullptr);
}

TEST_CASE("what is wrong with a group is told by its state", "[rt][groups]") {
    process p;
    CHECK_THAT(why_of(p.make({})), ContainsSubstring("a placement group of 0 bundles"));
    CHECK_THAT(why_of(p.make({"cpu=1", ""})), ContainsSubstring("bundle 1"));
    CHECK_THAT(why_of(p.make({"cpu=1"}, std::string(300, 'x'))), ContainsSubstring("300 bytes"));
    CHECK_THAT(why_of(p.make({"cpu=1"}, "", true)), ContainsSubstring(".get_if_exists"));
    const auto held = p.make({"cpu=1"});
    p.desk.refused(held->number, error(errc::exhausted, "too large"));
    CHECK(why_of(held) == "too large");
    CHECK(held->is_gone);
    p.desk.give_up(error(errc::closed, "no workers"));
    CHECK(why_of(p.make({"cpu=1"})) == "no workers");
    CHECK(p.source.groups.size() == 1);
}

TEST_CASE("a group that is over ends its actors, and what waits for places in it", "[rt][groups]") {
    process p;
    const auto group = p.make({"cpu=2"});
    const auto demand =
        p.parts.demands().number_of_text("cpu=1", false, sched::group_label(group->number, -1));
    REQUIRE(demand);
    CHECK(p.desk.of(*demand).get() == group.get());
    const auto call = make_task(*demand, 1);
    CHECK_FALSE(p.desk.keep(*call, group->number));
    p.desk.end(*group, error(errc::closed, "removed"));
    CHECK(p.ended == std::vector{group->number});
    CHECK(p.refused == texts{fmt::format("{}: removed", demand->value())});
    CHECK_FALSE(group->is_gone);
    CHECK(p.desk.keep(*call, group->number)->text() == "removed");
    CHECK_THAT(std::string(p.desk.keep(*call, 77)->text()), ContainsSubstring("group 77"));
    p.desk.gone(group->number);
    CHECK(group->is_gone);
}

TEST_CASE("workers wait for groups of the program, and of their own", "[rt][groups]") {
    process p;
    const auto group = p.make({"cpu=1"}, "web");
    p.ask(1, group_matter::find, 0, 0, "web");
    p.ask(2, group_matter::find, 0, 0, "none");
    CHECK(p.told() ==
          texts{"1 done", "2 there is no placement group named \"none\"; there are: \"web\""});
    p.ask(3, group_matter::ready, group->number);
    p.ask(4, group_matter::ready, group->number);
    p.desk.cancel(*p.worker.peer, slot_id(4));
    CHECK(p.told() ==
          texts{fmt::format("4 the wait for placement group {} was cancelled", group->number)});
    p.desk.placed(group->number, true);
    CHECK(p.told() == texts{"3 done"});

    const auto its = first_of_worker + 1;
    p.ask(0, group_matter::make, its);
    p.ask(5, group_matter::ready, its);
    p.ask(6, group_matter::remove, its);
    const auto made = p.source.groups.back();
    CHECK(p.told() == texts{fmt::format("5 placement group {} was removed", made)});
    p.desk.gone(made);
    CHECK(p.told() == texts{"6 done"});
    p.ask(0, group_matter::release, its, 1);
    CHECK(p.desk.table().find(made) == nullptr);
}

TEST_CASE("a worker that says of groups what cannot be loses its link", "[rt][groups]") {
    process p;
    const auto group = p.make({"cpu=1"});
    CHECK_THROWS_AS(p.ask(1, group_matter::ready, group->number), error); // it does not hold it
    CHECK_THROWS_AS(p.ask(1, group_matter::hold, first_of_worker), error);
    CHECK_THROWS_AS(p.ask(1, group_matter::make, 7), error);
    CHECK_THROWS_AS(p.desk.on_question(*p.worker.peer, slot_id(1), {}), error);
    p.ask(0, group_matter::hold, group->number);
    CHECK_THROWS_AS(p.ask(1, group_matter::release, group->number, 2), error);
    p.ask(1, group_matter::ready, group->number);
    p.ask(0, group_matter::release, group->number, 1);
    CHECK_THAT(p.told().at(0), ContainsSubstring("was given back"));
}

TEST_CASE("when the program ends all its groups are over", "[rt][groups]") {
    process p;
    const auto group = p.make({"cpu=1"});
    p.desk.close();
    p.desk.fail_all(error(errc::closed, "the end"));
    CHECK(group->is_gone);
    CHECK(why_of(group) == "the end");
    CHECK(p.ended.empty()); // they end by themselves
    CHECK_THAT(why_of(p.make({"cpu=1"})), ContainsSubstring("no workers"));
    CHECK(p.source.dropped.empty());
}

TEST_CASE("a worker makes groups at its driver, and gives back what it holds", "[rt][groups]") {
    process p;
    p.handles.follow(p.worker.peer.get());
    auto made = p.make({"cpu=1"});
    CHECK(made->number > first_of_worker);
    CHECK(p.handles.is_elsewhere(*made));
    CHECK(p.told() == texts{"matter 4 group 1 times 0"});
    CHECK_THAT(why_of(p.make({})), ContainsSubstring("0 bundles"));
    CHECK(p.told().empty()); // refused here

    group_desk::state_ptr given;
    const group_answer told{9, true, {"cpu=1"}};
    CHECK(p.handles.take(told, given));
    CHECK(given->placed);
    CHECK(p.told() == texts{"matter 5 group 9 times 0"});
    CHECK(p.handles.take(told, given)); // told once
    CHECK(p.handles.take_answer(wire::encode(told)).get() == given.get());
    CHECK(p.told().empty());
    given = {};
    CHECK(p.told() == texts{"matter 3 group 9 times 2"});
    made = {};
    CHECK(p.told() == texts{"matter 3 group 1 times 1"});
    CHECK(p.desk.table().size() == 0);
}

TEST_CASE("a worker's wait for a group is a question to its driver", "[rt][groups]") {
    process p;
    p.handles.follow(p.worker.peer.get());
    const auto group = p.make({"cpu=1"});
    const auto wait = [](process* of, group_desk::state_ptr it) -> task<void> {
        auto asked = of->handles.ask(it, false);
        co_await asked;
    };
    const auto both = [](process* of, task<void> waiting) -> task<void> {
        scope waits;
        waits.spawn(std::move(waiting));
        co_await yield();
        wire::writer number;
        number.fixed(std::uint64_t{12});
        of->calls.at(0)->finish_with_bytes(number.bytes());
        auto joined = waits.join();
        co_await joined;
    };
    p.loop.run(both(&p, wait(&p, group)));
    CHECK(p.asked == texts{fmt::format("the wait of placement group {}", group->number)});
    CHECK(p.questions.at(0).number == group->number);
    CHECK(group->at_driver == 12);
    CHECK(group->placed);
    p.calls.clear();
}

} // namespace group_desk_test
