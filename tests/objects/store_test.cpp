// SPDX-License-Identifier: Apache-2.0
// What a store does by itself: pages go back when nothing has changed for a while. All that it does for
// processes is in store_client_test.cpp.
#include "objects/store_support.hpp"

#include <skein/core/sleep.hpp>

#include <utility>

#include <catch2/catch_test_macros.hpp>

namespace store_test {

using namespace skein;
using namespace std::chrono_literals;
using objects_test::world;

constexpr std::uint64_t mebi = std::uint64_t{1} << 20;

TEST_CASE("pages of what is gone are given back ten seconds after the last change",
          "[objects][store]") {
    world w(8 * mebi);
    w.run([](world& w) -> task<void> {
        auto joining = w.join("a");
        auto a = co_await joining;
        for (int i = 0; i < 3000; ++i) {
            auto creating = a->client->create(mebi, 1s);
            auto made = co_await creating;
            REQUIRE(made);
            made->bytes()[0] = std::byte{1};
            auto sealing = a->client->seal(std::move(*made));
            (void)co_await sealing;
        }
        co_await sleep_for(5s);
        CHECK(w.store->usage().objects == 0);
        CHECK(w.store->usage().kept > 0);
        CHECK(w.store->usage().kept <= 3 * mebi); // places are used again
        co_await sleep_for(15s);
        CHECK(w.store->usage().kept == 0);
        CHECK(w.memory.view(0, 1)[0] == std::byte{0});
    });
}

TEST_CASE("more than one message names at most is refused", "[objects][store]") {
    world w(8 * mebi);
    w.run([](world& w) -> task<void> {
        auto dialing = w.dial("a", 5);
        auto wire = co_await dialing;
        auto link = net::requests::over(std::move(wire));
        objects::claim_request many;
        many.which.resize(objects::most_names + 1);
        auto asking = as_result(link->call<objects::claim_reply>(std::move(many)));
        const auto outcome = co_await asking;
        REQUIRE(!outcome);
        CHECK(outcome.error().code() == errc::malformed);
        auto closing = link->close();
        co_await closing;
    });
}

} // namespace store_test
