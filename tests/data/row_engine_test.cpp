// SPDX-License-Identifier: Apache-2.0
#include <skein/core/event.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/data/detail/row_engine.hpp>
#include <skein/sim/loop.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch_test_macros.hpp>

namespace row_engine_test {

using namespace skein;
using namespace std::chrono_literals;
using data::detail::batch_request;

/// Takes a request and never answers.
class silent_helper final : public data::detail::row_helper {
public:
    explicit silent_helper(int* asked) : asked_(asked) {}
    task<data::detail::rows_answer> make(data::detail::rows_request) override {
        ++*asked_;
        event never;
        auto waiting = never.wait();
        co_await waiting;
        co_return data::detail::rows_answer();
    }
    std::string name() const override { return "silent"; }

private:
    int* asked_;
};

/// Rows of one number, with one helper.
class numbers final : public data::detail::row_program {
public:
    explicit numbers(int* asked) : asked_(asked) {}
    std::uint64_t size() const override { return 100; }
    std::uint64_t sample_at(std::uint64_t, std::uint64_t, std::uint64_t place) const override {
        return place;
    }
    std::string describe() const override { return "numbers"; }
    bool make(std::uint64_t, std::uint64_t, std::uint64_t sample,
              data::detail::cells& out) const override {
        static constexpr std::byte values[64]{};
        auto number = data::detail::number_cell<std::int64_t>();
        number.data = values + sample % 8 * 8;
        out = {number};
        return true;
    }
    data::helpers wanted() const override { return {.most = 1, .cpus = 1}; }
    task<std::unique_ptr<data::detail::row_helper>> make_helper() const override {
        co_return std::make_unique<silent_helper>(asked_);
    }

private:
    int* asked_;
};

task<void> go_on_elsewhere(int* asked, std::vector<std::uint64_t>* came) {
    const auto slots = std::make_shared<data::slot_pool>(1); // room for one slot
    data::detail::engine_options how;
    data::detail::row_engine engine(
        std::make_shared<numbers>(asked), how, slots, nullptr,
        [&](data::detail::finished_batch made) { came->push_back(made.generation); },
        [](const std::string&) {});
    slots->on_return([&] { engine.room_changed(); });
    const data::detail::dealing deal{.size = 100, .global_batch = 20};
    scope work;
    work.spawn(engine.serve());
    engine.restart(1, batch_request::of(deal, 0, 0, 0));
    while (*asked == 0) co_await sleep_for(1ms);
    engine.restart(2, batch_request::of(deal, 0, 40, 0)); // the helper has rows of the first batch
    co_await sleep_for(10s);
    work.cancel();
    auto joined = work.join();
    try {
        co_await joined;
    } catch (const error& e) {
        CHECK(e.code() == errc::cancelled);
    }
    slots->on_return({});
    CHECK(slots->slots() == 0);
}

TEST_CASE("a forgotten batch gives its memory back though a helper never answers") {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        int asked = 0;
        std::vector<std::uint64_t> came;
        sim::loop loop(seed);
        loop.run(go_on_elsewhere(&asked, &came));
        REQUIRE(!came.empty());
        CHECK(came.back() == 2);
    }
}

} // namespace row_engine_test
