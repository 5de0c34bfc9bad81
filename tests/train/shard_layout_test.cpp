// SPDX-License-Identifier: Apache-2.0
#include <skein/train/shard_layout.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cmath>
#include <random>

using namespace skein::train;

namespace {

/// Parameters one behind the other, {count, row} each.
std::vector<placed_parameter> place(const std::vector<std::pair<std::int64_t, std::int64_t>>& all,
                                    std::int64_t from, std::int64_t& end) {
    std::vector<placed_parameter> placed;
    for (const auto& [count, row] : all) {
        placed.push_back({from, count, row});
        from += padded_count(count);
    }
    end = from;
    return placed;
}

void check(const std::vector<placed_parameter>& all, flat_range unit, int shards) {
    const auto pieces = cut_unit(all, unit, shards);
    REQUIRE(pieces.size() == static_cast<std::size_t>(shards));
    CHECK(pieces.front().begin == unit.begin);
    CHECK(pieces.back().end == unit.end);
    for (std::size_t r = 0; r < pieces.size(); ++r) {
        CHECK(pieces[r].begin <= pieces[r].end);
        if (r > 0) CHECK(pieces[r].begin == pieces[r - 1].end);
        CHECK((pieces[r].begin - unit.begin) % flat_alignment == 0);
        for (const auto& p : all) {
            const auto mine = overlap({p.offset, p.offset + p.count}, pieces[r]);
            if (mine.empty()) continue;
            CHECK((mine.begin - p.offset) % p.row == 0); // whole rows of every parameter
            CHECK((mine.end - p.offset) % p.row == 0);
        }
    }
}

} // namespace

TEST_CASE("a unit is cut on rows and on 16 elements, adjacent and complete, whatever its shapes") {
    std::mt19937 random(7);
    for (int round = 0; round < 300; ++round) {
        std::vector<std::pair<std::int64_t, std::int64_t>> shapes;
        for (int i = 0, n = static_cast<int>(random() % 6) + 1; i < n; ++i) {
            const std::int64_t row = random() % 3 == 0 ? 1 : random() % 70 + 1;
            shapes.emplace_back(static_cast<std::int64_t>(random() % 40) * row, row);
        }
        std::int64_t end = 0;
        const auto placed = place(shapes, 160, end);
        check(placed, {160, end}, static_cast<int>(random() % 9) + 1);
    }
}

TEST_CASE("the pieces of a transformer block differ by less than one per cent") {
    // GPT-2, 768 wide: norm, attention, norm, feed-forward, with biases.
    const std::int64_t d = 768;
    std::int64_t end = 0;
    const auto block = place({{d, 1},
                              {d, 1},
                              {3 * d * d, d},
                              {3 * d, 1},
                              {d * d, d},
                              {d, 1},
                              {d, 1},
                              {d, 1},
                              {4 * d * d, d},
                              {4 * d, 1},
                              {4 * d * d, 4 * d},
                              {d, 1}},
                             0, end);
    for (const int shards : {2, 3, 8, 64}) {
        check(block, {0, end}, shards);
        for (const auto& piece : cut_unit(block, {0, end}, shards))
            CHECK(std::abs(static_cast<double>(piece.size()) * shards / double(end) - 1) < 0.05);
    }
    for (const auto& piece : cut_unit(block, {0, end}, 8))
        CHECK(std::abs(static_cast<double>(piece.size()) * 8 / double(end) - 1) < 0.01);
}

TEST_CASE("more ranks than rows leave some ranks without a piece") {
    std::int64_t end = 0;
    const auto one = place({{2 * 1000, 1000}}, 0, end);
    int with = 0;
    for (const auto& piece : cut_unit(one, {0, end}, 5)) with += piece.empty() ? 0 : 1;
    CHECK(with >= 1);
    CHECK(with <= 2);
    check(one, {0, end}, 5);
}

TEST_CASE("an overlap of ranges that do not meet is empty") {
    CHECK(overlap({0, 10}, {10, 20}).empty());
    CHECK(overlap({5, 10}, {0, 7}) == flat_range{5, 7});
    CHECK(overlap({5, 5}, {0, 7}).empty());
}
