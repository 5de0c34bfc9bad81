// SPDX-License-Identifier: Apache-2.0
#include <skein/core/error.hpp>
#include <skein/data/blur.hpp>

#include <catch2/catch_test_macros.hpp>
#include <tests/data/oracle.hpp>

using namespace skein;
using skein_test::difference;
using skein_test::oracle;

TEST_CASE("blurs one after the other, and folded, give torchvision's values") {
    data::arena memory;
    const data::arena_scope scope(memory);
    // The small picture is not larger than the radius of the whole.
    for (const std::string size : {"large", "small"}) {
        const auto from = oracle().at("blur/" + size + "/from").picture<float, 3>();
        const auto sigmas = oracle().at("blur/" + size + "/sigmas").as<float>();
        const auto& wanted = oracle().at("blur/" + size + "/to");
        auto made = from;
        for (const float sigma : sigmas) made = data::gaussian_blur(made, 11, sigma);
        CHECK(difference(made.values(), wanted) < 2e-6);
        CHECK(difference(data::gaussian_blur_folded(from, sigmas, 11).values(), wanted) < 2e-6);
    }
    const auto one = data::gaussian_blur(oracle().at("to_float").picture<float, 3>(), 5, 1.3f);
    CHECK(difference(one.values(), oracle().at("blur/one")) < 2e-6);
}

TEST_CASE("a blur that cannot be says why") {
    data::arena memory;
    const data::arena_scope scope(memory);
    const auto tiny = data::make_image<float, 1>(5, 30), fine = data::make_image<float, 1>(9, 9);
    CHECK_THROWS_AS(data::gaussian_blur(tiny, 11, 1.0f), error);
    CHECK_THROWS_AS(data::gaussian_blur(fine, 4, 1.0f), error);
    CHECK_THROWS_AS(data::gaussian_blur(fine, 5, 0.0f), error);
    for (auto& each : fine.values()) each = 0.25f;
    CHECK(data::gaussian_blur_folded(fine, {}, 5).values()[40] == 0.25f);
}
