// SPDX-License-Identifier: Apache-2.0
#include <skein/train/wrap.hpp>

#include <tests/train/train_support.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace train_test;
using sk::auto_wrap;
using sk::auto_wrap_size;
namespace plans = skein::train::detail;

namespace {

struct InnerImpl : torch::nn::Module {
    InnerImpl() : linear(4, 4) { register_module("linear", linear); }
    torch::nn::Linear linear;
};
TORCH_MODULE(Inner);

struct OuterImpl : torch::nn::Module {
    OuterImpl() : own(4, 4) {
        register_module("inner", inner);
        register_module("own", own);
    }
    Inner inner;
    torch::nn::Linear own;
};
TORCH_MODULE(Outer);

/// Two blocks with a block inside; a head that is tied to a weight of the first one.
struct TowerImpl : torch::nn::Module {
    TowerImpl() : head(4, 4) {
        register_module("blocks", blocks);
        blocks->push_back(Outer());
        blocks->push_back(Outer());
        register_module("head", head);
        tied = register_parameter("tied", blocks->ptr<OuterImpl>(0)->own->weight);
    }
    torch::nn::ModuleList blocks;
    torch::nn::Linear head;
    torch::Tensor tied;
};
TORCH_MODULE(Tower);

std::vector<std::string> units_of(const flat_store& store) {
    std::vector<std::string> all;
    for (const auto& u : store.units()) {
        std::string line = u.name + ":";
        for (auto i = u.first; i < u.last; ++i) line += " " + store.segments()[i].name;
        all.push_back(line);
    }
    return all;
}

} // namespace

TEST_CASE("blocks are units, the innermost when nested, and what is tied across is the root's") {
    Tower tower;
    const flat_store both(*tower, {.plan = plans::plan_of<auto_wrap<Inner, Outer>>()});
    CHECK(units_of(both) ==
          std::vector<std::string>{
              ": tied head.weight head.bias", "blocks.0: blocks.0.own.bias",
              "blocks.0.inner: blocks.0.inner.linear.weight blocks.0.inner.linear.bias",
              "blocks.1: blocks.1.own.weight blocks.1.own.bias",
              "blocks.1.inner: blocks.1.inner.linear.weight blocks.1.inner.linear.bias"});
    Tower other;
    const flat_store outer(*other, {.plan = plans::plan_of<auto_wrap<OuterImpl>>()});
    CHECK(outer.units().size() == 3);
    CHECK(outer.units()[1].name == "blocks.0");
}

TEST_CASE("the layout's hash does not depend on the units") {
    Tower a, b;
    const flat_store blocks(*a, {.plan = plans::plan_of<auto_wrap<Inner>>()});
    const flat_store runs(*b, {.plan = plans::plan_of<auto_wrap_size<20>>()});
    CHECK(blocks.layout_hash() == runs.layout_hash());
}

TEST_CASE("no match is an error that lists the types there are") {
    Tower tower;
    try {
        const flat_store store(*tower, {.plan = plans::plan_of<auto_wrap<torch::nn::Conv2d>>()});
        FAIL("accepted");
    } catch (const sk::error& e) {
        CHECK(e.code() == sk::errc::invalid_argument);
        const std::string text = std::string(e.what()) + e.hint();
        CHECK(text.find("torch::nn::Conv2dImpl") != std::string::npos);
        CHECK(text.find("OuterImpl (2)") != std::string::npos);
    }
}

TEST_CASE("runs end as soon as they are large enough; buckets are counted from the end") {
    std::vector<plan_parameter> five;
    for (int i = 0; i < 5; ++i) five.push_back({"p" + std::to_string(i), {}, 64});
    const auto runs = plans::plan_runs(five, 100);
    CHECK(runs.unit_of == std::vector<std::size_t>{0, 0, 1, 1, 2});
    CHECK(runs.names == std::vector<std::string>{"p0", "p2", "p4"});

    const auto buckets = plans::plan_buckets(five, 64, 512);
    CHECK(buckets.unit_of == std::vector<std::size_t>{0, 0, 1, 1, 2});
    CHECK(buckets.names == std::vector<std::string>{"p0", "p2", "p4"});
    CHECK(plans::plan_buckets(five, 1 << 20, 1 << 20).names.size() == 1);
}
