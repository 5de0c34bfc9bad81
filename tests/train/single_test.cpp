// SPDX-License-Identifier: Apache-2.0
#include <tests/train/train_support.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace train_test;

TEST_CASE("Single gives the plain gradient of the loss") {
    torch::manual_seed(1);
    Net mine, plain;
    {
        torch::NoGradGuard no_grad;
        for (std::size_t i = 0; i < mine->parameters().size(); ++i)
            plain->parameters()[i].copy_(mine->parameters()[i]);
    }
    auto ctx = context::single();
    sk::Single single(ctx, *mine);
    const auto batch = numbers{}.batch(std::vector<std::uint64_t>{1, 4, 9});
    single.begin_step();
    single.begin_micro(true);
    class_loss(mine, batch).backward();
    single.finish_backward();
    class_loss(plain, batch).backward();
    for (std::size_t i = 0; i < mine->parameters().size(); ++i)
        CHECK(torch::equal(mine->parameters()[i].grad(), plain->parameters()[i].grad()));
}

TEST_CASE("Single in a world of two is a usage error") {
    const auto errors = try_world(2, [](context& ctx) {
        Net net;
        sk::Single single(ctx, *net);
    });
    REQUIRE(errors[0]);
    CHECK(errors[0]->code() == sk::errc::usage);
}
