// SPDX-License-Identifier: Apache-2.0
#include <skein/net/detail/closed_news.hpp>
#include <skein/net/detail/inbox.hpp>

#include <cstdint>
#include <stdexcept>
#include <vector>

#include <catch2/catch_test_macros.hpp>

namespace {

using skein::net::frame_view;
using skein::net::detail::closed_news;
using skein::net::detail::inbox;
using numbers = std::vector<std::uint64_t>;

constexpr std::size_t body_bytes = 76; // 100 with the header

bool deliver(inbox& in, std::uint64_t id) {
    skein::byte_buffer body(body_bytes);
    return in.deliver({1, 0, id, body, &body});
}

} // namespace

TEST_CASE("an inbox is full above its bound, and has room again when half of it was taken") {
    inbox in(250);
    CHECK_FALSE(deliver(in, 1));
    CHECK_FALSE(deliver(in, 2));
    CHECK(deliver(in, 3));
    CHECK(in.is_held());
    CHECK_FALSE(deliver(in, 4)); // what was on its way; it is told once
    CHECK(in.take().id == 1);
    CHECK(in.take().id == 2);
    CHECK_FALSE(in.eases());
    CHECK(in.take().body.size() == body_bytes);
    CHECK(in.eases());
    CHECK_FALSE(in.eases());
    CHECK_FALSE(in.is_held());
    in.clear();
    CHECK(in.is_empty());
}

TEST_CASE("an inbox that is paused and full is held until both have ended") {
    inbox in(50);
    in.pause();
    CHECK(deliver(in, 1));
    CHECK_FALSE(in.resumes()); // it is full
    in.pause();
    (void)in.take();
    CHECK_FALSE(in.eases()); // it is paused
    CHECK(in.is_held());
    CHECK(in.resumes());
    CHECK_FALSE(in.resumes());
    CHECK_FALSE(in.is_held());
}

TEST_CASE("a handler gets what waits, then what arrives; one that it sets gets the next frame") {
    inbox in(1000);
    numbers first, second;
    (void)deliver(in, 1);
    (void)deliver(in, 2);
    in.set_handler([&](const frame_view& f) {
        first.push_back(f.id);
        if (f.id == 2) in.set_handler([&](const frame_view& g) { second.push_back(g.id); });
    });
    (void)deliver(in, 3);
    CHECK(first == numbers{1, 2});
    CHECK(second == numbers{3});
    CHECK(in.is_empty());
    in.set_handler([](const frame_view&) { throw std::runtime_error("not that one"); });
    CHECK_THROWS(deliver(in, 4));
    in.drop_handler();
    (void)deliver(in, 5);
    CHECK_FALSE(in.is_empty());
}

TEST_CASE("what arrives behind discard() is dropped, and holds nothing up") {
    inbox in(50);
    in.pause();
    (void)deliver(in, 1);
    in.discard();
    CHECK_FALSE(in.is_held());
    CHECK_FALSE(deliver(in, 2));
    CHECK(in.take().id == 1);
    CHECK(in.is_empty());
}

TEST_CASE("news of an end are told once, and what is thrown at them stays there") {
    closed_news closed;
    closed.tell(nullptr); // nobody asked
    int told = 0;
    const skein::error why(skein::errc::reset, "cut");
    closed.set([&](const skein::error* e) {
        ++told;
        CHECK(e == &why);
        throw std::runtime_error("not that one");
    });
    closed.tell(&why);
    closed.tell(&why);
    CHECK(told == 1);
}
