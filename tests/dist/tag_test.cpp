// SPDX-License-Identifier: Apache-2.0
#include <skein/dist/tag.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace skein::dist;

TEST_CASE("a tag fits into eight bytes and comes out as it was") {
    const collective_tag tag{.unit = 0xabcdef, .phase = tag_phase::save, .step = 0xfffffffe};
    CHECK(tag.pack() == 0x06abcdeffffffffeu);
    CHECK(collective_tag::unpack(tag.pack()) == tag);
    CHECK(collective_tag{}.pack() == 0);
}

TEST_CASE("a step beyond 32 bits still differs from its neighbours") {
    const std::uint64_t far = std::uint64_t{5} << 32;
    const auto at = [](std::uint64_t step) {
        return collective_tag{.unit = 1, .phase = tag_phase::row, .step = step}.pack();
    };
    CHECK(at(far) != at(far + 1));
    CHECK(at(far) == at(0));
}

TEST_CASE("a tag says what it is for") {
    CHECK(to_string(collective_tag{.unit = 3, .phase = tag_phase::reduce, .step = 12}) ==
          "reduce of unit 3 at step 12");
    CHECK(to_string(collective_tag{}) == "no tag");
}
