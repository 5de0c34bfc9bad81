// SPDX-License-Identifier: Apache-2.0
// Objects that go to files when the store is full, and come back when they are read; disks that fail.
#include "objects/store_support.hpp"

#include <skein/core/sleep.hpp>
#include <skein/objects/spill.hpp>

#include <cstdlib>
#include <utility>
#include <vector>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

namespace spill_test {

using namespace skein;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;
using objects::object_ptr;
using objects::reading_ptr;
using objects_test::user;
using objects_test::world;

constexpr std::uint64_t mebi = std::uint64_t{1} << 20;

task<object_ptr> make(user* by, std::uint64_t bytes, int with, time_span patience = 1s) {
    auto creating = by->client->create(bytes, patience);
    auto made = co_await creating;
    if (!made) co_return nullptr;
    std::memset(made->bytes().data(), with, made->bytes().size());
    auto sealing = by->client->seal(std::move(*made));
    co_return co_await sealing;
}

bool is_all(const reading_ptr& bytes, int value) {
    for (const auto one : bytes->bytes())
        if (one != std::byte(value)) return false;
    return true;
}

TEST_CASE("what was not read for longest goes to files and comes back", "[objects][spill]") {
    world w(4 * mebi, {});
    w.run([](world& w) -> task<void> {
        auto joining = w.join("a");
        auto a = co_await joining;
        std::vector<object_ptr> all;
        for (int i = 0; i < 12; ++i) {
            auto making = make(a.get(), mebi, i + 1);
            all.push_back(co_await making);
            REQUIRE(all.back());
        }
        CHECK(w.store->usage().away >= 8 * mebi);
        CHECK(w.store->usage().sealed <= 4 * mebi);
        CHECK(w.store->files().bytes >= 8 * mebi);
        for (int round = 0; round < 2; ++round)
            for (int i = 0; i < 12; ++i) {
                auto reading = objects::read(all[static_cast<std::size_t>(i)]);
                const auto bytes = co_await reading;
                CHECK(is_all(bytes, i + 1));
            }
        CHECK(w.store->files().read >= 20 * mebi);
        CHECK(w.store->files().written == 12 * mebi); // what was written once is not again
        all.clear();
        co_await sleep_for(1s);
        CHECK(w.store->usage().objects == 0);
        CHECK(w.store->usage().pinned == 0);
        CHECK(w.store->usage().away == 0);
        CHECK(w.store->files().bytes == 0);
        const auto left = w.disk.list("spill");
        REQUIRE(left);
        CHECK(left->empty());
    });
}

TEST_CASE("what is read stays where it is, whoever wants room", "[objects][spill][V13]") {
    world w(4 * mebi, {});
    w.run([](world& w) -> task<void> {
        auto joining = w.join("a");
        auto a = co_await joining;
        auto joining_too = w.join("b");
        auto b = co_await joining_too;
        auto making = make(a.get(), 2 * mebi, 1);
        auto first = co_await making;
        auto claiming = b->client->claim({first->name()});
        const auto claimed = co_await claiming;
        auto reading = objects::read(claimed.at(0));
        auto bytes = co_await reading; // before there is any shortage
        first.reset();
        auto making_too = make(a.get(), 2 * mebi, 2);
        auto second = co_await making_too;
        auto making_more = make(a.get(), 2 * mebi, 3);
        const auto third = co_await making_more;
        REQUIRE(third);
        CHECK(is_all(bytes, 1));
        auto reading_third = objects::read(third);
        auto its = co_await reading_third;
        auto in_vain = make(a.get(), 2 * mebi, 4);
        const auto late = co_await in_vain;
        CHECK(!late); // both are read
        its.reset();
        auto making_at_last = make(a.get(), 2 * mebi, 5);
        const auto fifth = co_await making_at_last;
        REQUIRE(fifth);
        CHECK(is_all(bytes, 1));
        for (auto& [which, value] :
             std::vector<std::pair<object_ptr, int>>{{second, 2}, {third, 3}, {fifth, 5}}) {
            auto again = objects::read(which);
            const auto seen = co_await again;
            CHECK(is_all(seen, value));
        }
    });
}

TEST_CASE("without room to come back a process gets a copy of its own", "[objects][spill]") {
    world w(4 * mebi, {});
    w.run([](world& w) -> task<void> {
        auto joining = w.join("a");
        auto a = co_await joining;
        auto making = make(a.get(), 3 * mebi + 5, 1);
        const auto first = co_await making;
        auto making_too = make(a.get(), 4 * mebi, 2);
        const auto second = co_await making_too;
        auto reading = objects::read(second);
        const auto held = co_await reading;
        CHECK(is_all(held, 2));
        const auto began = loop::current().now();
        auto reading_too = objects::read(first);
        const auto copy = co_await reading_too;
        CHECK(is_all(copy, 1));
        CHECK(copy->bytes().size() == 3 * mebi + 5);
        CHECK(loop::current().now() - began < 5s);
        CHECK(w.store->usage().sealed == 4 * mebi);
    });
}

TEST_CASE("bytes that a disk has changed are an error that names object and volume",
          "[objects][spill][V15]") {
    world w(4 * mebi, {});
    w.run([](world& w) -> task<void> {
        auto joining = w.join("a");
        auto a = co_await joining;
        auto making = make(a.get(), 3 * mebi, 1);
        const auto first = co_await making;
        auto making_too = make(a.get(), 3 * mebi, 2);
        auto second = co_await making_too;
        REQUIRE(w.disk.flip_bit("spill/1", 8 * (2 * mebi + 77)));
        auto reading = as_result(objects::read(first));
        const auto got = co_await reading;
        REQUIRE(!got);
        CHECK(got.error().code() == errc::corrupt);
        CHECK_THAT(got.error().text(), ContainsSubstring("object 1 "));
        CHECK_THAT(got.error().text(), ContainsSubstring("spill (simulated)"));
        auto reading_too = objects::read(second);
        const auto other = co_await reading_too;
        CHECK(is_all(other, 2));
    });
}

TEST_CASE("a disk that fails to read is an error, and one that fails to write no room",
          "[objects][spill]") {
    world w(4 * mebi, {});
    w.run([](world& w) -> task<void> {
        auto joining = w.join("a");
        auto a = co_await joining;
        auto making = make(a.get(), 3 * mebi, 1);
        const auto first = co_await making;
        w.disk.set_read_only(true);
        auto in_vain = make(a.get(), 3 * mebi, 2, 3s);
        const auto late = co_await in_vain;
        CHECK(!late);
        w.disk.set_read_only(false);
        auto making_too = make(a.get(), 3 * mebi, 2, 3s);
        const auto second = co_await making_too;
        REQUIRE(second);
        w.disk.options().io_error = 1;
        auto reading = as_result(objects::read(first));
        const auto got = co_await reading;
        REQUIRE(!got);
        CHECK(got.error().code() == errc::io);
        w.disk.options().io_error = 0;
        auto again = objects::read(first); // it may be well again
        const auto bytes = co_await again;
        CHECK(is_all(bytes, 1));
    });
}

TEST_CASE("five percent of a volume stay free, and room on it is used again", "[objects][spill]") {
    world w(4 * mebi, {.capacity = 10 * mebi});
    w.run([](world& w) -> task<void> {
        auto joining = w.join("a");
        auto a = co_await joining;
        std::vector<object_ptr> all;
        for (int i = 0; i < 16; ++i) {
            auto making = make(a.get(), mebi, i + 1);
            auto one = co_await making;
            if (one) all.push_back(std::move(one));
        }
        CHECK(all.size() == 13); // four in memory and nine in files
        CHECK(w.store->files().bytes == 9 * mebi);
        all.erase(all.begin(), all.begin() + 4);
        auto making = make(a.get(), 2 * mebi, 99, 5s);
        const auto made = co_await making;
        CHECK(made);
    });
}

TEST_CASE("a process that does not answer keeps what it holds", "[objects][spill]") {
    world w(4 * mebi, {});
    w.run([](world& w) -> task<void> {
        auto joining = w.join("a");
        auto a = co_await joining;
        auto making = make(a.get(), 3 * mebi, 1);
        const auto first = co_await making;
        auto dialing = w.dial("b", 5);
        auto wire = co_await dialing;
        auto link = net::requests::over(std::move(wire)); // it reads no news
        objects::claim_request what;
        what.which.push_back(first->name().number);
        auto claiming = link->call<objects::claim_reply>(what);
        (void)co_await claiming;
        auto in_vain = make(a.get(), 3 * mebi, 2, 5s);
        const auto late = co_await in_vain;
        CHECK(!late);
        auto closing = link->close();
        co_await closing;
        auto making_too = make(a.get(), 3 * mebi, 2, 5s);
        const auto made = co_await making_too;
        CHECK(made);
    });
}

TEST_CASE("a folder in memory, none, or one that nobody may write to is refused",
          "[objects][spill]") {
    const auto why = [](const char* path) -> std::string {
        try {
            (void)objects::open_spill_folder(path);
        } catch (const error& e) {
            CHECK(e.code() == errc::usage);
            return e.text();
        }
        return "";
    };
    CHECK_THAT(why("/dev/shm"), ContainsSubstring("/dev/shm"));
    CHECK_THAT(why("/dev/shm"), ContainsSubstring("memory itself"));
    CHECK_THAT(why("/there/is/none"), ContainsSubstring("no such file"));
    CHECK_THAT(why("/proc"), ContainsSubstring("/proc"));
    const auto good = objects::open_spill_folder("/var/tmp");
    REQUIRE(good);
    CHECK_THAT(good->name(), ContainsSubstring("/var/tmp ("));
    const auto left = good->left();
    REQUIRE(left);
    CHECK(left->free <= left->bytes);
}

} // namespace spill_test
