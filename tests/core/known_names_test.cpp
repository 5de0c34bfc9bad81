// SPDX-License-Identifier: Apache-2.0
#include <skein/core/known_names.hpp>

#include <map>
#include <string>
#include <vector>

#include <catch2/catch_test_macros.hpp>

using skein::known_names;

TEST_CASE("names that there are stand in a list, a long one ends with a number") {
    CHECK(known_names(std::vector<std::string>{}, "none has a name") == "none has a name");
    CHECK(known_names(std::vector<std::string>{"loss"}) == "there are: \"loss\"");
    CHECK(known_names(std::map<std::string, int>{{"b", 1}, {"a", 2}}) == "there are: \"a\", \"b\"");
    std::vector<std::string> many;
    for (int i = 0; i < 11; ++i) many.push_back(std::to_string(i));
    const auto text = known_names(many);
    CHECK(text.find("\"7\" and 3 more") != text.npos);
    CHECK(text.find("\"8\"") == text.npos);
}

TEST_CASE("values of a range are joined with what stands between them") {
    CHECK(skein::joined(std::vector<std::string>{"", "a", "b"}, "; ") == "; a; b");
    CHECK(skein::joined(std::vector<int>{3, 1}, ", ") == "3, 1");
    CHECK(skein::joined(std::vector<int>{}, ", ").empty());
}

TEST_CASE("a name in a list moves no cursor and rings no bell") {
    CHECK(known_names(std::vector<std::string>{"a\x1b[2J\n"}) == "there are: \"a?[2J?\"");
}
