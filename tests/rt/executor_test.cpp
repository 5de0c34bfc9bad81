// SPDX-License-Identifier: Apache-2.0
#include <skein/core/event.hpp>
#include <skein/core/sleep.hpp>
#include <skein/net/frame.hpp>
#include <skein/rt/detail/actor_terms.hpp>
#include <skein/rt/detail/executor.hpp>
#include <skein/rt/detail/message.hpp>
#include <skein/rt/detail/remote.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <optional>
#include <utility>

#include <catch2/catch_test_macros.hpp>

#include "../support/manual_loop.hpp"
#include "rt/fake_channel.hpp"

namespace rt_executor_test {

using namespace skein;
using namespace skein::rt;
using namespace std::chrono_literals;
using rt_test::far_end;
using skein_test::manual_loop;

manual_loop* world = nullptr;
event* gate = nullptr;
rt::detail::executor* ran_by = nullptr;

int twice(int n) { return 2 * n; }
int take_long(int n) {
    world->spend(10ms);
    return n;
}
int fail_with(std::string text) { throw error(errc::io, text); }
task<int> wait_for_gate(int n) {
    auto opened = gate->wait();
    co_await opened;
    co_return n;
}

struct counter {
    int value = 0;
    int add(int n) { return value += n; }
    task<int> add_later(int n) {
        auto opened = gate->wait();
        co_await opened;
        co_return value += n;
    }
    int add_and_leave(int n) {
        ran_by->actors().leave();
        return value += n;
    }
};

template <auto F, class T = void>
const function_record& record_of() {
    (void)rt::detail::record<F, T>::registered;
    return rt::detail::record<F, T>::entry();
}

namespace {

struct listener final : rt::detail::reply_events, rt::detail::actor_events {
    void tell_holds() override {}
    rt::detail::kept_actors keep_lent(const rt::detail::lent_actors&) override { return {}; }
    void send_along(rt::detail::kept_actors) override {}
    [[nodiscard]] std::string title_of(actor_id id) const override {
        return fmt::format("actor {}", id);
    }
    void actor_has_left(actor_id id) override { left.push_back(id); }
    std::vector<actor_id> left;
    rt::detail::borrows<actor_id> borrowed; ///< none
};

/// A process with an executor, and another one that calls it.
struct process {
    process() {
        (void)registry::instance();
        here.add_caller(*caller.peer);
        ran_by = &here;
    }
    far_end caller = rt_test::peer_at(rt::detail::peer_role::program);
    listener above;
    counted_ptr<rt::detail::runtime_anchor> home{new rt::detail::runtime_anchor};
    rt::detail::replies out{{"worker-0", "here", 7}, home, above.borrowed, above};
    rt::detail::local_actors actors{above};
    rt::detail::executor here{home, out, actors};

    template <class... A>
    void call(std::uint64_t id, const function_record& fn, actor_id actor, const A&... arguments) {
        wire::writer body;
        rt::detail::call_head head;
        head.function = fn.index;
        head.kind = actor ? rt::detail::call_kind::method : rt::detail::call_kind::task;
        head.target = actor;
        head.who.id = call_id({1, id});
        head.encode(body, {});
        (wire::encode(body, arguments), ...);
        net::frame_view f;
        f.kind = rt::detail::message_call;
        f.id = id;
        f.body = body.bytes();
        here.arrived(caller.peer, f);
    }
    counted_ptr<rt::detail::actor_box> make(actor_id id) {
        counted_ptr<rt::detail::actor_box> box(new rt::detail::box_of<counter>(std::in_place));
        actors.insert(id, box);
        return box;
    }
    [[nodiscard]] std::vector<std::string> told() const {
        std::vector<std::string> out;
        for (const auto& f : caller.sent()) {
            std::string text = f.kind == rt::detail::message_started ? "started"
                               : f.kind == rt::detail::message_held  ? "held"
                               : f.flags == rt::detail::reply_failed
                                   ? std::string(rt::detail::decode_failure(f.body).what.text())
                                   : fmt::format("{}", *wire::decode<int>(f.body));
            out.push_back(fmt::format("{} {}", f.id, text));
        }
        return out;
    }
};

using texts = std::vector<std::string>;

void within(task<void> (*body)(process*)) {
    manual_loop of;
    world = &of;
    event opened;
    gate = &opened;
    process p;
    const auto all = [](process* self, task<void> work) -> task<void> {
        co_await work;
        self->here.close();
        self->here.cancel_all();
        auto joined = as_result(self->here.join());
        (void)co_await joined;
    };
    of.run(all(&p, body(&p)));
}

/// All that can be done now is done then.
task<void> settle() { co_await sleep_for(1ms); }

} // namespace

TEST_CASE("a plain call has replied when it has arrived") {
    within([](process* p) -> task<void> {
        p->call(1, record_of<&twice>(), {}, 21);
        p->call(2, record_of<&fail_with>(), {}, std::string("no disk"));
        CHECK(p->told() == texts{"1 42", "2 no disk"});
        CHECK(p->here.executed() == 2);
        CHECK(p->here.running() == 0);
        co_return;
    });
}

TEST_CASE("between long calls those replies leave that go through the store") {
    within([](process* p) -> task<void> {
        for (int i = 1; i <= 3; ++i) p->call(std::uint64_t(i), record_of<&take_long>(), {}, i);
        CHECK(p->here.executed() == 1);
        std::optional<rt::detail::departures::place> leaving(std::in_place,
                                                             p->out.objects().leaving());
        co_await sleep_for(rt::detail::departures::patience / 2);
        CHECK(p->here.executed() == 1);
        leaving.reset();
        co_await sleep_for(50ms);
        CHECK(p->here.executed() == 3);
    });
}

TEST_CASE("calls do not wait for long for a reply that finds no room") {
    within([](process* p) -> task<void> {
        for (int i = 1; i <= 3; ++i) p->call(std::uint64_t(i), record_of<&take_long>(), {}, i);
        const rt::detail::departures::place leaving(p->out.objects().leaving());
        co_await sleep_for(rt::detail::departures::patience / 2);
        CHECK(p->here.executed() == 1);
        co_await sleep_for(rt::detail::departures::patience / 2 + 50ms);
        CHECK(p->here.executed() == 3);
    });
}

TEST_CASE("a coroutine call says that it has started when it suspends") {
    within([](process* p) -> task<void> {
        p->call(1, record_of<&wait_for_gate>(), {}, 7);
        auto settled = settle();
        co_await settled;
        CHECK(p->told() == texts{"1 started"});
        CHECK(p->here.running() == 1);
        gate->set();
        auto again = settle();
        co_await again;
        CHECK(p->told() == texts{"1 started", "1 7"});
        CHECK(p->here.running() == 0);
    });
}

TEST_CASE("a coroutine call is cancelled, by its caller or with it") {
    within([](process* p) -> task<void> {
        p->call(1, record_of<&wait_for_gate>(), {}, 7);
        p->call(2, record_of<&wait_for_gate>(), {}, 8);
        auto begun = settle();
        co_await begun;
        p->here.cancel(*p->caller.peer, slot_id(1), false);
        auto first = settle();
        co_await first;
        CHECK(p->here.running() == 1);
        p->here.drop_calls(*p->caller.peer);
        auto second = settle();
        co_await second;
        CHECK(p->here.running() == 0);
        CHECK(p->caller.sent().size() == 4); // two have started, two were cancelled
    });
}

TEST_CASE("a plain method waits until coroutine methods before it have started") {
    within([](process* p) -> task<void> {
        const actor_id actor({9, 1});
        (void)p->make(actor);
        p->call(1, record_of<&counter::add_later, counter>(), actor, 1);
        p->call(2, record_of<&counter::add, counter>(), actor, 10);
        CHECK(p->told().empty());
        auto settled = settle();
        co_await settled;
        CHECK(p->told() == texts{"2 10", "1 started"});
        gate->set();
        auto again = settle();
        co_await again;
        CHECK(p->told().back() == "1 11");
    });
}

TEST_CASE("of the calls at a gate as many run as it takes, and the others are held") {
    within([](process* p) -> task<void> {
        const actor_id actor({9, 1});
        p->make(actor)->gate.limit = 1;
        p->call(1, record_of<&counter::add_later, counter>(), actor, 1);
        p->call(2, record_of<&counter::add_later, counter>(), actor, 10);
        auto settled = settle();
        co_await settled;
        CHECK(p->told() == texts{"1 started", "2 held"});
        p->here.cancel(*p->caller.peer, slot_id(2), false);
        auto cancelled = settle();
        co_await cancelled;
        CHECK(p->told().size() == 3);
        CHECK(p->told().back().find("was cancelled; it did not run") != std::string::npos);
        gate->set();
        auto again = settle();
        co_await again;
        CHECK(p->told().back() == "1 1");
    });
}

TEST_CASE("an actor that is gone runs nothing, and one that is killed runs no further") {
    within([](process* p) -> task<void> {
        const actor_id actor({9, 1});
        (void)p->make(actor);
        p->call(1, record_of<&counter::add_later, counter>(), actor, 1);
        auto begun = settle();
        co_await begun;
        p->here.kill(actor);
        CHECK(p->actors.size() == 0);
        CHECK(p->actors.find(actor) == nullptr);
        auto ended = settle();
        co_await ended;
        CHECK(p->here.running() == 0);
        p->call(2, record_of<&counter::add, counter>(), actor, 1);
        CHECK(p->told().back().find("is gone") != std::string::npos);
        CHECK(p->above.left.empty());
    });
}

TEST_CASE("an actor that leaves is told before its last reply, and runs no more calls") {
    within([](process* p) -> task<void> {
        const actor_id actor({9, 1});
        (void)p->make(actor);
        p->call(1, record_of<&counter::add_and_leave, counter>(), actor, 5);
        CHECK(p->above.left == std::vector{actor});
        CHECK(p->told() == texts{"1 5"});
        CHECK(p->actors.size() == 0);
        CHECK_THROWS_AS(p->actors.leave(), error); // no method runs
        co_return;
    });
}

TEST_CASE("behind calls that have run for long the others wait for the next turn, and can be "
          "cancelled") {
    within([](process* p) -> task<void> {
        p->call(1, record_of<&take_long>(), {}, 1);
        p->call(2, record_of<&twice>(), {}, 1);
        p->call(3, record_of<&twice>(), {}, 1);
        CHECK(p->told() == texts{"1 1"});
        p->here.cancel(*p->caller.peer, slot_id(2), false);
        auto settled = settle();
        co_await settled;
        REQUIRE(p->told().size() == 3);
        CHECK(p->told()[1].find("was cancelled; it did not run") != std::string::npos);
        CHECK(p->told()[2] == "3 2");
        p->call(4, record_of<&twice>(), {}, 2);
        CHECK(p->told().back() == "4 4"); // here and now again
    });
}

TEST_CASE("the last handle of an actor goes behind the calls that wait") {
    within([](process* p) -> task<void> {
        const actor_id actor({9, 1});
        (void)p->make(actor);
        p->call(1, record_of<&take_long>(), {}, 1);
        p->call(2, record_of<&counter::add, counter>(), actor, 3);
        wire::writer body;
        rt::detail::put_actor(body, actor);
        p->here.dropped(p->caller.peer, body.bytes());
        CHECK(p->actors.size() == 1);
        auto settled = settle();
        co_await settled;
        CHECK(p->told() == texts{"1 1", "2 3"});
        CHECK(p->actors.size() == 0);
    });
}

TEST_CASE("what cannot be a call of its sender is not run") {
    within([](process* p) -> task<void> {
        const actor_id actor({9, 1});
        (void)p->make(actor);
        net::frame_view f;
        CHECK_THROWS_AS(p->here.arrived(p->caller.peer, f), error);
        CHECK_THROWS_AS(p->call(1, record_of<&twice>(), actor, 1), error); // no method
        auto other = rt_test::peer_at(rt::detail::peer_role::accepted, 5);
        p->here.add_caller(*other.peer);
        wire::writer body;
        rt::detail::call_head head;
        head.function = record_of<&counter::add, counter>().index;
        head.kind = rt::detail::call_kind::method;
        head.target = actor;
        head.who.id = head.who.trace = call_id({6, 1}); // another's name
        head.is_told = true;
        head.encode(body, {});
        wire::encode(body, 1);
        f.body = body.bytes();
        CHECK_THROWS_AS(p->here.arrived(other.peer, f), error);
        CHECK(p->told().empty());
        CHECK(p->here.executed() == 0);
        co_return;
    });
}

} // namespace rt_executor_test
