// SPDX-License-Identifier: Apache-2.0
#include <skein/proc/task_environment.hpp>
#include <skein/rt/detail/demand_table.hpp>

#include <string>
#include <utility>
#include <vector>

#include <catch2/catch_test_macros.hpp>

using namespace skein;

TEST_CASE("variables are read a line at a time, with all that is in a value", "[rt][environment]") {
    const auto got = proc::parse_task_environment("B=two words\n\n_A1= x=y \nEMPTY=\n", "/data");
    REQUIRE(got);
    using pair = std::pair<std::string, std::string>;
    CHECK(got->variables == std::vector<pair>{{"B", "two words"}, {"EMPTY", ""}, {"_A1", " x=y "}});
    CHECK(got->folder == "/data");
    const auto text = proc::variables_as_text(*got);
    CHECK(text == "B=two words\nEMPTY=\n_A1= x=y ");
    CHECK(proc::parse_task_environment(text, "/data").value() == *got);
    CHECK(proc::parse_task_environment("", "").value().empty());
}

TEST_CASE("what is no environment is refused with what to write", "[rt][environment]") {
    const auto refused = [](std::string_view env, std::string_view folder = {}) {
        const auto got = proc::parse_task_environment(env, folder);
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
    CHECK_FALSE(proc::parse_task_environment({}, "/a\nb"));
    CHECK_FALSE(proc::parse_task_environment(std::string_view("A=\0", 3), {}));
    const auto longest = "A=" + std::string(proc::task_environment::most_bytes - 2, 'x');
    CHECK(proc::parse_task_environment(longest, {}));
    CHECK(proc::parse_task_environment(longest + "x", {}).error().code() == errc::too_large);
    const auto folder = "/" + std::string(proc::task_environment::most_folder_bytes, 'x');
    CHECK(proc::parse_task_environment({}, folder).error().code() == errc::too_large);
}

TEST_CASE("a demand is its environment, too, and keeps it on its way", "[rt][environment]") {
    rt::detail::demand_table table;
    const auto number = [&table](const call_options& how) { return table.number(how).value(); };
    CHECK(number({}) == 1);
    const auto with = number({.env = "A=1\nB=2"});
    CHECK(with > 1);
    CHECK(number({.env = "B=2\nA=1"}) == with);
    CHECK(number({.env = "A=1"}) != with);
    CHECK(number({.env = "A=1\nB=2", .cwd = "/"}) != with);
    CHECK(number({.cpus = 0, .env = "A=1\nB=2"}) != with);
    CHECK_FALSE(table.at(with).only_cpus); // no worker of all tasks has it
    CHECK_FALSE(table.at(with).is_simple);
    CHECK(table.at(with).need.cpu == sched::amount(1));
    CHECK(table.text(with) == "cpu=1\n\nA=1\nB=2");
    for (const auto& how :
         {call_options{.env = "A=1\nB=2"}, call_options{.cwd = "/data"},
          call_options{.gpus = 1, .on = label("zone=a"), .env = "C= @ \nD=", .cwd = "/a b@c"}}) {
        const auto here = number(how);
        rt::detail::demand_table other; // of the driver that a worker asks
        const auto there = other.number_of_text(table.text(here));
        REQUIRE(there);
        CHECK(other.at(*there).env == table.at(here).env);
        CHECK(other.at(*there).label == table.at(here).label);
        CHECK(other.at(*there).need == table.at(here).need);
        CHECK(other.text(*there) == table.text(here));
        CHECK(table.number_of_text(table.text(here)).value() == here);
    }
    CHECK_FALSE(table.number_of_text("cpu=1\nrelative\n"));
    CHECK_FALSE(table.number_of_text("cpu=1\n\nSKEIN_X=1"));
    CHECK_FALSE(table.number({.env = "A"}));
    CHECK_FALSE(table.number({.on = label("a\nb")}));
}
