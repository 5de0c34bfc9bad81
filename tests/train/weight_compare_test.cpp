// SPDX-License-Identifier: Apache-2.0
#include <skein/train/weight_compare.hpp>

#include <tests/support/memory_weights.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace weight_compare_cases {

using namespace skein;
using namespace skein::train;
using skein::test::memory_weights;

TEST_CASE("what is missing, of another kind or of other values is told by name") {
    memory_weights a, b;
    a.add("same", {2}, {1, 2}).add("gone", {1}, {1}).add("shape", {2, 3}, {1, 2, 3, 4, 5, 6});
    b.add("same", {2}, {1, 2}).add("new", {1}, {1}).add("shape", {3, 2}, {1, 2, 3, 4, 5, 6});
    a.add("type", {1}, {1}).add("values", {4}, {1, 2, 3, 4});
    b.add("type", {1}, {1}, "BF16").add("values", {4}, {1, 2.5, 3, 0});
    const auto found = compare_weights(a, b);
    CHECK(found.equal == 1);
    REQUIRE(found.different.size() == 5);
    const auto& gone = found.different[0];
    CHECK((gone.name == "gone" && gone.is_missing() && !gone.second));
    CHECK((found.different[1].name == "new" && !found.different[1].first));
    CHECK((found.different[2].name == "shape" && found.different[2].is_other_kind()));
    CHECK((found.different[3].name == "type" && found.different[3].is_other_kind()));
    const auto& values = found.different[4];
    CHECK((values.count == 2 && values.elements == 4 && values.largest == 4.0));
    CHECK(compare_weights(a, a).different.empty());
}

TEST_CASE("elements are compared by their bytes") {
    const auto nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
    memory_weights a, b;
    a.add("zero", {2}, {0.0, 1}).add("nan", {2}, {nan, nan}).add("infinite", {1}, {infinity});
    b.add("zero", {2}, {-0.0, 1}).add("nan", {2}, {nan, 1}).add("infinite", {1}, {infinity});
    const auto found = compare_weights(a, b);
    CHECK(found.equal == 1);
    REQUIRE(found.different.size() == 2);
    CHECK((found.different[0].count == 1 && std::isinf(found.different[0].largest.value())));
    CHECK((found.different[1].count == 1 && found.different[1].largest == 0.0));
}

TEST_CASE("large tensors, empty ones and types without numbers are compared") {
    std::vector<double> many(1'500'000, 0.5); // more than is read at once
    memory_weights a, b;
    a.add("big", {1'500'000}, many).add("none", {0, 4}, {});
    many[1'499'999] = 0.75;
    b.add("big", {1'500'000}, many).add("none", {0, 4}, {});
    a.add_bytes("odd", {2}, byte_buffer{std::byte{1}, std::byte{2}}, "F8_E4M3");
    b.add_bytes("odd", {2}, byte_buffer{std::byte{1}, std::byte{3}}, "F8_E4M3");
    const auto found = compare_weights(a, b);
    CHECK(found.equal == 1);
    REQUIRE(found.different.size() == 2);
    CHECK((found.different[0].count == 1 && found.different[0].largest == 0.25));
    CHECK((found.different[1].count == 1 && !found.different[1].largest));
}

} // namespace weight_compare_cases
