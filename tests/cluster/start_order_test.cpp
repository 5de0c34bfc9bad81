// SPDX-License-Identifier: Apache-2.0
#include <skein/cluster/detail/start_order.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include <catch2/catch_test_macros.hpp>

namespace start_order_test {

using namespace skein;
using namespace skein::cluster;

driver_program program() { return {"/app", "app", "10.0.0.2", "", 7000, "A=1", "train-1"}; }

start_worker_order order(decltype(start_worker_order::kind) kind) {
    start_worker_order out;
    out.lease = {5, 3};
    out.demand = "cpu=1";
    out.gpus = 2;
    out.folder = "/work";
    out.name = "worker-3";
    out.prints = true;
    out.variables = {"B=2"};
    out.package = "abc";
    out.submitted = 9;
    out.kind = std::move(kind);
    return out;
}

start_worker_order sent(const start_worker_order& one) {
    auto got = wire::decode<start_worker_order>(wire::encode(one));
    REQUIRE(got);
    CHECK(wire::encode(*got) == wire::encode(one));
    CHECK(got->kind.index() == one.kind.index());
    return std::move(*got);
}

using strings = std::vector<std::string>;
using gpu_bits = std::vector<std::uint64_t>;

TEST_CASE("orders of all kinds travel as all fields in a row", "[cluster]") {
    const rank_order none;
    const auto worker = order(worker_process{program()});
    CHECK(wire::encode(worker) ==
          wire::encode(std::tuple(worker.lease, std::string("cpu=1"), std::uint64_t{2},
                                  std::string("/app"), std::string("app"), std::string("/work"),
                                  std::string("worker-3"), std::string("10.0.0.2"), std::string(),
                                  std::uint16_t{7000}, true, std::string("A=1"), std::string(),
                                  std::string(), std::uint32_t{0}, strings(), strings{"B=2"},
                                  std::string("abc"), std::int64_t{9}, std::string("train-1"), none,
                                  std::string(), std::uint64_t{1}, std::uint64_t{0}, gpu_bits())));
    const auto entry = order(entry_process{"train-1", 2, {"python", "train.py"}, 11, 500});
    CHECK(wire::encode(entry) ==
          wire::encode(std::tuple(
              entry.lease, std::string("cpu=1"), std::uint64_t{2}, std::string(), std::string(),
              std::string("/work"), std::string("worker-3"), std::string(), std::string(),
              std::uint16_t{0}, true, std::string(), std::string(), std::string("train-1"),
              std::uint32_t{2}, strings{"python", "train.py"}, strings{"B=2"}, std::string("abc"),
              std::int64_t{9}, std::string(), none, std::string(), std::uint64_t{11},
              std::uint64_t{500}, gpu_bits())));
}

TEST_CASE("an order is what it was when it arrives", "[cluster]") {
    const auto worker = sent(order(worker_process{program()}));
    REQUIRE(worker.driver() != nullptr);
    CHECK(worker.driver()->executable == "/app");
    CHECK(worker.job() == "train-1");
    CHECK(worker.entry() == nullptr);

    rank_order of;
    of.place = {"SKEIN_RANK=0"};
    of.port = 99;
    const auto rank = sent(order(rank_process{program(), of, "10.0.0.3", {1, 2}}));
    REQUIRE(rank.rank() != nullptr);
    CHECK(rank.rank()->rank.port == 99);
    CHECK(rank.rank()->node_host == "10.0.0.3");
    CHECK(rank.rank()->gpus == gpu_bits{1, 2});
    CHECK(rank.driver() == &rank.rank()->of);

    const auto server = sent(order(space_server_process{program(), "shop"}));
    REQUIRE(server.space_server() != nullptr);
    CHECK(server.space_server()->space == "shop");
    CHECK(server.driver() == &server.space_server()->of);

    const auto entry = sent(order(entry_process{"train-1", 2, {"python"}, 11, 500}));
    REQUIRE(entry.entry() != nullptr);
    CHECK(entry.entry()->first_line == 11);
    CHECK(entry.driver() == nullptr);
    CHECK(entry.job() == "train-1");
}

TEST_CASE("an order that is cut off is refused", "[cluster]") {
    auto bytes = wire::encode(order(worker_process{program()}));
    bytes.resize(bytes.size() - 3);
    CHECK(!wire::decode<start_worker_order>(bytes));
}

} // namespace start_order_test
