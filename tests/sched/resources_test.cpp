// SPDX-License-Identifier: Apache-2.0
#include <skein/sched/resources.hpp>

#include <cmath>
#include <cstdint>
#include <string>

#include <catch2/catch_test_macros.hpp>

using namespace skein;
using sched::amount;
using sched::parse_resources;
using sched::resources;

namespace {

resources of(std::string_view text) { return parse_resources(text).value(); }
std::string refused(std::string_view text) {
    const auto r = parse_resources(text);
    return r ? "taken: " + to_string(*r) : std::string(r.error().what());
}
bool says(const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
}

} // namespace

TEST_CASE("ten times a tenth of a cpu is one cpu, and taking them all back leaves nothing",
          "[rt][resources]") {
    resources sum;
    const auto tenth = of("cpu=0.1,gpu=0.1,ssd=0.1");
    for (int i = 0; i < 10; ++i) sum += tenth;
    CHECK(sum == of("cpu=1,gpu=1,ssd=1"));
    for (int i = 0; i < 10; ++i) sum -= tenth;
    CHECK(sum.empty());
}

TEST_CASE("resources are printed as they are read", "[rt][resources]") {
    for (const auto* text :
         {"", "cpu=2", "cpu=0.5,gpu=2,memory=4GiB,ssd=1", "memory=1536MiB", "memory=1000B",
          "gpu=0.0001", "a=1,b=2.25", "cpu=1000000000", "memory=1024TiB"}) {
        CHECK(to_string(of(text)) == text);
        CHECK(of(to_string(of(text))) == of(text));
    }
    CHECK(to_string(of("ssd=1,cpu=2.50,memory=1024")) == "cpu=2.5,memory=1KiB,ssd=1");
    CHECK(of("memory=1.5GiB").memory == 3u << 29);
    CHECK(of("memory=2kB").memory == 2000);
    CHECK(of("memory=0.3B").memory == 1); // rounded up
    CHECK(of("cpu=0,ssd=0").empty());
}

TEST_CASE("text that is no list of resources is refused with the part that is wrong",
          "[rt][resources]") {
    CHECK(says(refused("cpu=x"), "cpu=x is no amount"));
    CHECK(says(refused("cpu=x"), "write cpu=2 or cpu=0.5"));
    CHECK(says(refused("cpu=-1"), "cpu=-1 is no amount"));
    CHECK(says(refused("cpu=1.00001"), "no amount"));
    CHECK(says(refused("cpu=1."), "no amount"));
    CHECK(says(refused("cpu="), "no amount"));
    CHECK(says(refused("cpu=1000000001"), "no amount"));
    CHECK(says(refused("cpu=1e3"), "no amount"));
    CHECK(says(refused("memory=4XiB"), "no amount of memory"));
    CHECK(says(refused("memory=2000TiB"), "no amount of memory"));
    CHECK(says(refused("memory=99999999999999999999"), "no amount of memory"));
    CHECK(says(refused("cpu"), "is no resource"));
    CHECK(says(refused("=1"), "is no resource"));
    CHECK(says(refused("cpu=1,"), "is no resource"));
    CHECK(says(refused("1a=1"), "is no resource"));
    CHECK(says(refused("a b=1"), "is no resource"));
    CHECK(says(refused("cpu=1,cpu=2"), "cpu is there twice"));
    CHECK(says(refused("cpus=2"), "it is called cpu: cpu=2"));
    CHECK(says(refused("GPU=1"), "it is called gpu: gpu=1"));
    CHECK(says(refused("mem=4GiB"), "it is called memory: memory=4GiB"));
    CHECK(says(refused("ssd=0,ssd=2"), "ssd is there twice"));
    CHECK(says(refused("cpu=1,ssd=\x1b[2J"), "resources \"cpu=1,ssd=?[2J\""));
    CHECK(says(refused(std::string(5000, 'a')), "5000 bytes, more than 4096"));
    std::string many = "a0=1";
    for (int i = 1; i < 33; ++i) many += ",a" + std::to_string(i) + "=1";
    CHECK(says(refused(many), "more than 32 custom resources"));
}

TEST_CASE("what is asked for fits when no part of it is larger", "[rt][resources]") {
    const auto have = of("cpu=4,gpu=1,memory=1GiB,ssd=2");
    CHECK(fits(of(""), have));
    CHECK(fits(have, have));
    CHECK(fits(of("ssd=2"), have));
    CHECK_FALSE(fits(of("cpu=4.0001"), have));
    CHECK_FALSE(fits(of("memory=1073741825"), have));
    CHECK_FALSE(fits(of("ssd=2.5"), have));
    CHECK_FALSE(fits(of("cpu=1,hdd=1"), have));
}

TEST_CASE("an amount from a floating-point number is the nearest step, and nothing else is taken",
          "[rt][resources]") {
    CHECK(amount::from(0.3) == amount::of_steps(3000));
    CHECK(amount::from(0.1) + amount::from(0.2) == amount::from(0.3));
    CHECK(amount::from(0) == amount());
    CHECK(to_string(amount::from(2.5)) == "2.5");
    CHECK(to_string(amount(1) - amount::from(1.25)) == "-0.25");
    CHECK_THROWS_AS(amount::from(-0.1), error);
    CHECK_THROWS_AS(amount::from(0.00001), error);
    CHECK_THROWS_AS(amount::from(1e10), error);
    CHECK_THROWS_AS(amount::from(std::nan("")), error);
    CHECK_THROWS_AS(amount::from(INFINITY), error);
}

TEST_CASE("a demand for a gpu and a half is refused: shares lie on one gpu", "[rt][resources]") {
    CHECK(check_demand(of("gpu=0.5")));
    CHECK(check_demand(of("gpu=3")));
    const auto r = check_demand(of("gpu=1.5"));
    REQUIRE_FALSE(r);
    CHECK(says(r.error().what(), "gpu=1.5"));
    resources out_of_range;
    out_of_range.cpu = amount::of_steps(-1);
    CHECK_FALSE(check_demand(out_of_range));
    out_of_range.cpu = amount::of_steps(INT64_MAX);
    CHECK_FALSE(check_demand(out_of_range));
    resources too_much;
    too_much.memory = UINT64_MAX;
    CHECK_FALSE(check_total(too_much));
}

TEST_CASE("a place has whole gpus, at most 64, and a set of them prints as a list of indices",
          "[rt][resources]") {
    CHECK(check_total(of("gpu=64")));
    CHECK_FALSE(check_total(of("gpu=65")));
    CHECK_FALSE(check_total(of("gpu=0.5")));
    sched::gpu_set gpus;
    CHECK(gpus.empty());
    gpus.insert(0);
    gpus.insert(63);
    CHECK(to_string(gpus) == "0,63");
    CHECK(gpus.has(63));
    CHECK_FALSE(gpus.has(1));
}

TEST_CASE("a custom resource has a name that can be written on a command line", "[rt][resources]") {
    resources r;
    r.set("b", 2).set("a", 1).set("b", amount::from(0.5));
    CHECK(to_string(r) == "a=1,b=0.5");
    CHECK(r.of("b") == amount::from(0.5));
    CHECK(r.of("c") == amount());
    r.set("a", 0);
    CHECK(r.custom.size() == 1);
    CHECK_THROWS_AS(r.set("cpu", 1), error);
    CHECK_THROWS_AS(r.set("", 1), error);
    CHECK_THROWS_AS(r.set("a=b", 1), error);
}
