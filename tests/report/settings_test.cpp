// SPDX-License-Identifier: Apache-2.0
#include <skein/report/settings.hpp>

#include <catch2/catch_test_macros.hpp>

using skein::report::settings;

TEST_CASE("settings are one JSON object, each value as its own type") {
    const std::string folder = "docs";
    const settings given{{"text", folder}, {"name", "a\"b"},         {"layers", 4},
                         {"lr", 0.5},      {"seed", std::size_t{7}}, {"tied", true}};
    CHECK(given.text() ==
          R"({"layers":4,"lr":0.5,"name":"a\"b","seed":7,"text":"docs","tied":true})");
    CHECK(settings().text() == "{}");
    CHECK(settings().empty());
    CHECK(settings({{"a", 1}}).set("a", 2).text() == R"({"a":2})");
    CHECK(settings({{"a", 1}, {"b", 1}}).append({{"b", 2}}).text() == R"({"a":1,"b":2})");
}
