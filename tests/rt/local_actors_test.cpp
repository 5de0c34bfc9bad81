// SPDX-License-Identifier: Apache-2.0
#include <skein/core/task_context.hpp>
#include <skein/net/frame.hpp>
#include <skein/rt/detail/actor_terms.hpp>
#include <skein/rt/detail/call_context.hpp>
#include <skein/rt/detail/invoke.hpp>
#include <skein/rt/detail/local_actors.hpp>
#include <skein/rt/detail/message.hpp>

#include <catch2/catch_test_macros.hpp>

#include <stdexcept>

#include "rt/fake_channel.hpp"

namespace rt_local_actors_test {

using namespace skein;
using namespace skein::rt;

struct counter {
    int value = 0;
    bool is_broken = false;
    [[nodiscard]] int save() const {
        if (is_broken) throw std::runtime_error("no state");
        return value;
    }
    void load(int saved) { value = saved; }
};

namespace {

struct listener final : rt::detail::actor_events {
    [[nodiscard]] std::string title_of(actor_id) const override { return "actor \"table\""; }
    void actor_has_left(actor_id id) override { left.push_back(id); }
    std::vector<actor_id> left;
};

struct house {
    house() { all.insert(id, box); }
    [[nodiscard]] counter& value() const {
        return static_cast<rt::detail::box_of<counter>&>(*box).value;
    }
    const actor_id id{{9, 1}};
    listener above;
    rt::detail::local_actors all{above};
    counted_ptr<rt::detail::actor_box> box{new rt::detail::box_of<counter>(std::in_place)};
    rt_test::far_end driver = rt_test::peer_at(rt::detail::peer_role::program);
};

} // namespace

TEST_CASE("an actor lives here from its constructor until it is dropped or killed") {
    house h;
    REQUIRE(h.all.find(h.id) != nullptr);
    CHECK(h.box->id == h.id);
    CHECK(h.all.kill(h.id));
    CHECK(h.box->over == std::string_view("was killed"));
    CHECK(h.all.find(h.id) == nullptr);
    CHECK_FALSE(h.all.kill(h.id));
    h.all.insert(h.id, h.box);
    CHECK(h.all.size() == 1);
    h.all.drop(h.id);
    CHECK(h.all.size() == 0);
    CHECK(h.above.left.empty());
}

TEST_CASE("an actor is saved after each so many calls that may change it") {
    house h;
    h.box->save_every = 2;
    h.all.method_ended(*h.driver.peer, *h.box, true);
    h.all.method_ended(*h.driver.peer, *h.box, false); // a const method
    CHECK(h.driver.sent().empty());
    h.value().value = 7;
    h.all.method_ended(*h.driver.peer, *h.box, true);
    REQUIRE(h.driver.sent().size() == 1);
    CHECK(h.driver.sent()[0].kind == rt::detail::message_snapshot);
    wire::reader in(h.driver.sent()[0].body);
    actor_id of;
    CHECK(rt::detail::get_actor_id(in, of));
    CHECK(of == h.id);

    rt::detail::box_of<counter> again(std::in_place);
    rt::detail::actor_terms terms;
    terms.restarts = 1;
    terms.snapshot_every = 3;
    terms.has_snapshot = true;
    CHECK(rt::detail::set_terms(again, terms, in.rest()));
    CHECK(again.value.value == 7);
    CHECK(again.save_every == 3);
    CHECK(again.lasts);
}

TEST_CASE("what save() throws is the outcome of the call, unless that has one already") {
    house h;
    h.box->save_every = 1;
    h.value().is_broken = true;
    CHECK_THROWS_AS(h.all.method_ended(*h.driver.peer, *h.box, true), std::runtime_error);
    h.all.method_failed(*h.driver.peer, *h.box, true); // a line in the log
    CHECK(h.driver.sent().empty());
}

TEST_CASE("an actor leaves after the method that has asked for it, and no other") {
    house h;
    CHECK_THROWS_AS(h.all.leave(), error); // no method runs
    counted_ptr<rt::detail::call_context> asks(
        new rt::detail::call_context(counted_ptr(new rt::detail::runtime_anchor)));
    asks->who.id = call_id({1, 5});
    asks->actor = h.id;
    counted_ptr<rt::detail::call_context> other(
        new rt::detail::call_context(counted_ptr(new rt::detail::runtime_anchor)));
    other->who.id = call_id({1, 6});
    {
        const task_context::use under(asks.get());
        h.all.leave();
    }
    {
        const task_context::use under(other.get());
        h.all.method_ended(*h.driver.peer, *h.box, true);
    }
    CHECK(h.above.left.empty());
    {
        const task_context::use under(asks.get());
        h.all.method_ended(*h.driver.peer, *h.box, true);
    }
    CHECK(h.above.left == std::vector{h.id});
    CHECK(h.all.size() == 0);
    CHECK(h.box->over == std::string_view("has left"));
}

} // namespace rt_local_actors_test
