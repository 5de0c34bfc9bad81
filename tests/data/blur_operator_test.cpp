// SPDX-License-Identifier: Apache-2.0
#include <skein/data/blur_operator.hpp>
#include <skein/data/detail/row_program.hpp>

#include <cmath>
#include <cstdint>
#include <tuple>

#include <catch2/catch_test_macros.hpp>

namespace blur_operator_test {

using namespace skein;

struct picture {
    data::image<float, 3> pixels;
    std::int64_t id = 0;
};
picture draw(std::int64_t i, data::draws& random) {
    picture made{data::make_image<float, 3>(64, 48), i};
    random.fill_normal(made.pixels.values());
    return made;
}

TEST_CASE("ten blurs of a pipeline are one, with the sigmas and values of ten") {
    constexpr auto blur = data::blur<&picture::pixels>({.taps = 11, .least = 0.1f, .most = 2.0f});
    const auto folded = data::range(5) | data::map<&draw>() | data::repeat<10>(blur);
    const auto written = data::range(5) | data::map<&draw>() | data::repeat<10>(data::apart(blur));
    CHECK(std::tuple_size_v<decltype(folded.left)> == 2);
    CHECK(std::tuple_size_v<decltype(written.left)> == 11);
    CHECK(folded.describe() == written.describe());
    data::arena memory;
    const data::arena_scope scope(memory);
    data::detail::cells a, b;
    CHECK(data::detail::typed_program(folded).make(1, 2, 3, a));
    CHECK(data::detail::typed_program(written).make(1, 2, 3, b));
    const auto* x = reinterpret_cast<const float*>(a[0].data);
    const auto* y = reinterpret_cast<const float*>(b[0].data);
    float worst = 0;
    for (int i = 0; i < 3 * 64 * 48; ++i) worst = std::max(worst, std::abs(x[i] - y[i]));
    CHECK(worst < 2e-6f);
    CHECK(worst > 0);
}

TEST_CASE("blurs of other taps are folded in type, and done one by one") {
    const auto mixed = data::range(5) | data::map<&draw>() |
                       data::blur<&picture::pixels>({.taps = 3}) |
                       data::blur<&picture::pixels>({.taps = 5});
    const auto apart = data::range(5) | data::map<&draw>() |
                       data::apart(data::blur<&picture::pixels>({.taps = 3})) |
                       data::apart(data::blur<&picture::pixels>({.taps = 5}));
    data::arena memory;
    const data::arena_scope scope(memory);
    data::detail::cells a, b;
    CHECK(data::detail::typed_program(mixed).make(1, 0, 0, a));
    CHECK(data::detail::typed_program(apart).make(1, 0, 0, b));
    for (int i = 0; i < 3 * 64 * 48; ++i)
        REQUIRE(reinterpret_cast<const float*>(a[0].data)[i] ==
                reinterpret_cast<const float*>(b[0].data)[i]);
}

} // namespace blur_operator_test
