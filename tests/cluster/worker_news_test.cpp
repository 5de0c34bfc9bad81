// SPDX-License-Identifier: Apache-2.0
#include <skein/cluster/detail/worker_news.hpp>
#include <tests/support/log_lines.hpp>

#include <cstddef>
#include <string>

#include <catch2/catch_test_macros.hpp>

namespace worker_news_test {

using namespace skein::cluster;
using skein::cluster::detail::lost_worker;
using skein::cluster::detail::worker_news;

want_lease wish(std::string demand) {
    want_lease out;
    out.demand = std::move(demand);
    return out;
}

TEST_CASE("that calls wait is said of each demand once, until there was room for it", "[cluster]") {
    const skein::test::log_lines log("cluster");
    worker_news news("10.0.0.1:7117");
    news.waits(wish("gpu=1"), "no node has one");
    news.waits(wish("gpu=1"), "no node has one");
    CHECK(log.count("they wait") == 1);
    news.waits(wish("cpu=64"), "no node is as large");
    CHECK(log.count("they wait") == 2);
    news.has_room(wish("gpu=1"));
    news.waits(wish("gpu=1"), "no node has one");
    CHECK(log.count("they wait") == 3);
}

TEST_CASE("that there are no nodes is said once, and not while those of a driver may come back",
          "[cluster]") {
    const skein::test::log_lines log("cluster");
    worker_news news("10.0.0.1:7117");
    news.no_nodes(false, false); // nobody waits
    CHECK(log.seen.empty());
    news.welcomed();
    news.no_nodes(true, true); // a head that was started again
    CHECK(log.seen.empty());
    news.no_nodes(true, false);
    news.no_nodes(true, false);
    CHECK(log.count("no node takes workers") == 1);
    CHECK(log.count("head=10.0.0.1:7117") == 1);
    news.nodes();
    news.no_nodes(true, false);
    CHECK(log.count("no node takes workers") == 2);
}

TEST_CASE("workers that are lost are told, of many ever fewer, and those of a lost node once",
          "[cluster]") {
    const skein::test::log_lines log("cluster");
    worker_news news("here");
    const auto three = [] { return std::size_t{3}; };
    for (std::uint64_t n = 1; n <= 40; ++n) news.lost({n, 1, "n1", 7, "killed by signal 9"}, three);
    CHECK(log.count("a worker was lost") == 10); // eight, the 16th and the 32nd
    news.lost({41, 1, "n1", 7, {}}, three);
    for (std::uint64_t n = 42; n <= 44; ++n)
        news.lost({n, 2, "n2", 7, "node n2 was lost: it is silent"}, three);
    CHECK(log.count("a node was lost with its workers") == 1);
    CHECK(log.count("workers=3") == 1);
}

} // namespace worker_news_test
