// SPDX-License-Identifier: Apache-2.0
#include <skein/sched/task_environment.hpp>

#include <string>
#include <utility>
#include <vector>

#include <catch2/catch_test_macros.hpp>

using namespace skein;
using namespace skein::sched;

TEST_CASE("variables are read a line at a time, with all that is in a value",
          "[sched][environment]") {
    const auto got = parse_task_environment("B=two words\n\n_A1= x=y \nEMPTY=\n", "/data");
    REQUIRE(got);
    using pair = std::pair<std::string, std::string>;
    CHECK(got->variables == std::vector<pair>{{"B", "two words"}, {"EMPTY", ""}, {"_A1", " x=y "}});
    CHECK(got->folder == "/data");
    const auto text = variables_as_text(*got);
    CHECK(text == "B=two words\nEMPTY=\n_A1= x=y ");
    CHECK(parse_task_environment(text, "/data").value() == *got);
    CHECK(parse_task_environment("", "").value().empty());
}

TEST_CASE("what is no environment is refused with what to write", "[sched][environment]") {
    const auto refused = [](std::string_view env, std::string_view folder = {}) {
        const auto got = parse_task_environment(env, folder);
        REQUIRE_FALSE(got);
        return std::string(got.error().what());
    };
    CHECK(refused("A B").find("has no =") != std::string::npos);
    CHECK(refused("OMP NUM=4").find("no name") != std::string::npos);
    CHECK(refused("1A=4").find("no name") != std::string::npos);
    CHECK(refused("=4").find("no name") != std::string::npos);
    CHECK(refused("SKEIN_TOKEN=4").find("skein's own") != std::string::npos);
    CHECK(refused("CUDA_VISIBLE_DEVICES=").find(".gpus") != std::string::npos);
    CHECK(refused("A=1\nB=2\nA=3").find("A twice") != std::string::npos);
    CHECK(refused({}, "data").find("absolute") != std::string::npos);
    CHECK_FALSE(parse_task_environment({}, "/a\nb"));
    CHECK_FALSE(parse_task_environment(std::string_view("A=\0", 3), {}));
    const auto longest = "A=" + std::string(task_environment::most_bytes - 2, 'x');
    CHECK(parse_task_environment(longest, {}));
    CHECK(parse_task_environment(longest + "x", {}).error().code() == errc::too_large);
    const auto folder = "/" + std::string(task_environment::most_folder_bytes, 'x');
    CHECK(parse_task_environment({}, folder).error().code() == errc::too_large);
}
