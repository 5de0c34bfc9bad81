// SPDX-License-Identifier: Apache-2.0
#include <skein/data/blur_operator.hpp>
#include <skein/data/explain.hpp>

#include <cstdint>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

namespace explain_test {

using namespace skein;
using Catch::Matchers::ContainsSubstring;

struct sample {
    data::image<float, 3> pixels;
    std::int64_t label = 0;
};
sample draw(std::int64_t i, data::draws& random) {
    sample made{data::make_image<float, 3>(32, 32), i};
    random.fill_normal(made.pixels.values());
    return made;
}
bool is_even(const sample& s) { return s.label % 2 == 0; }

TEST_CASE("an explanation has a stage for each operator, what is folded, and what travels") {
    const auto plan = data::range(100) | data::map<&draw>() |
                      data::repeat<3>(data::blur<&sample::pixels>({.taps = 5})) |
                      data::on(data::helpers{.most = 2, .on = "role=cpu"}) |
                      data::filter<&is_even>() | data::shuffle() | data::batch(10);
    const auto told = data::explain(plan, 6);
    REQUIRE(told.stages.size() == 4);
    CHECK(told.stages[0].name == "range(100)");
    CHECK(told.stages[1].is_shipped);
    CHECK(told.stages[1].bytes == 6 * (3 * 32 * 32 * 4 + 8));
    CHECK(told.stages[1].seconds > 0);
    CHECK(told.stages[2].stands_for == 3);
    CHECK_FALSE(told.stages[3].is_shipped);
    CHECK(told.stages[3].rows_in == 6);
    CHECK(told.stages[3].rows_out == 3);
    CHECK_THAT(told.text(), ContainsSubstring("100 samples, shuffled, in batches of 10\n") &&
                                ContainsSubstring("3 folded into one") &&
                                ContainsSubstring("keeps 3 of 6") &&
                                ContainsSubstring("on(2 helpers, role=cpu): a row of 12.3 kB"));
    CHECK(data::explain(data::range(2) | data::map<&draw>()).stages[1].rows_in == 2);
}

} // namespace explain_test
