// SPDX-License-Identifier: Apache-2.0
#include <skein/core/error.hpp>
#include <skein/train/sampler.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>
#include <numeric>

using namespace skein;
using namespace skein::train;
using ids = std::vector<std::uint64_t>;

namespace {

/// The ids of the next `batches` global batches as `world` ranks see them together.
ids take(sampler_options options, const sampler_state& from, int world, std::size_t batches,
         sampler_state* end = nullptr) {
    std::vector<sampler> ranks;
    for (int r = 0; r < world; ++r) {
        ranks.emplace_back(options, world);
        ranks.back().restore(from);
    }
    ids all;
    for (std::size_t b = 0; b < batches; ++b)
        for (int r = 0; r < world; ++r) {
            auto slice = ranks[static_cast<std::size_t>(r)].next(r, world);
            all.insert(all.end(), slice.ids.begin(), slice.ids.end());
        }
    if (end != nullptr) *end = ranks[0].state();
    for (auto& r : ranks) REQUIRE(r.state() == ranks[0].state());
    return all;
}

} // namespace

TEST_CASE("an epoch visits every sample once, in another order than the next") {
    const sampler_options o{.samples = 96, .batch = 8, .seed = 5};
    auto two = take(o, {.seed = 5}, 1, 24);
    ids first(two.begin(), two.begin() + 96), second(two.begin() + 96, two.end());
    CHECK(first != second);
    for (auto* epoch : {&first, &second}) {
        std::sort(epoch->begin(), epoch->end());
        ids whole(96);
        std::iota(whole.begin(), whole.end(), 0);
        CHECK(*epoch == whole);
    }
    CHECK(take(o, {.seed = 6}, 1, 24) != two);
}

TEST_CASE("any number of workers sees the same global batches") {
    const sampler_options o{.samples = 1000, .batch = 12, .seed = 1};
    const auto alone = take(o, {.seed = 1}, 1, 200);
    for (int world : {2, 3, 5, 12}) CHECK(take(o, {.seed = 1}, world, 200) == alone);
}

TEST_CASE("a run goes on with another number of workers exactly where it stopped") {
    const sampler_options o{.samples = 100, .batch = 8, .seed = 3};
    const auto whole = take(o, {.seed = 3}, 2, 60);
    for (int before : {1, 2, 3})
        for (int after : {1, 2, 3})
            for (std::size_t stop : {1, 11, 12, 13, 30}) {
                sampler_state state;
                auto order = take(o, {.seed = 3}, before, stop, &state);
                const auto rest = take(o, state, after, 60 - stop);
                order.insert(order.end(), rest.begin(), rest.end());
                REQUIRE(order == whole);
            }
}

TEST_CASE("slices of one batch differ by at most one sample") {
    for (std::uint64_t count : {0, 1, 7, 12, 100})
        for (int world : {1, 2, 3, 7}) {
            std::uint64_t next = 0;
            for (int r = 0; r < world; ++r) {
                const auto [first, last] = rank_range(count, r, world);
                REQUIRE(first == next);
                REQUIRE(last - first >= count / static_cast<std::uint64_t>(world));
                REQUIRE(last - first <= count / static_cast<std::uint64_t>(world) + 1);
                next = last;
            }
            REQUIRE(next == count);
        }
}

TEST_CASE("the last places of an epoch are dropped, or make one short batch") {
    sampler drop({.samples = 10, .batch = 4, .seed = 1});
    CHECK(drop.batches_per_epoch() == 2);
    CHECK(drop.next(0, 1).epoch == 0);
    CHECK(drop.next(0, 1).epoch == 0);
    CHECK(drop.next(0, 1).epoch == 1);

    sampler shorten({.samples = 10, .batch = 4, .seed = 1, .last = last_batch::shorten});
    CHECK(shorten.batches_per_epoch() == 3);
    ids epoch;
    for (std::uint64_t size : {4, 4, 2}) {
        auto slice = shorten.next(0, 1);
        CHECK(slice.epoch == 0);
        CHECK(slice.global_batch == size);
        epoch.insert(epoch.end(), slice.ids.begin(), slice.ids.end());
    }
    std::sort(epoch.begin(), epoch.end());
    CHECK(epoch == ids{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
    CHECK(shorten.next(0, 1).epoch == 1);
}

TEST_CASE(
    "the last places of an epoch may be carried over: every batch is full, none is left out") {
    const sampler_options o{.samples = 10, .batch = 4, .seed = 1, .last = last_batch::carry};
    const auto two = take(o, {.seed = 1}, 1, 5);
    ids first(two.begin(), two.begin() + 10), second(two.begin() + 10, two.end());
    CHECK(first != second);
    for (auto* epoch : {&first, &second}) {
        std::sort(epoch->begin(), epoch->end());
        CHECK(*epoch == ids{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
    }
    for (int world : {2, 3, 4}) CHECK(take(o, {.seed = 1}, world, 5) == two);
    sampler_state state; // also when it goes on inside the batch that spans two epochs
    auto order = take(o, {.seed = 1}, 2, 3, &state);
    const auto rest = take(o, state, 3, 2);
    order.insert(order.end(), rest.begin(), rest.end());
    CHECK(order == two);
    sampler large(
        {.samples = 3, .batch = 8, .last = last_batch::carry}); // several epochs in one batch
    CHECK(large.next(0, 1).ids.size() == 8);
    CHECK(large.state() == sampler_state{.seed = 0, .epoch = 2, .cursor = 2});
}

TEST_CASE("epochs come to a number of batches by what becomes of their ends") {
    const auto batches = [](last_batch last, std::uint64_t epochs) {
        return sampler({.samples = 10, .batch = 4, .last = last}).batches_of(epochs);
    };
    CHECK(batches(last_batch::drop, 3) == 6);
    CHECK(batches(last_batch::shorten, 3) == 9);
    CHECK(batches(last_batch::carry, 3) == 7);
    CHECK(batches(last_batch::carry, 2) == 5);
}

TEST_CASE("numbers that cannot train are usage errors with both numbers and a way out") {
    auto text = [](sampler_options o, int world) {
        const auto checked = sampler::check(o, world);
        REQUIRE_FALSE(checked);
        CHECK(checked.error().code() == errc::usage);
        return std::string(checked.error().what());
    };
    using Catch::Matchers::ContainsSubstring;
    CHECK_THAT(text({.samples = 3, .batch = 8}, 4),
               ContainsSubstring("4 workers but only 3 samples"));
    CHECK_THAT(text({.samples = 0, .batch = 8}, 1), ContainsSubstring("no samples"));
    CHECK_THAT(text({.samples = 30, .batch = 2}, 4),
               ContainsSubstring("batch of 2 samples cannot be dealt to 4"));
    CHECK_THAT(text({.samples = 30, .batch = 0}, 1), ContainsSubstring("0 samples"));
    CHECK_THAT(text({.samples = 30, .batch = 40}, 1), ContainsSubstring("30 samples do not fill"));
    CHECK_THAT(text({.samples = 30, .batch = 4}, 0), ContainsSubstring("0 workers"));
    CHECK_THROWS_AS(sampler({.samples = 3, .batch = 8}, 4), error);
    CHECK(sampler::check({.samples = 4, .batch = 4}, 4));
}

TEST_CASE("a saved position of other data is refused") {
    sampler s({.samples = 10, .batch = 2});
    CHECK_THROWS_AS(s.restore({.seed = 0, .epoch = 0, .cursor = 11}), error);
    s.restore({.seed = 0, .epoch = 4, .cursor = 10});
    CHECK(s.next(0, 1).epoch == 5);
}
