// SPDX-License-Identifier: Apache-2.0
#include <skein/core/fields.hpp>

#include <catch2/catch_test_macros.hpp>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace fields_test {
struct settings {
    int steps = 3;
    std::string name = "x";
    std::array<int, 2> sizes{};
};
template <class T>
struct box {
    T value_in_a_box{};
    std::vector<T> more_;
};
struct move_only {
    std::unique_ptr<int> owner;
    std::optional<box<double>> nested;
    std::variant<int, std::string> either;
};
struct empty {};
struct with_base : settings {
    int more = 0;
};
struct with_empty_base : empty {
    int more = 0;
};
struct with_array {
    int before = 0;
    float at[3] = {};
    std::string after;
};
struct only_array {
    int at[2] = {};
};
struct with_std_array {
    std::array<int, 3> at{};
    int after = 0;
};
struct explicit_default {
    explicit explicit_default(int n = 0) : value(n) {}
    int value;
};
struct with_explicit_default {
    int before;
    explicit_default middle;
    double after;
};
struct tree {
    std::vector<tree> below;
    int value = 0;
};
class with_constructor {
public:
    explicit with_constructor(int v) : v_(v) {}
    int v_;
};
} // namespace fields_test
using namespace fields_test;

TEST_CASE("fields are counted, also nested and move-only ones") {
    STATIC_CHECK(skein::field_count<settings> == 3);
    STATIC_CHECK(skein::field_count<box<int>> == 2);
    STATIC_CHECK(skein::field_count<move_only> == 3);
    STATIC_CHECK(skein::field_count<empty> == 0);
}

TEST_CASE("names are those of the source") {
    STATIC_CHECK(skein::field_name<settings, 0>() == "steps");
    STATIC_CHECK(skein::field_name<settings, 2>() == "sizes");
    STATIC_CHECK(skein::field_name<box<std::string>, 0>() == "value_in_a_box");
    STATIC_CHECK(skein::field_name<box<std::string>, 1>() == "more_");
    STATIC_CHECK(skein::field_name<move_only, 0>() == "owner");
    STATIC_CHECK(skein::field_name<move_only, 2>() == "either");
}

TEST_CASE("tie_fields gives references") {
    settings s;
    std::get<1>(skein::tie_fields(s)) = "changed";
    CHECK(s.name == "changed");
}

TEST_CASE("a class with a base or a C array has no fields: PFR would end with an error, or count "
          "elements") {
    STATIC_CHECK_FALSE(skein::plain_aggregate<with_base>);
    STATIC_CHECK_FALSE(skein::plain_aggregate<with_empty_base>);
    STATIC_CHECK_FALSE(skein::plain_aggregate<with_array>);
    STATIC_CHECK_FALSE(skein::plain_aggregate<only_array>);
    STATIC_CHECK(skein::plain_aggregate<with_std_array>);
    STATIC_CHECK(skein::plain_aggregate<with_explicit_default>);
    STATIC_CHECK(skein::plain_aggregate<tree>);
}

TEST_CASE("only plain aggregates have fields") {
    STATIC_CHECK(skein::plain_aggregate<settings>);
    STATIC_CHECK(skein::plain_aggregate<empty>);
    STATIC_CHECK_FALSE(skein::plain_aggregate<with_constructor>);
    STATIC_CHECK_FALSE(skein::plain_aggregate<std::array<int, 2>>);
    STATIC_CHECK_FALSE(skein::plain_aggregate<int>);
    STATIC_CHECK_FALSE(skein::plain_aggregate<std::string>);
}
