// SPDX-License-Identifier: Apache-2.0
#include <skein/train/ddp.hpp>
#include <skein/train/fsdp.hpp>
#include <skein/train/single.hpp>
#include <skein/train/strategy.hpp>
#include <skein/train/zero.hpp>

#include <tests/train/strategy_laws.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace skein;
using namespace skein::train;

namespace {

/// The least a strategy can be.
struct archetype {
    archetype(const context&, torch::nn::Module& m) : flat(m) {}
    flat_store& store() { return flat; }
    void begin_step() {}
    void begin_micro(bool) {}
    void finish_backward() {}
    double squared_norm(double mine) { return mine; }
    void publish() {}
    void sync_buffers() {}
    void begin_evaluation() {}
    void end_evaluation() {}
    void abort(const error&) {}
    void finish() {}
    void rebind() {}
    flat_store flat;
};

struct forgets_to_publish {
    forgets_to_publish(const context&, torch::nn::Module&);
    flat_store& store();
    void begin_step();
    void begin_micro(bool);
    void finish_backward();
    double squared_norm(double);
    void sync_buffers();
    void begin_evaluation();
    void end_evaluation();
    void abort(const error&);
    void finish();
    void rebind();
};

} // namespace

TEST_CASE("the strategy concept takes its archetype and ours, and refuses a near miss") {
    STATIC_CHECK(strategy<archetype>);
    STATIC_CHECK(strategy<Single>);
    STATIC_CHECK(strategy<DDP<>>);
    STATIC_CHECK(strategy<DDP<bucket<1, 8>>>);
    STATIC_CHECK(strategy<Zero1<>>);
    STATIC_CHECK(strategy<Zero2<auto_wrap_size<1000>>>);
    STATIC_CHECK(strategy<FSDP<auto_wrap_size<1000>>>);
    STATIC_CHECK(strategy<Hybrid<auto_wrap_size<1000>>>);
    STATIC_CHECK_FALSE(strategy<forgets_to_publish>);
    STATIC_CHECK_FALSE(strategy<int>);
}

TEST_CASE("Single keeps the laws of a strategy") { train_test::strategy_laws<Single>({1}); }

TEST_CASE("DDP keeps the laws of a strategy in worlds of one, two and three") {
    train_test::strategy_laws<DDP<train_test::tiny_buckets>>({1, 2, 3});
}

TEST_CASE("Zero1 and Zero2 keep the laws of a strategy, in shared memory and in a ring") {
    train_test::strategy_laws<Zero1<train_test::tiny_buckets>>({1, 2, 3});
    train_test::strategy_laws<Zero2<train_test::tiny_buckets>>({1, 2, 3});
    train_test::strategy_laws<Zero1<train_test::tiny_buckets>>({2, 3}, "ring");
    train_test::strategy_laws<Zero2<train_test::tiny_buckets>>({2, 3}, "ring");
}

TEST_CASE("FSDP keeps the laws of a strategy, with one copy of the parameters and between hosts") {
    using strategy = FSDP<auto_wrap<train_test::Branch>>;
    train_test::strategy_laws<strategy>({1, 2, 3});
    train_test::strategy_laws<strategy>({2, 3}, "ring");
    train_test::strategy_laws<
        FSDP<auto_wrap<train_test::Branch>, reshard_after_forward<false>, prefetch<0>>>({2, 3},
                                                                                        "ring");
}

TEST_CASE("Hybrid keeps the laws of a strategy on one host and on two") {
    using strategy = Hybrid<auto_wrap<train_test::Branch>>;
    train_test::strategy_laws<strategy>({1, 2});
    train_test::strategy_laws<strategy>({2, 4}, "hierarchical");
}
