// SPDX-License-Identifier: Apache-2.0
#include <skein/core/byte_line.hpp>
#include <skein/core/philox.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

using namespace skein;

namespace {

byte_buffer piece_of(std::size_t size, std::uint64_t number) {
    byte_buffer piece(size);
    for (std::size_t i = 0; i < size; ++i) piece[i] = static_cast<std::byte>(number + i);
    return piece;
}
bool is_same(byte_span a, const byte_buffer& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

TEST_CASE("pieces of any size come out as they went in, in order", "[core][byte_line]") {
    philox_stream random(7);
    byte_line line;
    std::deque<byte_buffer> model;
    std::uint64_t number = 0;
    for (int round = 0; round < 200; ++round) {
        const bool grows = round % 3 != 2;
        for (int i = 0; i < 100; ++i) {
            if (model.empty() || random.below(10) < (grows ? 7U : 2U)) {
                const auto size = 1 + static_cast<std::size_t>(random.below(
                                          random.below(8) == 0 ? byte_line::most_bytes : 60));
                model.push_back(piece_of(size, ++number));
                line.push(model.back());
            } else {
                REQUIRE(is_same(line.take(model.front().size()), model.front()));
                model.pop_front();
            }
        }
        line.look_ahead();
    }
    while (!model.empty()) {
        REQUIRE(is_same(line.take(model.front().size()), model.front()));
        model.pop_front();
    }
}

TEST_CASE("a short line takes little memory, and one that is empty gives it back",
          "[core][byte_line]") {
    byte_line line;
    CHECK(line.capacity() == 0);
    line.push(piece_of(40, 1));
    CHECK(line.capacity() <= 256);
    for (std::uint64_t i = 2; i <= 10'000; ++i) line.push(piece_of(40, i));
    CHECK(line.capacity() < 40 * 10'000 + (std::size_t{32} << 10));
    for (std::uint64_t i = 1; i <= 5'000; ++i) (void)line.take(40);
    CHECK(line.capacity() < 40 * 5'000 + (std::size_t{48} << 10));
    byte_line other = std::move(line);
    CHECK(is_same(other.take(40), piece_of(40, 5'001)));
    other.clear();
    CHECK(other.capacity() == 0);
    other.push(piece_of(1024, 3));
    CHECK(is_same(other.take(1024), piece_of(1024, 3)));
}

} // namespace
