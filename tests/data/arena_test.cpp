// SPDX-License-Identifier: Apache-2.0
#include <skein/core/error.hpp>
#include <skein/data/arena.hpp>

#include <cstdint>
#include <cstring>

#include <catch2/catch_test_macros.hpp>

using namespace skein;

TEST_CASE("an arena gives aligned memory that does not overlap, and keeps it over a reset") {
    data::arena memory;
    std::byte* last = nullptr;
    for (int i = 0; i < 100; ++i) {
        auto* const given = memory.allocate(50'000);
        CHECK(reinterpret_cast<std::uintptr_t>(given) % 64 == 0);
        std::memset(given, i, 50'000);
        if (last != nullptr) CHECK(last[49'999] == std::byte(i - 1));
        last = given;
    }
    CHECK(memory.used() >= 5'000'000);
    CHECK(memory.reserved() >= memory.used());
    CHECK(memory.reserved() < 3 * memory.used());
    memory.reset();
    CHECK(memory.used() == 0);
    (void)memory.allocate(1);
    const auto kept = memory.reserved();
    CHECK(kept >= 5'000'000);
    memory.reset();
    (void)memory.allocate(5'000'000);
    CHECK(memory.reserved() == kept);
}

TEST_CASE("rows of one size take no more memory than the first one did") {
    data::arena memory;
    const auto make_row = [&] {
        memory.reset();
        auto* const first = memory.allocate(600'000);
        for (int i = 0; i < 10; ++i) (void)memory.allocate(600'000);
        (void)memory.allocate(3'000'000); // more than a block
        return first;
    };
    (void)make_row(); // the second one is in one block
    auto* const first = make_row();
    const auto kept = memory.reserved();
    for (int row = 0; row < 5; ++row) {
        CHECK(make_row() == first);
        CHECK(memory.reserved() == kept);
    }
}

TEST_CASE("an arena keeps what the largest row takes, not what each larger one took") {
    data::arena memory;
    // Pictures sorted by their size: each is a little larger than all before it.
    for (std::size_t size = 1'000'000; size <= 20'000'000; size += 50'000) {
        memory.reset();
        (void)memory.allocate(size / 4); // a file
        (void)memory.allocate(size);     // and its pixels
        CHECK(memory.reserved() <= 60'000'000);
    }
    memory.reset();
    (void)memory.allocate(1);
    CHECK(memory.reserved() <= 30'000'000);
    CHECK(memory.reserved() >= 25'000'000);
}

TEST_CASE("the current arena is that of the innermost scope") {
    try {
        (void)data::arena::current();
        FAIL("there is none");
    } catch (const error& e) {
        CHECK(e.code() == errc::usage);
    }
    data::arena outer, inner;
    const data::arena_scope one(outer);
    CHECK(&data::arena::current() == &outer);
    {
        const data::arena_scope two(inner);
        CHECK(&data::arena::current() == &inner);
    }
    CHECK(&data::arena::current() == &outer);
}
