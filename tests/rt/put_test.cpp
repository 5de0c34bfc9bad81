// SPDX-License-Identifier: Apache-2.0
// put(): what becomes an object, what stays, and what both are to those who get the ref.
#include <tests/support/sim_cluster.hpp>

#include <skein/core/sleep.hpp>
#include <skein/rt/put.hpp>
#include <skein/rt/remote.hpp>
#include <skein/rt/view.hpp>

#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch_test_macros.hpp>

namespace put_test {

using namespace skein;
using namespace std::chrono_literals;
using test::in_sim;
using test::in_sim_with_store;
using test::sim_cluster;

constexpr std::uint64_t mebi = std::uint64_t{1} << 20;

std::vector<int> numbers(std::size_t n) {
    std::vector<int> all(n);
    std::iota(all.begin(), all.end(), 0);
    return all;
}
std::int64_t total(const std::vector<int>& all) {
    return std::accumulate(all.begin(), all.end(), std::int64_t{0});
}
std::int64_t sum_of_ref_value(std::vector<int> all) { return total(all); }
std::int64_t sum_of_span(std::span<const int> all, int more) {
    return std::accumulate(all.begin(), all.end(), std::int64_t{more});
}
std::size_t length(std::string_view text) { return text.size(); }
std::map<int, std::string> table(int n) {
    std::map<int, std::string> all;
    for (int i = 0; i < n; ++i) all[i] = std::string(100, char('a' + i % 26));
    return all;
}

TEST_CASE("a large value is put once and read in place by all, a small one stays in its ref",
          "[V1][rt][objects][put]") {
    in_sim_with_store(1, 2, 8 * mebi, [](sim_cluster& c) -> task<void> {
        const auto many = numbers(100'000);
        auto putting = put(many);
        const auto large = co_await putting;
        auto putting_too = put(numbers(10));
        const auto small = co_await putting_too;
        CHECK(large.ready());
        CHECK(large.state()->object());
        CHECK(!small.state()->object());
        CHECK(c.stored().objects == 1);
        const auto in = objects::copied();
        for (int i = 0; i < 3; ++i) {
            const auto sum = remote<&sum_of_span>(large, i);
            const auto got = co_await sum;
            CHECK(got == total(many) + i);
        }
        CHECK(objects::copied().out == in.out); // nobody copied it
        const auto copied = remote<&sum_of_ref_value>(large);
        const auto got_1 = co_await copied;
        CHECK(got_1 == total(many));
        const auto of_small = remote<&sum_of_span>(small, 1);
        const auto got_2 = co_await of_small;
        CHECK(got_2 == 46);
        const auto value = co_await large;
        CHECK(value == many);
    });
}

TEST_CASE("an object goes when its last ref has gone", "[V4][rt][objects][put]") {
    in_sim_with_store(2, 1, 8 * mebi, [](sim_cluster& c) -> task<void> {
        {
            auto putting = put(std::string(200'000, 'x'));
            const auto text = co_await putting;
            const auto size = remote<&length>(text);
            const auto got_3 = co_await size;
            CHECK(got_3 == 200'000);
            CHECK(c.stored().objects == 1);
        }
        co_await sleep_for(1s);
        CHECK(c.stored().objects == 0);
    });
}

TEST_CASE("values of any type that can be sent can be put", "[V2][rt][objects][put]") {
    in_sim_with_store(3, 1, 8 * mebi, [](sim_cluster& c) -> task<void> {
        const auto all = table(2'000);
        auto putting = put(all);
        const auto stored = co_await putting;
        CHECK(c.stored().objects == 1);
        auto looking = view(stored);
        const auto seen = co_await looking;
        CHECK(*seen == all);
        auto looking_again = view(stored);
        const auto again = co_await looking_again;
        CHECK(&*again == &*seen); // decoded once
        CHECK(seen->at(7) == all.at(7));
    });
}

TEST_CASE("without a store, or above its size, a value travels in messages and is the same",
          "[V7][rt][objects][put]") {
    const auto body = [](sim_cluster&) -> task<void> {
        const auto many = numbers(1'000'000);
        auto putting = put(many);
        const auto stored = co_await putting;
        CHECK(!stored.state()->object());
        const auto sum = remote<&sum_of_span>(stored, 1);
        const auto got_4 = co_await sum;
        CHECK(got_4 == total(many) + 1);
        auto looking = view(stored);
        const auto seen = co_await looking;
        CHECK((*seen).size() == many.size());
        const auto value = co_await stored; // the ref has it still
        CHECK(value == many);
        const auto once_more = remote<&sum_of_ref_value>(stored);
        const auto got_5 = co_await once_more;
        CHECK(got_5 == total(many));
    };
    in_sim(4, 1, body);
    in_sim_with_store(5, 1, mebi, body);
}

TEST_CASE("a put into a full store waits for room, and goes on without it in the end",
          "[V6][rt][objects][put]") {
    in_sim_with_store(6, 1, mebi, [](sim_cluster& c) -> task<void> {
        auto putting = put(std::string(700'000, 'x'));
        auto first = co_await putting;
        const auto began = loop::current().now();
        auto waiting = put(std::string(700'000, 'y'));
        const auto second = co_await waiting;
        CHECK(!second.state()->object());
        CHECK(loop::current().now() - began >= 10s);
        const auto size = remote<&length>(second);
        const auto got_6 = co_await size;
        CHECK(got_6 == 700'000);
        first = {};
        auto putting_again = put(std::string(700'000, 'z'));
        const auto third = co_await putting_again;
        CHECK(third.state()->object());
        CHECK(c.stored().objects == 1);
    });
}

} // namespace put_test
