// SPDX-License-Identifier: Apache-2.0
#include <skein/net/frame.hpp>

#include "support/frame_decoder.hpp"

#include <catch2/catch_test_macros.hpp>

using namespace skein;
using net::frame;
using net::frame_header;
using skein_test::encode_frame;
using skein_test::frame_decoder;

namespace {
frame make(std::size_t bytes, std::uint64_t id) {
    frame f;
    f.kind = 7;
    f.flags = 3;
    f.id = id;
    f.body.assign(bytes, static_cast<std::byte>(id));
    return f;
}
} // namespace

TEST_CASE("frames come out of the decoder as they went in, for every way of cutting the bytes") {
    byte_buffer all;
    for (std::uint64_t i = 0; i < 5; ++i) append(all, encode_frame(make(i * 13, i), i % 2 == 0));
    for (std::size_t step = 1; step <= all.size(); ++step) {
        frame_decoder decoder(1000);
        std::uint64_t seen = 0;
        for (std::size_t at = 0; at < all.size(); at += step) {
            decoder.feed(byte_span(all).subspan(at, std::min(step, all.size() - at)));
            for (;;) {
                auto next = decoder.next();
                REQUIRE(next);
                if (!*next) break;
                const auto expected = make(seen * 13, seen);
                REQUIRE((*next)->id == seen);
                REQUIRE((*next)->kind == 7);
                REQUIRE((*next)->flags == 3);
                REQUIRE((*next)->body == expected.body);
                ++seen;
            }
        }
        REQUIRE(seen == 5);
    }
}

TEST_CASE("a frame of 4 GiB is refused before anything is allocated") {
    byte_buffer head(frame_header::bytes);
    frame_header h;
    h.length = 0xffffffffu;
    h.encode(head.data());
    frame_decoder decoder(std::size_t{1} << 20);
    decoder.feed(head);
    const auto next = decoder.next();
    REQUIRE_FALSE(next);
    CHECK(next.error().code() == errc::too_large);
    CHECK(next.error().text().find("4294967295") != std::string::npos);
}

TEST_CASE("every flipped bit of a frame is noticed") {
    const auto good = encode_frame(make(20, 9));
    for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
        auto bad = good;
        bad[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
        frame_decoder decoder(1000);
        decoder.feed(bad);
        const auto next = decoder.next();
        REQUIRE_FALSE(next);
        const auto code = next.error().code();
        CHECK(code == errc::corrupt);
    }
}

TEST_CASE("a truncated frame is waited for, not invented") {
    const auto whole = encode_frame(make(50, 1));
    for (std::size_t n = 0; n < whole.size(); ++n) {
        frame_decoder decoder(1000);
        decoder.feed(byte_span(whole).first(n));
        const auto next = decoder.next();
        REQUIRE(next);
        CHECK_FALSE(next->has_value());
    }
}

TEST_CASE("a decoder that has failed stays failed") {
    frame_decoder decoder(10);
    decoder.feed(to_buffer("GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
    CHECK(decoder.next().error().code() == errc::corrupt);
    decoder.feed(encode_frame(make(1, 1)));
    CHECK(decoder.next().error().code() == errc::corrupt);
}

TEST_CASE("take_body moves an owned body and copies a shared one") {
    byte_buffer owned = to_buffer("large");
    net::frame_view view;
    view.body = owned;
    CHECK(view.take_body() == to_buffer("large"));
    CHECK(owned.size() == 5);
    view.owned = &owned;
    CHECK(view.take_body() == to_buffer("large"));
    CHECK(owned.empty());
}
