// SPDX-License-Identifier: Apache-2.0
#include <skein/train/checkpoint_writer.hpp>

#include <catch2/catch_test_macros.hpp>

#include <atomic>
#include <chrono>
#include <future>
#include <optional>
#include <stdexcept>
#include <thread>

using namespace skein;
using namespace skein::train;
using namespace std::chrono_literals;

TEST_CASE("a save is made on the writer's thread, and its end is kept") {
    checkpoint_writer writer;
    CHECK_FALSE(writer.is_writing());
    CHECK_FALSE(writer.has_ended());
    for (std::uint64_t step = 1; step <= 3; ++step) {
        std::promise<void> go_on;
        std::thread::id on;
        writer.begin([&, step, until = go_on.get_future().share()] {
            on = std::this_thread::get_id();
            until.wait();
            return saved_checkpoint{.step = step};
        });
        CHECK(writer.is_writing());
        CHECK_FALSE(writer.has_ended());
        CHECK_FALSE(writer.wait_for(1ms));
        go_on.set_value();
        writer.wait();
        CHECK_FALSE(writer.is_writing());
        REQUIRE(writer.has_ended());
        CHECK_FALSE(writer.has_failed());
        CHECK(writer.take().value().step == step);
        CHECK_FALSE(writer.has_ended());
        CHECK(on != std::this_thread::get_id());
    }
}

TEST_CASE("what a save throws is the end of it") {
    checkpoint_writer writer;
    writer.begin([]() -> saved_checkpoint { throw error(errc::disk_full, "no room"); });
    CHECK(writer.wait_for(10s));
    CHECK(writer.has_failed());
    const auto full = writer.take();
    REQUIRE_FALSE(full.has_value());
    CHECK(full.error().code() == errc::disk_full);
    CHECK(full.error().text() == "no room");

    writer.begin([]() -> saved_checkpoint { throw std::runtime_error("broken"); });
    writer.wait();
    CHECK(writer.take().error().text() == "broken");
    writer.begin([] { return saved_checkpoint{.step = 7}; }); // and it goes on
    writer.wait();
    CHECK(writer.take().value().step == 7);
}

TEST_CASE("a writer that goes away has made its save") {
    std::atomic<bool> made = false;
    {
        checkpoint_writer writer;
        writer.begin([&] {
            std::this_thread::sleep_for(20ms);
            made = true;
            return saved_checkpoint{};
        });
    }
    CHECK(made);
    { const checkpoint_writer unused; }
}
