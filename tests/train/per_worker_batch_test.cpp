// SPDX-License-Identifier: Apache-2.0
#include <skein/train/per_worker_batch.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <tests/support/error_of.hpp>

#include <cmath>
#include <string>

namespace sk = skein;
using namespace skein::train;
using Catch::Matchers::ContainsSubstring;
using sk::goodput::rate_rule;

namespace per_worker_batch_test {

TEST_CASE("per-worker batch: the batch and the rate go with the workers", "[adaptive]") {
    const step_plan asked{.global_batch = 64, .micro_batches = 1};
    for (const int workers : {1, 2, 3, 8}) {
        const double scale = 32.0 * workers / 64.0;
        for (const auto& [rule, factor] : {std::pair{rate_rule::linear, scale},
                                           {rate_rule::sqrt, std::sqrt(scale)},
                                           {rate_rule::same, 1.0}}) {
            sk::per_worker_batch each({.samples = 32, .rate = rule});
            const auto made =
                each.on_world({.world_size = workers, .first_batch = 64, .plan = &asked});
            REQUIRE(made.plan);
            CHECK(made.plan->global_batch == 32 * workers);
            CHECK(each.rate({.batch = 5, .first_batch = 64, .plan = &*made.plan}) == factor);
            CHECK_THAT(made.why, ContainsSubstring("workers of 32 samples"));
        }
    }
}

TEST_CASE("per-worker batch: what makes no sense is refused", "[adaptive]") {
    const auto says = [](sk::per_worker_batch_options o) {
        const auto why = sk::test::error_of([&] { sk::per_worker_batch rule(o); });
        CHECK(why.code() == sk::errc::usage);
        return std::string(why.what());
    };
    CHECK_THAT(says({}), ContainsSubstring("0 samples of each worker"));
    CHECK_THAT(says({.samples = 8, .rate = rate_rule::adascale}),
               ContainsSubstring("the rate rule adascale"));
}

} // namespace per_worker_batch_test
