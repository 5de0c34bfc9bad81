// SPDX-License-Identifier: Apache-2.0
// The actors of a driver, alone: rt/detail/actor_owner.hpp.
#include <tests/support/manual_loop.hpp>
#include <tests/support/placed_calls.hpp>

#include <skein/net/frame.hpp>
#include <skein/rt/detail/actor_owner.hpp>
#include <skein/rt/detail/call_rarities.hpp>
#include <skein/rt/detail/message.hpp>
#include <skein/sched/scheduler.hpp>
#include <skein/wire/encode.hpp>

#include "rt/fake_channel.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <fmt/format.h>

namespace actor_owner_test {

using namespace skein;
using namespace skein::rt;
using namespace skein::rt::detail;
using Catch::Matchers::ContainsSubstring;
using rt_test::far_end;
using skein_test::call_ptr;
using skein_test::make_task;
using texts = std::vector<std::string>;

struct counter {};
struct table {};

/// What makes an actor, as a worker's or this process's call says it.
const function_record& constructor() {
    static const function_record fn = [] {
        function_record r;
        r.name = "counter";
        r.actor = &typeid(counter);
        return r;
    }();
    return fn;
}

/// A driver with two workers, and nothing that is sent but frames about actors.
struct driver final : reply_events, group_events, owner_events, group_home {
    void tell_holds() override {}
    kept_actors keep_lent(const lent_actors&) override { return {}; }
    void send_along(kept_actors) override {}
    rt::peer* worker_at(peer_id) override { return nullptr; }
    void workers_are_needed() override {}
    void end_actors(const group_state& group) override { actors.end_group(group); }
    void refuse_demand(sched::demand_id, const error&) override {}
    void cores_are_free() override {}
    bool is_elsewhere(const group_state&) const noexcept override { return false; }
    task<void> ask(counted_ptr<group_state>, bool) override { co_return; }
    void end(group_state& group, const error& why) override { groups.end(group, why); }
    void drop(group_state&) noexcept override {}

    [[nodiscard]] std::string title_of(actor_id id) const override {
        return fmt::format("actor {}", id.value().number);
    }
    [[nodiscard]] bool has_handles(actor_id id) const override { return handle == id; }
    void handles_follow(actor_id id, rt::peer* worker) override {
        if (worker == nullptr) return note("actor {} moves", id.value().number);
        note("actor {} is at {}", id.value().number, worker->number.value());
    }
    counted_ptr<actor_queue> handles_lose(actor_id, const failure& why) override {
        note("lost: {}", why.what.text());
        return {};
    }
    void fail_queue(actor_queue&) override {}
    [[nodiscard]] std::optional<error> why_lost(actor_id) const override { return known_end; }
    void place(counted_ptr<call_base> call) override {
        note("call {} goes", call->number);
        if (actors.may_go(call)) placed.push_back(std::move(call));
    }
    void take_back_calls(actor_id, std::vector<counted_ptr<call_base>>& into) override {
        for (auto& call : std::exchange(sent, {})) into.push_back(std::move(call));
    }
    counted_ptr<call_base> new_constructor(actor_id id, const actor_plan& plan) override {
        note("actor {} is made with {} bytes", id.value().number, plan.arguments.size());
        counted_ptr<call_base> call(new remake_call);
        call->fn = plan.fn;
        call->kind = call_kind::create;
        call->target = id;
        call->state = phase::queued;
        return call;
    }
    void pump() override { note("pump"); }
    void tell_where(peer_id asker, actor_id id, rt::peer* worker, std::string_view how) override {
        note("worker {} hears: actor {} {}", asker.value(), id.value().number,
             worker != nullptr ? "is there" : how);
    }

    driver() {
        for (auto* one : {&first, &second}) {
            one->peer->number = peer_id(++count);
            one->peer->incarnation = count;
            one->peer->room.place = sched::place_id(count);
            one->peer->room.capacity = 1;
            one->peer->room.link = one->peer.get();
            one->peer->room.wire = one->wire.get();
            one->peer->room.labels = {fmt::format("node=n{}", count)};
            parts.add(one->peer->room, "worker");
        }
    }
    template <class... A>
    void note(fmt::format_string<A...> text, A&&... args) {
        heard.push_back(fmt::format(text, std::forward<A>(args)...));
    }
    texts told() { return std::exchange(heard, {}); }

    skein_test::manual_loop loop;
    skein::loop::use here{loop};
    far_end first = rt_test::peer_at(peer_role::program);
    far_end second = rt_test::peer_at(peer_role::program);
    std::uint64_t count = 0;
    dispatch parts;
    counted_ptr<runtime_anchor> home{new runtime_anchor};
    borrows<actor_id> borrowed;
    replies out{{"driver", "host", 7}, home, borrowed, *this};
    group_desk groups{parts, out, *this, *this};
    actor_owner actors{parts, groups, out, *this};

    actor_id handle; ///< the actor of which this process has handles
    std::optional<error> known_end;
    std::vector<call_ptr> placed, sent;
    texts heard;
    std::uint64_t numbered = 0;

    call_ptr call(call_kind kind, actor_id target) {
        auto made = make_task();
        made->kind = kind;
        made->target = target;
        made->number = ++numbered;
        made->fn = &constructor();
        return made;
    }
    /// An actor that lives at the first worker, with a handle here.
    actor_id make(std::int32_t restarts = 0, std::string name = {}) {
        const actor_id id({9, ++numbered});
        actor_terms terms;
        terms.restarts = restarts;
        terms.call_retries = 1;
        terms.name = std::move(name);
        REQUIRE(actors.declare(id, &terms, typeid(counter)));
        auto making = call(call_kind::create, id);
        wire::writer body;
        call_head head;
        head.kind = call_kind::create;
        head.retries = 1;
        head.encode(body, {});
        terms.encode(body);
        body.fixed(std::uint32_t{5}); // the arguments
        making->body = std::move(body).take();
        actors.remember_plan(*making);
        parts.begin_actor(first.peer->room);
        handle = id;
        actors.settle(*first.peer, *making, false);
        (void)told();
        return id;
    }
    net::frame_view frame(std::uint16_t kind, byte_span body) {
        net::frame_view f;
        f.kind = kind;
        f.body = body;
        return f;
    }
};

byte_buffer of(actor_id id, std::optional<std::uint32_t> times = {}) {
    wire::writer body;
    put_actor(body, id);
    if (times) body.fixed(*times);
    return std::move(body).take();
}

TEST_CASE("a name belongs to one actor, until that ends", "[rt][owner]") {
    driver d;
    const auto id = d.make(0, "ingest");
    CHECK(*d.actors.named("ingest") == id);
    CHECK_THAT(std::string(d.actors.named("egress").error().text()),
               ContainsSubstring("there are: \"ingest\""));
    actor_terms terms;
    terms.name = "ingest";
    const actor_id other({9, 100});
    CHECK(d.actors.declare(other, &terms, typeid(counter)).error().code() == errc::already_exists);
    terms.get_if_exists = true;
    CHECK(d.actors.declare(other, &terms, typeid(table)).error().code() == errc::mismatch);
    CHECK(*d.actors.declare(other, &terms, typeid(counter)) == id);
    d.actors.kill(id);
    CHECK_FALSE(d.actors.named("ingest"));
    CHECK(*d.actors.declare(other, &terms, typeid(table)) == other);
    CHECK(d.actors.size() == 1);
}

TEST_CASE("what waits for an actor goes when it is somewhere", "[rt][owner]") {
    driver d;
    const actor_id id({9, 1});
    REQUIRE(d.actors.declare(id, nullptr, typeid(counter)));
    d.handle = id;
    d.actors.wait_for(id, d.call(call_kind::method, id));
    d.actors.ask_where(id, peer_id(2));
    const auto follower = d.call(call_kind::task, {});
    follower->extra().beside = id;
    CHECK_FALSE(d.actors.may_go(follower));
    d.parts.begin_actor(d.first.peer->room);
    d.actors.settle(*d.first.peer, *d.call(call_kind::create, id), false);
    CHECK(d.told() == texts{"actor 1 is at 1", "call 1 goes", "worker 2 hears: actor 1 is there",
                            "call 2 goes"});
    CHECK(d.placed.size() == 2);
    CHECK(d.parts.demands().at(follower->demand).label == "node=n1");
}

TEST_CASE("an actor whose constructor fails has never been there", "[rt][owner]") {
    driver d;
    const actor_id id({9, 1});
    REQUIRE(d.actors.declare(id, nullptr, typeid(counter)));
    const auto waits = d.call(call_kind::method, id);
    d.actors.wait_for(id, waits);
    d.actors.create_failed(id, {error(errc::io, "no disk"), nullptr});
    CHECK(d.told() == texts{"lost: actor 1 could not be made: no disk"});
    CHECK_THAT(std::string(waits->why().what.text()), ContainsSubstring("did not run: actor 1"));
    CHECK(d.actors.find(id) == nullptr);
}

TEST_CASE("an actor ends with its last handle, here or at a worker", "[rt][owner]") {
    driver d;
    const auto id = d.make();
    d.actors.hold(peer_id(2), id);
    d.handle = {};
    d.actors.let_go(id);
    CHECK(d.actors.find(id) != nullptr);
    CHECK_THROWS_AS(d.actors.on_frame(*d.second.peer, d.frame(message_release, of(id, 2))), error);
    d.actors.on_frame(*d.second.peer, d.frame(message_release, of(id, 1)));
    CHECK(d.actors.find(id) == nullptr);
    REQUIRE(d.first.sent().size() == 1);
    CHECK(d.first.sent().front().kind == message_drop);
    d.actors.on_frame(*d.second.peer, d.frame(message_release, of(id, 1))); // has crossed its end
}

TEST_CASE("an actor that is killed takes along what its worker has not begun", "[rt][owner]") {
    driver d;
    const auto id = d.make();
    const auto method = d.call(call_kind::method, id);
    d.sent.push_back(method);
    const auto follower = d.call(call_kind::task, {});
    follower->extra().beside = id;
    CHECK(d.actors.may_go(follower));
    d.parts.line_up(follower);
    d.actors.on_frame(*d.second.peer, d.frame(message_kill, of(id)));
    CHECK(d.first.sent().front().kind == message_kill);
    CHECK_THAT(std::string(method->why().what.text()), ContainsSubstring("was killed"));
    CHECK_THAT(std::string(follower->why().what.text()),
               ContainsSubstring("it is to run where actor"));
    CHECK(d.told() == texts{fmt::format("lost: actor {} was killed", id.value().number), "pump"});
    const auto late = d.call(call_kind::task, {});
    late->extra().beside = id;
    CHECK_FALSE(d.actors.may_go(late));
    CHECK_THAT(std::string(late->why().what.text()), ContainsSubstring("is not known here"));
}

TEST_CASE("only its own worker speaks for an actor", "[rt][owner]") {
    driver d;
    const auto id = d.make();
    CHECK_THROWS_AS(d.actors.on_frame(*d.second.peer, d.frame(message_left, of(id))), error);
    CHECK_THROWS_AS(d.actors.on_frame(*d.first.peer, d.frame(message_snapshot, of(id))), error);
    d.actors.on_frame(*d.first.peer, d.frame(message_left, of(id)));
    CHECK(d.actors.find(id) == nullptr);
    CHECK(d.first.sent().empty());
}

TEST_CASE("an actor with restarts is made again, as often as they allow", "[rt][owner]") {
    driver d;
    const auto id = d.make(1);
    const auto number = id.value().number;
    auto state = of(id);
    state.resize(state.size() + 3);
    d.actors.on_frame(*d.first.peer, d.frame(message_snapshot, state));
    CHECK(d.actors.find(id)->plan->snapshot->size() == 3);

    auto lost = d.actors.lose(*d.first.peer);
    CHECK(lost.moving == std::vector{id});
    CHECK(d.actors.keeps_lent(peer_id(1)));
    const auto method = d.call(call_kind::method, id);
    CHECK(d.actors.moves(*method, true));
    CHECK(method->lost_attempts == 1);
    CHECK_FALSE(d.actors.moves(*method, true)); // once more than .call_retries
    d.actors.wait_first(id, {method});
    d.actors.make_again(id);
    CHECK(d.told() == texts{fmt::format("actor {} moves", number),
                            fmt::format("actor {} is made with 4 bytes", number)});
    d.parts.begin_actor(d.second.peer->room);
    d.actors.settle(*d.second.peer, *d.call(call_kind::create, id), false);
    CHECK_FALSE(d.actors.keeps_lent(peer_id(1)));
    CHECK(d.actors.find(id)->where == d.second.peer.get());

    lost = d.actors.lose(*d.second.peer);
    CHECK(lost.moving.empty());
    CHECK(lost.note_of(id) ==
          fmt::format("; actor {} was made again once, as .restarts allows", number));
    CHECK(d.actors.find(id) == nullptr);
}

TEST_CASE("nothing is made again when the program ends", "[rt][owner]") {
    driver d;
    const auto id = d.make(1);
    d.actors.close();
    const auto lost = d.actors.lose(*d.first.peer);
    CHECK(lost.moving.empty());
    CHECK(lost.note_of(id).empty());
    CHECK(d.actors.size() == 0);
}

TEST_CASE("a worker makes actors, and finds them by name", "[rt][owner]") {
    driver d;
    wire::writer body;
    actor_terms terms;
    terms.name = "web";
    terms.encode(body);
    call_head head;
    head.kind = call_kind::create;
    head.target = actor_id({2, 1});
    head.retries = 1;
    wire::reader in(body.bytes());
    CHECK(d.actors.admit(*d.second.peer, slot_id(1), constructor(), head, in));
    CHECK(*d.actors.named("web") == head.target);
    wire::reader twice(body.bytes());
    CHECK_THROWS_AS(d.actors.admit(*d.second.peer, slot_id(1), constructor(), head, twice), error);
    head.target = actor_id({2, 2});
    wire::reader other(body.bytes());
    CHECK_FALSE(d.actors.admit(*d.second.peer, slot_id(2), constructor(), head, other));
    CHECK(d.second.sent().back().flags == reply_failed);

    wire::writer question;
    wire::encode(question, std::string(typeid(counter).name()));
    wire::encode(question, std::string("web"));
    d.actors.on_frame(*d.second.peer, d.frame(message_find, question.bytes()));
    CHECK(d.second.sent().back().flags == reply_ok);
}

} // namespace actor_owner_test
