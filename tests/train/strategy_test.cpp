// SPDX-License-Identifier: Apache-2.0
#include <skein/train/ddp.hpp>
#include <skein/train/single.hpp>
#include <skein/train/strategy.hpp>

#include <tests/train/strategy_laws.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace skein;
using namespace skein::train;

namespace {

/// The least a strategy can be.
struct archetype {
    archetype(const context&, torch::nn::Module& m) : flat(m) {}
    flat_storage& storage() { return flat; }
    void begin_step() {}
    void begin_micro(bool) {}
    void finish_backward() {}
    double squared_norm(double mine) { return mine; }
    void publish() {}
    void sync_buffers() {}
    flat_storage flat;
};

struct forgets_to_publish {
    forgets_to_publish(const context&, torch::nn::Module&);
    flat_storage& storage();
    void begin_step();
    void begin_micro(bool);
    void finish_backward();
    double squared_norm(double);
    void sync_buffers();
};

} // namespace

TEST_CASE("the strategy concept takes its archetype and ours, and refuses a near miss") {
    STATIC_CHECK(strategy<archetype>);
    STATIC_CHECK(strategy<Single>);
    STATIC_CHECK(strategy<DDP<>>);
    STATIC_CHECK(strategy<DDP<bucket<1, 8>>>);
    STATIC_CHECK_FALSE(strategy<forgets_to_publish>);
    STATIC_CHECK_FALSE(strategy<int>);
}

TEST_CASE("Single keeps the laws of a strategy") { train_test::strategy_laws<Single>({1}); }

TEST_CASE("DDP keeps the laws of a strategy in worlds of one, two and three") {
    train_test::strategy_laws<DDP<train_test::tiny_buckets>>({1, 2, 3});
}
