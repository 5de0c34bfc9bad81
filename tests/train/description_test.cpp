// SPDX-License-Identifier: Apache-2.0
#include <skein/train/description.hpp>

#include <catch2/catch_test_macros.hpp>

using skein::train::description;

TEST_CASE("settings keep their order, and numbers become the shortest text that reads back") {
    description d{.name = "it"};
    d.add("rate", 0.1)
        .add("steps", 7u)
        .add("minus", -3)
        .add("nesterov", true)
        .add("form", "linear");
    const description wanted{.name = "it",
                             .settings = {{"rate", "0.1"},
                                          {"steps", "7"},
                                          {"minus", "-3"},
                                          {"nesterov", "true"},
                                          {"form", "linear"}}};
    CHECK(d == wanted);
}
