// SPDX-License-Identifier: Apache-2.0
#include <skein/cluster/detail/start_failures.hpp>
#include <tests/support/log_lines.hpp>

#include <chrono>
#include <string>

#include <catch2/catch_test_macros.hpp>

namespace start_failures_test {

using namespace skein;
using namespace std::chrono_literals;
using cluster::detail::start_failures;

const std::string node = "n1", gone = "there is no /app";

TEST_CASE("pauses grow, and three failures that last are for good unless a worker is there",
          "[cluster]") {
    const test::log_lines log("cluster");
    start_failures failures(20s, 100ms);
    time_point now{};
    const auto first = failures.failed({node, gone}, false, now);
    const auto second = failures.failed({node, gone}, false, now + 1s);
    CHECK(!first.gives_up);
    CHECK(first.pause >= 100ms);
    CHECK(second.pause > first.pause);
    CHECK(!failures.failed({node, gone}, false, now + 19s).gives_up);
    CHECK(!failures.failed({node, gone}, true, now + 21s).gives_up);
    const auto last = failures.failed({node, gone}, false, now + 21s);
    REQUIRE(last.gives_up);
    CHECK(last.gives_up->text() == "a worker did not start on n1: there is no /app");
    CHECK(log.count("a worker did not start on n1") == 3); // the first, the second, the fourth
}

TEST_CASE("a worker that comes ends the row, and what its node could not is news again",
          "[cluster]") {
    const test::log_lines log("cluster");
    start_failures failures(1s, 100ms);
    time_point now{};
    for (int i = 0; i < 3; ++i) (void)failures.failed({node, gone}, false, now);
    CHECK(log.count("n1") == 2);
    failures.came(node);
    CHECK(!failures.failed({node, gone}, false, now + 10s).gives_up);
    CHECK(log.count("n1") == 3);
}

TEST_CASE("hints tell a folder that is not there from a program that has ended", "[cluster]") {
    const test::log_lines log("cluster");
    start_failures failures(1s, 100ms);
    (void)failures.failed({node, "it cannot change to its folder /x"}, true, {});
    CHECK(log.count("make the folder on every node") == 1);
    (void)failures.failed({node, "exited with 1", true}, true, {});
    CHECK(log.count("it ended before it had reached this program") == 1);
    failures.on_other_node(node, "no memory");
    CHECK(log.count("n1 could not start a worker, another node is asked: no memory") == 1);
}

} // namespace start_failures_test
