// SPDX-License-Identifier: Apache-2.0
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <catch2/catch_test_macros.hpp>

#include <array>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <optional>

#include "messages.hpp"

namespace wire = skein::wire;
using namespace wire_test;
using skein::byte_buffer;
using skein::byte_span;
using skein::errc;

// Counts what decoders allocate, to prove that hostile lengths allocate nothing. The definitions
// are weak because clang's sanitizers bring their own, which win: then nothing is counted.
namespace {
std::size_t allocated_bytes = 0;
std::size_t largest_allocation = 0;
} // namespace
[[gnu::noinline, gnu::weak]] void* operator new(std::size_t n) {
    allocated_bytes += n;
    if (n > largest_allocation) largest_allocation = n;
    if (void* p = std::malloc(n == 0 ? 1 : n)) return p;
    throw std::bad_alloc();
}
[[gnu::noinline, gnu::weak]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline, gnu::weak]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define WIRE_TEST_SANITIZED 1
#endif
#endif
#if !defined(WIRE_TEST_SANITIZED)
TEST_CASE("allocations are counted in this program") {
    allocated_bytes = 0;
    const auto value = std::make_unique<std::array<char, 1000>>();
    asm volatile("" : : "r"(value.get()) : "memory"); // else the compiler drops the allocation
    CHECK(allocated_bytes >= sizeof *value);
}
#endif

TEST_CASE("everything that travels comes back equal") {
    const auto original = make_everything();
    const auto bytes = wire::encode(original);
    const auto back = wire::decode<everything>(bytes);
    REQUIRE(back);
    CHECK(*back == original);

    everything into;
    REQUIRE(wire::decode(bytes, into));
    CHECK(into == original);
}

TEST_CASE("default values come back equal and overwrite what was there") {
    auto into = make_everything();
    REQUIRE(wire::decode(wire::encode(everything{}), into));
    CHECK(into == everything{});
}

TEST_CASE("a message cut at any byte is malformed, never a value") {
    const auto bytes = wire::encode(make_everything());
    for (std::size_t n = 0; n < bytes.size(); ++n) {
        const byte_buffer cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
        const auto back = wire::decode<everything>(cut);
        REQUIRE_FALSE(back);
        REQUIRE(back.error().code() == errc::malformed);
    }
}

TEST_CASE("bytes left over are malformed") {
    auto bytes = wire::encode(std::uint16_t{5});
    bytes.push_back(std::byte{0});
    const auto back = wire::decode<std::uint16_t>(bytes);
    REQUIRE_FALSE(back);
    CHECK(back.error().text() == "decode failed at byte 2 of 3: 1 bytes left over");
}

TEST_CASE("a flipped bit anywhere gives a value or an error, and nothing worse") {
    const auto bytes = wire::encode(make_everything());
    std::size_t refused = 0;
    for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
        auto flipped = bytes;
        flipped[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
        if (!wire::decode<everything>(flipped)) ++refused;
    }
    CHECK(refused > 0);
}

TEST_CASE("hostile lengths are refused before anything is allocated") {
    for (const std::uint64_t length :
         {std::uint64_t{1000}, std::uint64_t{1} << 32, std::uint64_t{1} << 61,
          std::numeric_limits<std::uint64_t>::max()}) {
        wire::writer out;
        out.varint(length);
        out.raw(skein::as_bytes("12345678"));
        const auto bytes = std::move(out).take();
        largest_allocation = 0;
        CHECK_FALSE(wire::decode<std::string>(bytes));
        CHECK_FALSE(wire::decode<std::vector<double>>(bytes));
        CHECK_FALSE(wire::decode<std::vector<std::string>>(bytes));
        CHECK_FALSE(wire::decode<std::vector<padded>>(bytes));
        CHECK_FALSE(wire::decode<std::vector<bool>>(bytes));
        const bool map_is_ok = wire::decode<std::map<std::string, int>>(bytes).has_value();
        CHECK_FALSE(map_is_ok);
        CHECK_FALSE(wire::decode<std::span<const float>>(bytes));
        CHECK(largest_allocation < 512); // messages of errors, no elements
    }
}

TEST_CASE("elements that are large in memory are paid for as they are read") {
    // 100,000 announced, present as bytes, but the third is malformed: no room for all is made.
    wire::writer out;
    out.varint(100'000);
    out.varint(0);
    out.varint(0);
    for (int i = 0; i < 100'000; ++i) out.fixed(std::uint8_t{0xFF});
    const auto bytes = std::move(out).take();
    largest_allocation = 0;
    CHECK_FALSE(wire::decode<std::vector<std::string>>(bytes));
    CHECK(largest_allocation <= 8192);
}

TEST_CASE("values that nest deeper than the limit are refused") {
    tree deep;
    for (int i = 0; i < 100; ++i) {
        tree above;
        above.children.push_back(std::move(deep));
        deep = std::move(above);
    }
    wire::limits wide;
    wide.max_depth = 200;
    const auto bytes = wire::encode(deep, wide);
    const auto refused = wire::decode<tree>(bytes);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code() == errc::too_large);
    const auto back = wire::decode<tree>(bytes, wide);
    REQUIRE(back);
    CHECK(*back == deep);
}

TEST_CASE("a container above the limit of elements is refused") {
    wire::limits few;
    few.max_elements = 3;
    const auto bytes = wire::encode(std::vector<int>{1, 2, 3, 4});
    const auto refused = wire::decode<std::vector<int>>(bytes, few);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code() == errc::too_large);
}

TEST_CASE("values outside their range are malformed") {
    const byte_buffer two = {std::byte{2}};
    CHECK_FALSE(wire::decode<bool>(two));
    CHECK_FALSE(wire::decode<std::optional<std::monostate>>(two));
    const bool third = wire::decode<std::variant<std::monostate, bool>>(two).has_value();
    CHECK_FALSE(third);
    wire::writer twice;
    twice.varint(2);
    twice.fixed(std::uint8_t{7});
    twice.fixed(std::uint8_t{7});
    CHECK_FALSE(wire::decode<std::set<std::uint8_t>>(twice.bytes()));
}

TEST_CASE("spans and string views are views into the message") {
    const std::vector<float> values = {1.5f, 2.5f, 3.5f};
    const std::vector<point> points = {{1, 2.0f}, {3, 4.0f}};
    const auto blob = skein::to_buffer("some bytes");
    views out;
    out.odd = 1;
    out.name = "named";
    out.values = values;
    out.points = points;
    out.blob = blob;
    const auto bytes = wire::encode(out);
    const auto inside = [&](const void* p) {
        const auto* at = static_cast<const std::byte*>(p);
        return at >= bytes.data() && at < bytes.data() + bytes.size();
    };

    allocated_bytes = 0;
    const auto back = wire::decode<views>(bytes);
    CHECK(allocated_bytes == 0);
    REQUIRE(back);
    CHECK(back->name == "named");
    CHECK(inside(back->name.data()));
    REQUIRE(back->values.size() == 3);
    CHECK(inside(back->values.data()));
    CHECK(back->values[2] == 3.5f);
    REQUIRE(back->points.size() == 2);
    CHECK(back->points[1] == points[1]);
    CHECK(inside(back->points.data()));
    CHECK(skein::to_string(back->blob) == "some bytes");

    const auto owned = wire::decode<owners>(bytes);
    REQUIRE(owned);
    CHECK(owned->values == values);
    CHECK(owned->points == points);
}

TEST_CASE("views need an aligned message; owners do not") {
    const std::vector<double> values = {1, 2};
    const auto bytes = wire::encode(values);
    byte_buffer shifted(1);
    skein::append(shifted, bytes);
    const auto misaligned = byte_span(shifted).subspan(1);
    const auto refused = wire::decode<std::span<const double>>(misaligned);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code() == errc::invalid_argument);
    const auto owned = wire::decode<std::vector<double>>(misaligned);
    REQUIRE(owned);
    CHECK(*owned == values);
}

TEST_CASE("a message inside a message keeps its alignment") {
    const std::vector<double> values = {1, 2, 3};
    const auto inner = wire::encode(values);
    const auto outer =
        wire::encode(std::tuple<std::uint8_t, std::string, byte_buffer>(1, "odd", inner));
    using opened = std::tuple<std::uint8_t, std::string, std::span<const std::byte>>;
    const auto back = wire::decode<opened>(outer);
    REQUIRE(back);
    const auto view = wire::decode<std::span<const double>>(std::get<2>(*back));
    REQUIRE(view);
    CHECK((*view)[2] == 3.0);
}

TEST_CASE("padding that is not zero is malformed") {
    auto bytes = wire::encode(std::vector<std::uint32_t>{1});
    bytes[2] = std::byte{1};
    CHECK_FALSE(wire::decode<std::vector<std::uint32_t>>(bytes));
}

TEST_CASE("an error travels with all its parts") {
    auto problem = skein::error(errc::worker_lost, "call 7 may have run");
    problem.with_where("node-2").with_cause("killed by signal 9").with_hint("retry it");
    skein::error back(errc::unknown, "");
    REQUIRE(wire::decode(wire::encode(problem), back));
    CHECK(back.code() == errc::worker_lost);
    CHECK(back.text() == problem.text());
    CHECK(back.where() == problem.where());
    CHECK(back.cause() == problem.cause());
    CHECK(back.hint() == problem.hint());
    CHECK(std::string(back.what()) == problem.what());
}

TEST_CASE("results travel as a value or as an error") {
    outcome sent;
    sent.number = 5;
    sent.done = skein::error(errc::timeout, "too late");
    sent.problem = skein::error(errc::io, "disk");
    const auto back = wire::decode<outcome>(wire::encode(sent));
    REQUIRE(back);
    REQUIRE(back->number);
    CHECK(*back->number == 5);
    REQUIRE_FALSE(back->done);
    CHECK(back->done.error().code() == errc::timeout);
    REQUIRE(back->problem);
    CHECK(back->problem->text() == "disk");

    const auto failed = wire::decode<skein::result<std::string>>(
        wire::encode(skein::result<std::string>(skein::error(errc::closed, "gone"))));
    REQUIRE(failed);
    REQUIRE_FALSE(*failed);
    CHECK(failed->error().code() == errc::closed);
}

TEST_CASE("values one after the other are read with one reader") {
    wire::writer out;
    wire::encode(out, std::uint8_t{1});
    wire::encode(out, std::vector<double>{2.5});
    const auto bytes = std::move(out).take();
    wire::reader in(bytes);
    const auto first = wire::decode<std::uint8_t>(in);
    const auto second = wire::decode<std::vector<double>>(in);
    REQUIRE(first);
    REQUIRE(second);
    CHECK((*second)[0] == 2.5);
    CHECK(in.finish());
    const auto third = wire::decode<std::uint8_t>(in);
    REQUIRE_FALSE(third);
    CHECK(third.error().code() == errc::malformed);
}

TEST_CASE("elements that are larger in memory than on the wire are paid from max_memory") {
    using large = std::optional<std::array<double, 16>>; // one byte on the wire when empty
    const std::vector<large> many(1000);
    const auto bytes = wire::encode(many);
    REQUIRE(bytes.size() < 1010);
    wire::limits bounds;
    bounds.max_memory = 1000 * sizeof(large);
    CHECK(wire::decode<std::vector<large>>(bytes, bounds));
    bounds.max_memory -= 1;
    const auto refused = wire::decode<std::vector<large>>(bytes, bounds);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code() == errc::too_large);

    // The sum counts, not each container; maps and errors are counted too.
    const std::vector<std::vector<large>> parts(10, std::vector<large>(100));
    CHECK_FALSE(wire::decode<std::vector<std::vector<large>>>(wire::encode(parts), bounds));
    const std::map<std::uint8_t, large> keyed = {{1, large()}, {2, large()}, {3, large()}};
    bounds.max_memory = 2 * sizeof(large);
    CHECK_FALSE(wire::decode<std::map<std::uint8_t, large>>(wire::encode(keyed), bounds));
    const skein::result<int> bad = skein::error(errc::io, "");
    const std::vector<skein::result<int>> failed(10, bad);
    bounds.max_memory = 1000;
    CHECK_FALSE(wire::decode<std::vector<skein::result<int>>>(wire::encode(failed), bounds));

    // Text and numbers take what they take on the wire.
    bounds.max_memory = 0;
    CHECK(wire::decode<std::vector<double>>(wire::encode(std::vector<double>(1000)), bounds));
    CHECK(wire::decode<std::string>(wire::encode(std::string(1000, 'x')), bounds));
}
