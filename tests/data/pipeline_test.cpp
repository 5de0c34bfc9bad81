// SPDX-License-Identifier: Apache-2.0
#include <skein/data/detail/row_program.hpp>
#include <skein/data/pipeline.hpp>

#include <array>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include <catch2/catch_test_macros.hpp>

namespace pipeline_test {

using namespace skein;

struct pair {
    std::int64_t a = 0;
    float b = 0;
};
pair make(std::int64_t i) { return {i, float(i) / 2}; }
pair shift(pair p, data::draws& random) {
    p.b += random.uniform(1, 2);
    return p;
}
bool small(const pair& p) { return p.a < 3; }
template <int By, class T>
pair move_by(const pair& p, data::draws&) {
    return {p.a + By, p.b};
}

template <class P>
data::detail::cells row_of(const P& plan, std::uint64_t sample, std::uint64_t epoch = 0) {
    const data::detail::typed_program<P> program(plan);
    data::detail::cells out;
    if (!program.make(1, epoch, sample, out)) out.clear();
    return out;
}

TEST_CASE("a plan's type says what its rows are") {
    const auto plan = data::range(9) | data::map<&make>() | data::filter<&small>();
    static_assert(std::is_same_v<data::row_of<decltype(plan)>, pair>);
    static_assert(data::detail::has_filter<std::remove_const_t<decltype(plan)>>);
    CHECK(plan.size() == 9);
    CHECK(plan.describe() == "range(9) | map(make) | filter(small)");
    data::arena memory;
    const data::arena_scope scope(memory);
    const auto row = row_of(plan, 2);
    REQUIRE(row.size() == 2);
    CHECK(row[0].type == data::number_type::i64);
    CHECK(*reinterpret_cast<const float*>(row[1].data) == 1.0f);
    CHECK(row_of(plan, 3).empty());
}

TEST_CASE("functions that are made of one template have names of their own") {
    const auto of = [](const auto& plan) { return plan.describe(); };
    CHECK(of(data::range(9) | data::map<&make>() | data::map<&move_by<64, std::vector<int>>>())
              .starts_with("range(9) | map(make) | map(move_by<64, std::vector<int"));
    CHECK(of(data::range(9) | data::map<&make>() | data::map<&move_by<64, int>>()) ==
          "range(9) | map(make) | map(move_by<64, int>)");
    CHECK(of(data::range(9) | data::map<[](std::int64_t i) { return make(i); }>()) ==
          "range(9) | map(lambda)");
}

enum class corner { left = 3 };
struct scale {
    float by = 1;
    std::array<int, 2> shift = std::array<int, 2>();
    std::string name{};
    corner from = corner::left;
    pair operator()(const pair& p) const { return {p.a * 2 + shift[1], p.b * by}; }
};
struct below {
    std::int64_t most = 0;
    bool operator()(const pair& p) const { return p.a < most; }
};

TEST_CASE("functions with fields are told apart by them") {
    const auto plan = data::range(9) | data::map<&make>() |
                      data::map(scale{.by = 0.1f, .shift = {1, -2}, .name = "x"}) |
                      data::filter(below{6}) | data::map([](const pair& p) { return p.a; });
    CHECK(plan.describe() == "range(9) | map(make) | map(scale(0.1, [1, -2], \"x\", 3)) | "
                             "filter(below(6)) | map(lambda)");
    data::arena memory;
    const data::arena_scope scope(memory);
    const data::detail::typed_program program(plan);
    data::detail::cells out;
    REQUIRE(program.make(1, 0, 3, out));
    CHECK(*reinterpret_cast<const std::int64_t*>(out[0].data) == 4);
    CHECK_FALSE(program.make(1, 0, 4, out));
}

template <int By>
struct times {
    pair operator()(const pair& p) const { return {p.a * By, p.b}; }
};
struct shifted {
    std::uint64_t count = 0;
    int by = 0;
    std::uint64_t size() const { return count; }
    std::int64_t read(std::uint64_t i) const { return static_cast<std::int64_t>(i) + by; }
};

TEST_CASE("sources and functions of templates are told apart by what they were made with") {
    const auto of = [](int by, auto f) {
        return (shifted{9, by} | data::map<&make>() | data::map(f)).describe();
    };
    CHECK(of(1, times<2>{}) == "shifted(9, 1) | map(make) | map(times<2>)");
    CHECK(of(1, times<2>{}) != of(1, times<3>{}));
    CHECK(of(1, times<2>{}) != of(7, times<2>{}));
}

TEST_CASE("draws differ by sample, epoch and operator, and by nothing else") {
    const auto once = data::range(9) | data::map<&make>() | data::map<&shift>();
    const auto twice = once | data::map<&shift>();
    const auto shipped = data::range(9) | data::map<&make>() | data::map<&shift>() |
                         data::on(data::helpers{}) | data::map<&shift>();
    data::arena memory;
    const data::arena_scope scope(memory);
    const auto value = [](const data::detail::cells& row) {
        return *reinterpret_cast<const float*>(row.at(1).data);
    };
    CHECK(value(row_of(once, 2)) == value(row_of(once, 2)));
    CHECK(value(row_of(once, 2)) != value(row_of(once, 2, 1)));
    CHECK(value(row_of(once, 2)) - 1 != value(row_of(once, 4)) - 2);
    const auto first = value(row_of(once, 2)) - 1, second = value(row_of(twice, 2)) - 1 - first;
    CHECK(first != second);
    CHECK(value(row_of(twice, 2)) == value(row_of(shipped, 2)));
}

TEST_CASE("take, skip and repeat") {
    const auto plan = data::range(100) | data::map<&make>() | data::skip(10) | data::take(5) |
                      data::repeat<3>(data::map<&shift>());
    CHECK(plan.size() == 5);
    const data::detail::typed_program program(plan);
    CHECK(program.sample_at(1, 0, 4) == 14);
    CHECK((data::range(3) | data::skip(7) | data::map<&make>()).size() == 0);
    CHECK(plan.describe() ==
          "range(100) | skip(10) | take(5) | map(make) | map(shift) | map(shift) | map(shift)");
}

} // namespace pipeline_test
