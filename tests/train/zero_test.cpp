// SPDX-License-Identifier: Apache-2.0
#include <skein/train/zero.hpp>

#include <tests/train/zoo.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace train_test;

namespace {
using ddp = sk::DDP<tiny_buckets>;
using zero1 = sk::Zero1<tiny_buckets>;
using zero2 = sk::Zero2<tiny_buckets>;
} // namespace

TEST_CASE("Zero1 and Zero2 train every shape of a model to the bits of DDP on two ranks") {
    for (const auto kind : all_shapes) {
        INFO("shape " << static_cast<int>(kind));
        const auto wanted = run_zoo<ddp>({.kind = kind, .world = 2});
        for (const std::string transport : {"shm", "ring"}) {
            INFO(transport);
            const zoo_options o{.kind = kind, .world = 2, .transport = transport};
            const auto one = run_zoo<zero1>(o), two = run_zoo<zero2>(o);
            CHECK(one.weights == wanted.weights);
            CHECK(two.weights == wanted.weights);
            CHECK(one.losses == wanted.losses);
            CHECK(two.losses == wanted.losses);
        }
    }
}

TEST_CASE("they agree with one process on three and four ranks, accumulated or not") {
    for (const int world : {3, 4})
        for (const int accumulation : {1, 2}) {
            INFO(world << " ranks, accumulation " << accumulation);
            const auto single = run_zoo<sk::Single>({.accumulation = accumulation});
            const zoo_options o{.world = world, .accumulation = accumulation};
            CHECK(relative_error(run_zoo<zero1>(o).weights[0], single.weights[0]) < 1e-5);
            CHECK(relative_error(run_zoo<zero2>(o).weights[0], single.weights[0]) < 1e-5);
        }
}

TEST_CASE("what a rank keeps is its part: states under Zero1, gradients too under Zero2") {
    run_world(2, [](context& ctx) {
        auto a = make_zoo(shape::plain), b = make_zoo(shape::plain);
        zero1 one(ctx, *a);
        zero2 two(ctx, *b);
        const auto all = one.store().size();
        expect(one.store().grads_P().numel() == all);
        expect(two.store().grads_P().numel() < all / 2);
        for (auto* store : {&one.store(), &two.store()}) {
            expect(store->owned() < all * 6 / 10);
            expect(store->owned() > all * 4 / 10);
            flat_optimizer adam(sk::AdamW{}, *store);
            for (const auto& [name, state] : adam.states()) expect(state.numel() == store->owned());
        }
    });
}
