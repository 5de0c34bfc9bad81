// SPDX-License-Identifier: Apache-2.0
#include <skein/data/slots.hpp>

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include <catch2/catch_test_macros.hpp>

using namespace skein;

namespace {
std::shared_ptr<const data::row_layout> layout_of(std::int64_t floats) {
    auto made = std::make_shared<data::row_layout>();
    made->columns.push_back(
        {.type = data::number_type::f32, .width = 4, .rank = 1, .dims = {floats}});
    made->columns.push_back({.type = data::number_type::i64, .width = 8});
    return made;
}
} // namespace

TEST_CASE("a pool gives slots within its budget, and one at least") {
    const auto layout = layout_of(4);
    CHECK(layout->row_bytes() == 24);
    CHECK(layout->slot_bytes(10) == 192 + 128);
    const auto pool = std::make_shared<data::slot_pool>(700);
    auto a = pool->take(layout, 10), b = pool->take(layout, 10);
    CHECK(a);
    CHECK(b);
    CHECK_FALSE(pool->take(layout, 10));
    CHECK(pool->used() == 640);
    int told = 0;
    pool->on_return([&] { told += 1; });
    a.reset();
    CHECK(told == 1);
    CHECK(pool->take(layout, 10));
    b.reset();
    CHECK(pool->slots() == 0);
    CHECK(pool->peak() == 640);
    const auto large = pool->take(layout, 1000); // above the budget, alone
    CHECK(large);
    CHECK_FALSE(pool->take(layout, 1));
}

TEST_CASE("rows are written to their places and move up") {
    const auto layout = layout_of(2);
    const auto pool = std::make_shared<data::slot_pool>(1 << 20);
    const auto slot = pool->take(layout, 3);
    for (std::int64_t row = 0; row < 3; ++row) {
        const float x[] = {float(row), float(row) + 0.5f};
        data::detail::cells values = layout->columns;
        values[0].data = reinterpret_cast<const std::byte*>(x);
        values[1].data = reinterpret_cast<const std::byte*>(&row);
        slot->write(std::uint64_t(row), values);
    }
    slot->move_row(2, 1);
    CHECK(reinterpret_cast<const float*>(slot->column(0))[3] == 2.5f);
    CHECK(reinterpret_cast<const std::int64_t*>(slot->column(1))[1] == 2);
    CHECK(reinterpret_cast<std::uintptr_t>(slot->column(1)) % 64 == 0);
}

TEST_CASE("slots outlive their pool's owner and come back on any thread") {
    auto pool = std::make_shared<data::slot_pool>(1 << 20);
    auto slot = pool->take(layout_of(2), 3);
    const std::weak_ptr<data::slot_pool> alive = pool;
    std::thread([held = std::move(slot), pool = std::move(pool)]() mutable {
        pool.reset();
        held.reset();
    }).join();
    CHECK(alive.expired());
}
