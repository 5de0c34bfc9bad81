// SPDX-License-Identifier: Apache-2.0
#include <skein/wire/json.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cstdint>
#include <limits>
#include <string>

using namespace skein;

TEST_CASE("what is not JSON is malformed, with the place") {
    for (const char* text :
         {"", "{", "[1,]", "{\"a\":1,}", "nul", "{\"a\":1} x", "\"\\ud800\"", "\xff"}) {
        const auto parsed = parse_json(std::string_view(text));
        INFO(text);
        REQUIRE_FALSE(parsed);
        CHECK(parsed.error().code() == errc::malformed);
    }
    CHECK(
        std::string(parse_json(std::string_view("[1,]")).error().what()).find("line 1, column 4") !=
        std::string::npos);
}

TEST_CASE("a key named twice is malformed, also deep inside") {
    CHECK(parse_json(std::string_view(R"({"a":1,"a":2})")).error().code() == errc::malformed);
    CHECK(parse_json(std::string_view(R"({"x":[{"a":{"b":1,"b":1}}]})")).error().code() ==
          errc::malformed);
    CHECK(parse_json(std::string_view(R"({"a":{"a":{"a":1}},"b":{"a":1}})")));
}

TEST_CASE("limits of length and depth hold before anything is built") {
    CHECK(parse_json(std::string_view("[1,2,3]"), {.max_bytes = 6}).error().code() ==
          errc::too_large);
    const std::string deep = std::string(100000, '[');
    CHECK(parse_json(std::string_view(deep)).error().code() == errc::too_large);
    CHECK(parse_json(std::string_view("[[[1]]]"), {.max_depth = 3}));
    CHECK(parse_json(std::string_view("[[[[1]]]]"), {.max_depth = 3}).error().code() ==
          errc::too_large);
}

TEST_CASE("every kind of value is built where it stands") {
    const std::string_view text =
        R"({"a":[null,true,-3,18446744073709551615,0.5,"x",[],{}],"b":{"c":{"d":[[1],[2]]}},"e":null})";
    const auto parsed = parse_json(text).value();
    CHECK(dump_json(parsed) == text);
    CHECK(parsed["a"][2].is_number_integer());
    CHECK(parsed["a"][3].get<std::uint64_t>() == UINT64_MAX);
    CHECK(parse_json(std::string_view("7")).value() == 7);
    CHECK(parse_json(std::string_view("1e999")).error().code() == errc::malformed);
}

TEST_CASE("the time that an object of many objects takes grows with its length alone") {
    std::string text = "{";
    constexpr int count = 200'000; // a callback of nlohmann's parser takes minutes
    for (int i = 0; i < count; ++i)
        text +=
            (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":{\"n\":" + std::to_string(i) + "}";
    const auto parsed = parse_json(text + "}").value();
    CHECK(parsed.size() == count);
    CHECK(parsed["12345"]["n"] == 12345);
}

TEST_CASE("equal values give equal text, and doubles survive") {
    const json a = {{"b", 0.1}, {"a", 1e300}}, b = {{"a", 1e300}, {"b", 0.1}};
    CHECK(dump_json(a) == dump_json(b));
    for (double x : {0.1, 1.0 / 3.0, 5e-324, 1.7976931348623157e308, -0.0, 123456789.123456789}) {
        const auto back = parse_json(std::string_view(dump_json(json(x)))).value().get<double>();
        CHECK(std::bit_cast<std::uint64_t>(back) == std::bit_cast<std::uint64_t>(x));
    }
    CHECK(dump_json(json(std::numeric_limits<double>::quiet_NaN())) == "null");
    CHECK(dump_json(ordered_json{{"step", 1}, {"loss", 2}}) == R"({"step":1,"loss":2})");
    CHECK_NOTHROW(dump_json(json("\xff\xfe")));
}

TEST_CASE("members are fetched with their type or an error that names them") {
    const json j = {{"n", 3},    {"x", 0.5},       {"s", "t"},
                    {"neg", -1}, {"list", {1, 2}}, {"mixed", {1, "a"}}};
    CHECK(json_uint(j, "n").value() == 3);
    CHECK(json_double(j, "x").value() == 0.5);
    CHECK(json_double(j, "n").value() == 3.0);
    CHECK(json_string(j, "s").value() == "t");
    CHECK(json_uints(j, "list").value() == std::vector<std::uint64_t>{1, 2});
    CHECK_FALSE(json_uint(j, "neg"));
    CHECK_FALSE(json_uint(j, "x"));
    CHECK_FALSE(json_uint(j, "nothing"));
    CHECK_FALSE(json_uint(json::array(), "n"));
    CHECK_FALSE(json_string(j, "n"));
    CHECK_FALSE(json_uints(j, "mixed"));
    CHECK_FALSE(json_uints(j, "list", 1));
    CHECK(std::string(json_uint(j, "nothing").error().what()).find("'nothing'") !=
          std::string::npos);
}
