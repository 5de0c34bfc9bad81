// SPDX-License-Identifier: Apache-2.0
#include <skein/core/id_map.hpp>
#include <skein/core/philox.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

using namespace skein;

namespace {

using id = strong_id<struct id_map_test_tag>;

/// The table beside a std::map: the same changes, and then the same content.
struct pair_of_maps {
    id_map<id, std::unique_ptr<std::uint64_t>> table;
    std::map<std::uint64_t, std::uint64_t> model;

    void enter(std::uint64_t key, std::uint64_t value) {
        const auto& there = table.enter(id(key), std::make_unique<std::uint64_t>(value));
        REQUIRE(*there == model.try_emplace(key, value).first->second);
    }
    void erase(std::uint64_t key) { REQUIRE(table.erase(id(key)) == (model.erase(key) == 1)); }
    void erase_each(std::uint64_t nth) {
        const auto goes = [&](std::uint64_t key) { return key % 7 == nth; };
        table.erase_if([&](id one, const auto&) { return goes(one.value()); });
        std::erase_if(model, [&](const auto& one) { return goes(one.first); });
    }
    void compare() {
        REQUIRE(table.size() == model.size());
        REQUIRE(table.empty() == model.empty());
        std::size_t seen = 0;
        table.for_each([&](id one, const auto& value) {
            ++seen;
            REQUIRE(model.at(one.value()) == *value);
        });
        REQUIRE(seen == model.size());
        for (const auto& [key, value] : model) {
            const auto* const found = table.find(id(key));
            REQUIRE(found != nullptr);
            REQUIRE(**found == value);
        }
    }
};

TEST_CASE("the end of a value may look into its table", "[core][id_map]") {
    struct watcher {
        id_map<id, std::shared_ptr<watcher>>* in = nullptr;
        int* seen = nullptr;
        ~watcher() {
            if (in == nullptr) return;
            for (std::uint64_t i = 1; i <= 20; ++i) *seen += in->find(id(i)) != nullptr;
        }
    };
    id_map<id, std::shared_ptr<watcher>> table;
    int seen = 0;
    for (std::uint64_t i = 1; i <= 20; ++i) table.enter(id(i), std::make_shared<watcher>());
    (*table.find(id(7)))->in = &table;
    (*table.find(id(7)))->seen = &seen;
    CHECK(table.erase(id(7)));
    CHECK(table.size() == 19);
    CHECK(seen == 19); // whole, and without it
    (*table.find(id(8)))->in = &table;
    (*table.find(id(8)))->seen = &seen;
    seen = 0;
    table.clear();
    CHECK(seen == 0);
    CHECK(table.empty());
    CHECK(table.find(id(9)) == nullptr);
    table.enter(id(9), std::make_shared<watcher>());
    CHECK(table.find(id(9)) != nullptr);
}

} // namespace

TEST_CASE("a table of ids holds what a map holds, whatever is entered and erased",
          "[core][id_map]") {
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
        philox_stream random(seed);
        pair_of_maps both;
        const std::uint64_t keys = 1 + random.below(300);
        for (std::uint64_t i = 0; i < 1000; ++i) {
            const auto key = random.below(keys);
            const auto what = random.below(100);
            if (what < 50) {
                both.enter(key, i);
            } else if (what < 98) {
                both.erase(key);
            } else {
                both.erase_each(what % 7);
                both.compare();
            }
        }
        both.compare();
    }
}

TEST_CASE("ids of several processes with the same numbers are told apart", "[core][id_map]") {
    id_map<call_id, const std::uint64_t*> table;
    const std::uint64_t values[] = {0, 1, 2, 3};
    for (std::uint64_t number = 1; number <= 500; ++number)
        for (std::uint64_t process = 1; process <= 3; ++process)
            table.enter(call_id({process, number}), &values[process]);
    CHECK(table.size() == 1500);
    for (std::uint64_t number = 1; number <= 500; ++number) {
        CHECK(table.erase(call_id({2, number})));
        CHECK_FALSE(table.erase(call_id({2, number})));
        CHECK(**table.find(call_id({3, number})) == 3);
    }
    CHECK(table.size() == 1000);
    CHECK(table.find(call_id({2, 7})) == nullptr);
}
