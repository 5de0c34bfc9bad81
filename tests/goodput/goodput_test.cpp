// SPDX-License-Identifier: Apache-2.0
#include <skein/goodput/goodput.hpp>

#include <skein/core/error.hpp>

#include <tests/goodput/adaptdl_numbers.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>

namespace goodput_model_test {

using namespace skein::goodput;
using Catch::Matchers::WithinRel;

TEST_CASE("the batch of the best goodput is adaptdl's") {
    for (const auto& row : goodput_test::adaptdl_searches) {
        const auto& p = row.parameters;
        const goodput_model model{.time = {p[0], p[1], p[2], p[3], p[4], p[5], p[6]},
                                  .gradients = {.sqr = row.sqr, .var = row.var},
                                  .first_batch = row.first};
        const auto best = model.best({.nodes = row.nodes,
                                      .ranks = row.ranks,
                                      .most = row.most,
                                      .micro_least = row.micro_least,
                                      .micro_most = row.micro_most,
                                      .accumulation = row.accumulation});
        if (row.goodput == 0.0) {
            CHECK(best.goodput == 0.0);
            continue;
        }
        CHECK_THAT(best.goodput, WithinRel(row.goodput, 1e-9));
        CHECK(best.shape.micro_batch == row.micro);
        CHECK(best.shape.accumulation == row.accumulated);
    }
}

TEST_CASE("goodput is throughput times what a sample is worth") {
    const goodput_model model{.time = {.alpha_c = 0.1, .beta_c = 0.001, .alpha_r = 0.1},
                              .gradients = {.sqr = 1.0, .var = 4.0},
                              .first_batch = 32};
    CHECK(model.efficiency(32) == 1.0);
    CHECK_THAT(model.efficiency(128), WithinRel(5.0 / 2.0 / 4.0, 1e-12));
    const step_shape step{.nodes = 1, .ranks = 2, .micro_batch = 32, .accumulation = 1};
    CHECK(step.batch() == 128);
    CHECK_THAT(model.goodput(step),
               WithinRel(128 / model.time.step_seconds(step) * model.efficiency(128), 1e-12));
    // Gradients that are all noise are worth any batch, gradients without noise none but the first.
    const batch_limits within{.nodes = 1, .ranks = 2, .most = 1024};
    CHECK(goodput_model{model.time, {.sqr = 0.0, .var = 1.0}, 32}.best(within).shape.batch() ==
          1024);
    CHECK(goodput_model{model.time, {.sqr = 1.0, .var = 0.0}, 32}.best(within).shape.batch() == 32);
}

TEST_CASE("limits of a batch that nothing fits, and those that cannot be") {
    const goodput_model model{.time = {}, .gradients = {}, .first_batch = 32};
    CHECK(model.best({.ranks = 4, .most = 64, .micro_least = 32}).goodput == 0.0);
    CHECK(model.best({.ranks = 1, .most = 64, .micro_least = 33}).goodput == 0.0);
    for (const auto& bad :
         {batch_limits{.most = 16}, batch_limits{.nodes = 2, .ranks = 1, .most = 64},
          batch_limits{.ranks = 0, .most = 64}, batch_limits{.most = 64, .micro_least = 0},
          batch_limits{.most = 64, .micro_least = 8, .micro_most = 4}})
        CHECK_THROWS_AS(model.best(bad), skein::error);
    CHECK_THROWS_AS((goodput_model{.first_batch = 0}.best({.most = 64})), skein::error);
}

} // namespace goodput_model_test
