// SPDX-License-Identifier: Apache-2.0
// label: cuda
// What a run asks of a device that works on the CPU alone is named.
#include <skein/train/trainer.hpp>

#include <catch2/catch_test_macros.hpp>

using skein::train::detail::asked_of_device;
using skein::train::detail::only_on_cpu;

namespace device_refusals_test {

/// Over NCCL: a rank reaches its own device alone.
asked_of_device over_nccl(int ranks, at::ScalarType compute) {
    return {.strategy = "ddp",
            .precision = {.compute = compute},
            .ranks = ranks,
            .over = "nccl x2",
            .own = "cuda:1",
            .carries_all = false};
}

} // namespace device_refusals_test

TEST_CASE("precisions that a device or its communicator lacks are named") {
    using device_refusals_test::over_nccl;
    CHECK(only_on_cpu(over_nccl(2, at::kFloat)).empty());
    CHECK(only_on_cpu(over_nccl(1, at::kBFloat16)).empty());
    CHECK(only_on_cpu(over_nccl(2, at::kBFloat16)) ==
          "bfloat16, sums in float32 over nccl x2 (communicator = \"host\" carries it)");
    CHECK(only_on_cpu(over_nccl(1, at::kHalf)) == "float16");
    auto through_host = over_nccl(2, at::kBFloat16);
    through_host.carries_all = true;
    CHECK(only_on_cpu(through_host).empty());
}

TEST_CASE("what of a run works on the CPU alone is named") {
    using device_refusals_test::over_nccl;
    auto run = over_nccl(2, at::kFloat);
    run.gpus = 2;
    CHECK(only_on_cpu(run) ==
          "scaling.gpus = 2 over nccl x2, where a rank has the device of its number");
    run.gpus = 1;
    run.logical_shards = 8;
    CHECK(only_on_cpu(run) == "logical shards");
    run.carries_own = false;
    run.over = "shm x2";
    CHECK(only_on_cpu(run) ==
          "2 ranks over shm x2 (communicator = \"host\" carries what is on cuda:1)");
    run.strategy_fits = false;
    run.strategy = "zero";
    CHECK(only_on_cpu(run) == "strategy zero");
    run.ranks_change = true;
    CHECK(only_on_cpu(run) == "ranks that come and go");
}
