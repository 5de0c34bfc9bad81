// SPDX-License-Identifier: Apache-2.0
#include <skein/rt/detail/driver_news.hpp>
#include <skein/rt/detail/message.hpp>
#include <skein/rt/detail/peer.hpp>
#include <skein/rt/detail/replies.hpp>
#include <skein/rt/detail/runtime_mark.hpp>
#include <skein/wire/encode.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <catch2/catch_test_macros.hpp>

#include "objects/store_support.hpp"
#include "rt/fake_channel.hpp"

namespace rt_replies_test {

using namespace skein;
using namespace skein::rt;
using rt_test::fake_channel;

namespace {

struct keeper final : rt::detail::reply_events {
    void tell_holds() override {
        ++told;
        (void)borrowed.tell();
    }
    rt::detail::kept_actors keep_lent(const rt::detail::lent_actors&) override { return {}; }
    void send_along(rt::detail::kept_actors) override {}
    rt::detail::borrows<actor_id> borrowed;
    int told = 0;
};

struct process {
    keeper above;
    counted_ptr<rt::detail::runtime_anchor> home{new rt::detail::runtime_anchor};
    rt::detail::replies out{{"worker-0", "here", 7}, home, above.borrowed, above};
};

constexpr auto seven = [](wire::writer& to) { wire::encode(to, 7); };
constexpr auto large = [](wire::writer& to) { wire::encode(to, std::string(100'000, 'x')); };

} // namespace

TEST_CASE("a reply says whether it is a value or a failure, and whose it is") {
    process p;
    auto to = rt_test::peer_at(rt::detail::peer_role::program);
    p.out.reply(*to.peer, slot_id(5), seven);
    p.out.reply_failure(*to.peer, slot_id(6), {error(errc::io, "no disk"), nullptr});
    REQUIRE(to.sent().size() == 2);
    CHECK(to.sent()[0].kind == rt::detail::message_reply);
    CHECK(to.sent()[0].flags == rt::detail::reply_ok);
    CHECK(to.sent()[0].id == 5);
    CHECK(to.sent()[1].flags == rt::detail::reply_failed);
    CHECK(rt::detail::decode_failure(to.sent()[1].body).what.text() == "no disk");
}

TEST_CASE("nobody is told an outcome over a link that has ended") {
    process p;
    auto to = rt_test::peer_at(rt::detail::peer_role::program);
    to.wire->abort(error(errc::closed, "over"));
    bool is_encoded = false;
    p.out.reply(*to.peer, slot_id(5), [&](wire::writer&) { is_encoded = true; });
    CHECK_FALSE(is_encoded);
    CHECK(to.sent().empty());
}

TEST_CASE("a value with handles names their actors, each once") {
    process p;
    auto to = rt_test::peer_at(rt::detail::peer_role::program);
    const actor_id one({1, 2});
    p.out.reply(*to.peer, slot_id(1), [&](wire::writer& w) {
        seven(w);
        p.out.lend(one);
        p.out.lend(one);
    });
    p.out.reply(*to.peer, slot_id(2), seven);
    REQUIRE(to.sent().size() == 2);
    CHECK(to.sent()[0].flags == rt::detail::reply_lends);
    rt::detail::lending_reply parts;
    REQUIRE(parts.decode(to.sent()[0].body));
    CHECK(parts.actors == std::vector{one});
    CHECK(to.sent()[1].flags == rt::detail::reply_ok); // of the next value they are not
}

TEST_CASE("a reply to another worker does not overtake what its driver was told") {
    process p;
    auto driver = rt_test::peer_at(rt::detail::peer_role::program);
    auto other = rt_test::peer_at(rt::detail::peer_role::accepted);
    p.out.follow(driver.peer.get());
    p.out.reply(*other.peer, slot_id(1), seven);
    CHECK(other.sent().size() == 1);
    p.out.told_driver();
    p.out.reply(*other.peer, slot_id(2), seven);
    CHECK(other.sent().size() == 1);
    REQUIRE(driver.sent().size() == 1);
    CHECK(driver.sent()[0].kind == rt::detail::message_relay);
    CHECK(driver.sent()[0].id == 2);
    p.out.reply(*other.peer, slot_id(3), seven);
    CHECK(other.sent().size() == 2);
}

TEST_CASE("a reply that waits for the store takes the way that was its when its call ended") {
    objects_test::world w(std::uint64_t{8} << 20);
    w.run([](objects_test::world& w) -> task<void> {
        auto joining = w.join("a");
        const auto user = co_await joining;
        process p;
        p.out.objects().use(user->client);
        auto driver = rt_test::peer_at(rt::detail::peer_role::program);
        auto other = rt_test::peer_at(rt::detail::peer_role::accepted, 9);
        p.out.follow(driver.peer.get());
        const auto settle = [] { return sleep_for(std::chrono::seconds(1)); };

        p.out.told_driver(); // by this call
        p.out.reply(*other.peer, slot_id(1), large, true);
        p.out.reply(*other.peer, slot_id(2), seven);
        REQUIRE(other.sent().size() == 1);
        CHECK(other.sent()[0].id == 2);
        auto first = settle();
        co_await first;
        CHECK(other.sent().size() == 1);
        REQUIRE(driver.sent().size() == 1);
        CHECK(driver.sent()[0].kind == rt::detail::message_relay);
        CHECK(driver.sent()[0].flags == rt::detail::reply_object);
        CHECK(driver.sent()[0].id == 1);

        // One that had begun before the news, and is forgotten when its reply leaves.
        std::unique_ptr<rt::detail::running_call> made(new rt::detail::running_call);
        made->news = p.out.news().of_new_call();
        other.peer->inbound.running.enter(slot_id(3), std::move(made));
        p.out.told_driver();
        p.out.reply(*other.peer, slot_id(4), seven);
        CHECK(driver.sent().size() == 2);
        p.out.reply(*other.peer, slot_id(3), large, true);
        other.peer->inbound.running.erase(slot_id(3));
        auto second = settle();
        co_await second;
        CHECK(other.sent().size() == 1);
        REQUIRE(driver.sent().size() == 3);
        CHECK(driver.sent()[2].id == 3);

        // News that are younger than the end of its call do not concern it.
        p.out.reply(*other.peer, slot_id(5), large, true);
        p.out.told_driver();
        auto third = settle();
        co_await third;
        CHECK(other.sent().size() == 2);
        p.out.reply(*other.peer, slot_id(6), seven);
        CHECK(driver.sent().size() == 4);

        auto over = p.out.objects().close();
        co_await over;
    });
}

TEST_CASE("handles that came as arguments are told before any reply leaves") {
    process p;
    auto driver = rt_test::peer_at(rt::detail::peer_role::program);
    p.out.follow(driver.peer.get());
    p.above.borrowed.borrow(actor_id({9, 1}));
    p.out.reply(*driver.peer, slot_id(1), seven);
    p.out.reply(*driver.peer, slot_id(2), seven);
    CHECK(p.above.told == 1);
    CHECK(driver.sent().size() == 2);
}

TEST_CASE("a driver hears once that a worker has calls at others, and when they are over") {
    process p;
    auto driver = rt_test::peer_at(rt::detail::peer_role::program);
    p.out.follow(driver.peer.get());
    auto& news = p.out.news();
    news.call_began();
    CHECK_FALSE(news.call_ended()); // it never knew
    news.call_began();
    news.call_began();
    p.out.reply(*driver.peer, slot_id(1), seven);
    p.out.reply(*driver.peer, slot_id(2), seven);
    REQUIRE(driver.sent().size() == 3);
    CHECK(driver.sent()[0].kind == rt::detail::message_busy);
    CHECK_FALSE(news.call_ended());
    CHECK(news.call_ended());
}

TEST_CASE("news concerns the calls that had begun by then") {
    rt::detail::driver_news news;
    const auto first = news.of_new_call();
    news.told();
    const auto told_it = news.of_new_call(); // its own arguments may have been the news
    CHECK(news.take_next());
    CHECK_FALSE(news.take_next());
    CHECK(news.came_after(first));
    CHECK(news.came_after(told_it));
    CHECK_FALSE(news.came_after(news.of_new_call()));
}

TEST_CASE("a mark names a runtime on this thread, and the one before it afterwards") {
    CHECK(rt::detail::replying_mark::current() == nullptr);
    {
        const rt::detail::replying_mark none(nullptr);
        CHECK(rt::detail::replying_mark::current() == nullptr);
    }
}

} // namespace rt_replies_test
