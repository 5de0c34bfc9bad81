// SPDX-License-Identifier: Apache-2.0
#include <skein/core/error.hpp>
#include <skein/core/sha256.hpp>
#include <skein/data/loader.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <future>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <sys/wait.h>
#include <unistd.h>

namespace loader_test {

using namespace skein;
using Catch::Matchers::ContainsSubstring;

struct point {
    data::array<float> x;
    std::array<std::int32_t, 2> of = std::array<std::int32_t, 2>();
    std::int64_t label = 0;
};

point draw(std::int64_t i, data::draws& random) {
    auto values = data::arena::current().array<float>(5);
    for (auto& v : values) v = random.uniform(-1, 1);
    return {values, {std::int32_t(i), std::int32_t(-i)}, i % 7};
}
bool is_odd(const point& p) { return p.label % 2 != 0; }
bool none(const point&) { return false; }
point add_noise(point p, data::draws& random) {
    auto values = data::arena::current().array<float>(p.x.size());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = p.x[i] + random.uniform(0, 1);
    p.x = values;
    return p;
}
point fail_on_13(std::int64_t i) {
    if (i == 13) throw std::runtime_error("thirteen");
    return {{}, {std::int32_t(i), 0}, i};
}
std::atomic<bool> is_broken{false}, is_short{false};
std::atomic<std::uint64_t> grown{0};
point fail_while_broken(std::int64_t i) {
    if (i == 5 && is_broken) throw std::runtime_error("broken now");
    return {{}, {}, i};
}
point need_memory(std::int64_t i) {
    if (i == 5 && is_short) throw std::bad_alloc();
    return {{}, {}, i};
}
point throw_a_number(std::int64_t i) {
    if (i == 5) throw 42;
    return {{}, {}, i};
}
/// Others add to it.
struct growing {
    std::uint64_t size() const { return grown; }
    std::int64_t read(std::uint64_t i) const { return static_cast<std::int64_t>(i); }
};
point of_two_lengths(std::int64_t i) {
    return {data::arena::current().array<float>(i == 20 ? 3 : 2), {}, i};
}

auto plan(std::uint64_t count, std::uint64_t batch) {
    return data::range(count) | data::map<&draw>() | data::map<&add_noise>() | data::shuffle() |
           data::batch(batch);
}

/// All bytes of so many epochs, over all ranks, in the order of the global batches.
template <class Plan>
std::string hash_of(const Plan& what, int world, int threads, std::uint64_t epochs,
                    std::vector<std::uint64_t>* ids = nullptr) {
    sha256 hash;
    std::vector<std::unique_ptr<data::loader<Plan>>> ranks;
    for (int rank = 0; rank < world; ++rank)
        ranks.push_back(
            std::make_unique<data::loader<Plan>>(what, data::loader_options{.rank = rank,
                                                                            .world_size = world,
                                                                            .seed = 5,
                                                                            .threads = threads,
                                                                            .epochs = epochs}));
    for (;;) {
        bool more = false;
        for (auto& rank : ranks) {
            const auto b = rank->next();
            if (!b) continue;
            more = true;
            hash.update(as_bytes(std::span(b->samples())));
            hash.update(std::as_bytes(b->template column<0>()));
            hash.update(std::as_bytes(b->template column<1>()));
            hash.update(std::as_bytes(b->template column<2>()));
            if (ids != nullptr) ids->insert(ids->end(), b->samples().begin(), b->samples().end());
        }
        if (!more) break;
    }
    return to_hex(hash.finish());
}

TEST_CASE("batches are the same for any number of threads; every sample comes once an epoch") {
    const auto what = plan(103, 16);
    std::vector<std::uint64_t> ids;
    const auto one = hash_of(what, 1, 1, 2, &ids);
    REQUIRE(ids.size() == 206);
    const std::set<std::uint64_t> first(ids.begin(), ids.begin() + 103),
        second(ids.begin() + 103, ids.end());
    CHECK(first.size() == 103);
    CHECK(second.size() == 103);
    CHECK(std::vector(ids.begin(), ids.begin() + 103) != std::vector(ids.begin() + 103, ids.end()));
    for (const int threads : {2, 7}) CHECK(hash_of(what, 1, threads, 2) == one);
}

TEST_CASE("what a batch gave keeps it, also when the batch was a temporary") {
    const auto what = plan(64, 8);
    std::vector<float> wanted, got;
    data::loader kept(what, {.threads = 1, .epochs = 1});
    while (const auto b = kept.next())
        wanted.insert(wanted.end(), b->column<0>().begin(), b->column<0>().end());
    // Memory for two batches: the slot of a batch that has gone is filled again at once.
    data::loader batches(what, {.threads = 1, .budget = 2000, .epochs = 1});
    for (int i = 0; i < 8; ++i)
        for (const float x : batches.next()->column<0>()) got.push_back(x);
    CHECK(got == wanted);
}

point of_another_length(std::int64_t i) {
    return {data::arena::current().array<float>(i % 10 == 3 ? 3 : 2), {}, i};
}
TEST_CASE("rows of another shape end it on any rank, whatever may be left out") {
    for (int world : {1, 2, 3})
        for (int rank = 0; rank < world; ++rank) {
            data::loader batches(
                data::range(60) | data::map<&of_another_length>() | data::batch(60),
                {.rank = rank, .world_size = world, .threads = 2, .bad_rows = 1000, .epochs = 1});
            CHECK_THROWS_WITH(batches.next(),
                              ContainsSubstring("rows of one batch have one shape"));
        }
}

TEST_CASE("ranks together see the order that one rank sees") {
    const auto what = plan(103, 16);
    std::vector<std::uint64_t> one, three;
    (void)hash_of(what, 1, 2, 2, &one);
    (void)hash_of(what, 3, 1, 2, &three);
    CHECK(one == three);
}

TEST_CASE("a filter makes batches smaller, alike on every number of ranks") {
    const auto what =
        data::range(64) | data::map<&draw>() | data::filter<&is_odd>() | data::batch(8);
    std::vector<std::uint64_t> one, two;
    (void)hash_of(what, 1, 2, 1, &one);
    (void)hash_of(what, 2, 2, 1, &two);
    CHECK(one == two);
    for (const auto id : one) CHECK(id % 7 % 2 == 1);
    CHECK(one.size() == 27);
}

TEST_CASE("a loader goes on where its state was saved, with another number of ranks") {
    const auto what = plan(100, 12);
    data::loader whole(what, {.seed = 5, .threads = 2, .epochs = 2});
    std::vector<std::vector<std::uint64_t>> batches;
    std::vector<std::string> states;
    while (auto b = whole.next()) {
        batches.emplace_back(b->samples().begin(), b->samples().end());
        states.push_back(whole.state());
        CHECK(states.back().size() <= 64);
    }
    REQUIRE(batches.size() == 18);
    for (const std::size_t at : {0u, 7u, 8u, 12u}) {
        std::vector<std::vector<std::uint64_t>> rest(batches.size() - at - 1);
        for (int rank = 0; rank < 3; ++rank) {
            data::loader again(
                what, {.rank = rank, .world_size = 3, .seed = 5, .threads = 1, .epochs = 2});
            (void)again.next(); // made ahead of another place
            again.restore(states[at]);
            std::size_t i = 0;
            while (auto b = again.next()) {
                REQUIRE(i < rest.size());
                rest[i].insert(rest[i].end(), b->samples().begin(), b->samples().end());
                i += 1;
            }
            CHECK(i == rest.size());
        }
        CHECK(rest == std::vector(batches.begin() + std::ptrdiff_t(at) + 1, batches.end()));
    }
    data::loader other(plan(99, 12), {.seed = 5});
    CHECK_THROWS_WITH(other.restore(states[0]), ContainsSubstring("of other data"));
    data::loader seed(what, {.seed = 6});
    CHECK_THROWS_WITH(seed.restore(states[0]), ContainsSubstring("seed 5, now it is 6"));
    CHECK_THROWS_WITH(seed.restore("short"), ContainsSubstring("5 bytes"));
}

TEST_CASE("a row that throws is named, or left out up to a number") {
    const auto what = data::range(40) | data::map<&fail_on_13>() | data::batch(10);
    data::loader strict(what, {.threads = 2});
    CHECK(strict.next()->rows() == 10);
    try {
        (void)strict.next();
        FAIL("it did not throw");
    } catch (const error& e) {
        CHECK_THAT(e.what(), ContainsSubstring("sample 13"));
        CHECK_THAT(e.what(), ContainsSubstring("thirteen"));
    }
    data::loader lenient(what, {.threads = 2, .bad_rows = 1, .epochs = 1});
    std::size_t rows = 0;
    while (auto b = lenient.next()) rows += b->rows();
    CHECK(rows == 39);
    CHECK(lenient.stats().bad == 1);
}

TEST_CASE("rows of unlike shape are an error that names both") {
    data::loader mixed(data::range(40) | data::map<&of_two_lengths>() | data::batch(40),
                       {.threads = 1});
    CHECK_THROWS_WITH(mixed.next(), ContainsSubstring("float32[3]") &&
                                        ContainsSubstring("float32[2]") &&
                                        ContainsSubstring("sample 20"));
}

TEST_CASE("a filter that keeps nothing gives empty batches, and the epoch ends") {
    data::loader empty(data::range(20) | data::map<&draw>() | data::filter<&none>() |
                           data::batch(8),
                       {.threads = 2, .epochs = 1});
    int batches = 0;
    while (auto b = empty.next()) {
        CHECK(b->rows() == 0);
        batches += 1;
    }
    CHECK(batches == 3);
}

TEST_CASE("the budget bounds what is made ahead; batches that are held are an error, not a hang") {
    // One batch has 8 rows of 20 + 8 + 8 bytes: three columns, each on a border of 64.
    const auto what = plan(1000, 8);
    data::loader small(what, {.threads = 2, .budget = 1000});
    (void)small.next();
    CHECK(small.stats().peak_bytes <= 1000);
    data::loader tiny(what, {.threads = 2, .budget = 1});
    for (int i = 0; i < 20; ++i) CHECK(tiny.next()->rows() == 8);
    std::vector<data::row_batch<point>> held;
    CHECK_THROWS_WITH(
        [&] {
            for (;;) held.push_back(*small.next());
        }(),
        ContainsSubstring("still held"));
}

TEST_CASE("parts of a pipeline share no sample") {
    const auto [train, test] = data::split(data::range(100) | data::map<&draw>(), 0.8, 3);
    std::vector<std::uint64_t> a, b;
    (void)hash_of(train | data::shuffle() | data::batch(7), 1, 1, 1, &a);
    (void)hash_of(test | data::batch(7), 1, 1, 1, &b);
    CHECK(a.size() == 80);
    CHECK(b.size() == 20);
    std::set<std::uint64_t> all(a.begin(), a.end());
    all.insert(b.begin(), b.end());
    CHECK(all.size() == 100);
    std::vector<std::uint64_t> c;
    (void)hash_of(data::range(100) | data::map<&draw>() | data::skip(90) | data::take(5) |
                      data::batch(3),
                  1, 1, 1, &c);
    CHECK(c == std::vector<std::uint64_t>{90, 91, 92, 93, 94});
}

TEST_CASE("what cannot be a loader says so") {
    CHECK_THROWS_WITH(data::loader(data::range(0) | data::map<&draw>() | data::batch(1)),
                      ContainsSubstring("no samples"));
    CHECK_THROWS_WITH(data::loader(data::range(9) | data::map<&draw>()),
                      ContainsSubstring("data::batch(n)"));
    CHECK_THROWS_WITH(
        data::loader(data::range(5) | data::map<&draw>() | data::batch(8), {.drop_last = true}),
        ContainsSubstring("5 of them do not fill a batch of 8"));
    CHECK_THROWS_WITH(
        data::loader(data::range(5) | data::map<&draw>() | data::batch(8), {.threads = 5000}),
        ContainsSubstring("5000 threads"));
    CHECK((data::range(9) | data::map<&draw>() | data::filter<&is_odd>() | data::shuffle())
              .describe() == "range(9) | map(draw) | filter(is_odd) | shuffle");
}

/// Samples of all batches that are left.
template <class Loader>
std::vector<std::uint64_t> rest_of(Loader& from) {
    std::vector<std::uint64_t> ids;
    while (auto b = from.next()) ids.insert(ids.end(), b->samples().begin(), b->samples().end());
    return ids;
}

TEST_CASE("a loader that has failed stands where it stood, and goes on") {
    for (const std::uint64_t may_be_bad : {0u, 1u}) {
        is_broken = true; // before the loader: it makes rows ahead
        data::loader batches(data::range(20) | data::map<&fail_while_broken>() |
                                 data::filter<&is_odd>() | data::batch(4),
                             {.threads = 1, .bad_rows = may_be_bad, .epochs = 1});
        CHECK(batches.next()->rows() == 2);
        if (may_be_bad == 0) {
            for (int i = 0; i < 2; ++i)
                CHECK_THROWS_WITH(batches.next(), ContainsSubstring("broken now"));
            CHECK(batches.stats().batches == 1);
            is_broken = false;
            CHECK(rest_of(batches) == std::vector<std::uint64_t>{5, 7, 9, 11, 13, 15, 17, 19});
            CHECK(batches.stats().bad == 0);
        } else {
            CHECK(rest_of(batches) == std::vector<std::uint64_t>{7, 9, 11, 13, 15, 17, 19});
            CHECK(batches.stats().bad == 1);
        }
        CHECK_FALSE(batches.next()); // and again
    }
}

TEST_CASE("a sample that is bad in every epoch is one of those that may be left out") {
    const auto what = data::range(40) | data::map<&fail_on_13>() | data::batch(10);
    data::loader batches(what, {.threads = 2, .bad_rows = 1, .epochs = 3});
    CHECK(rest_of(batches).size() == 117);
    const auto did = batches.stats();
    CHECK(did.bad == 1); // as the limit counts
    REQUIRE(did.left_out.size() == 1);
    CHECK(did.left_out[0].sample == 13);
    CHECK_THAT(did.left_out[0].why, ContainsSubstring("sample 13, map(fail_on_13): thirteen"));
}

TEST_CASE("memory that is out is no bad row: nothing is left out for it") {
    is_short = true;
    data::loader batches(data::range(20) | data::map<&need_memory>() | data::batch(20),
                         {.threads = 1, .bad_rows = 20, .epochs = 1});
    try {
        (void)batches.next();
        FAIL("it did not throw");
    } catch (const error& e) {
        CHECK(e.code() == errc::exhausted);
        CHECK_THAT(e.what(), ContainsSubstring("sample 5, map(need_memory): no memory"));
    }
    is_short = false;
    CHECK(rest_of(batches).size() == 20);
    // More than a vector may have: sanitizers would end the program for a large allocation.
    data::loader vast(data::range(std::uint64_t{1} << 62) | data::map<&draw>() |
                          data::batch(std::uint64_t{1} << 61),
                      {.threads = 1});
    for (int i = 0; i < 2; ++i)
        CHECK_THROWS_WITH(vast.next(), ContainsSubstring("no memory for the numbers"));
}

TEST_CASE("what is thrown comes out of next(), whatever it is") {
    data::loader batches(data::range(20) | data::map<&throw_a_number>() | data::batch(20),
                         {.threads = 2});
    CHECK_THROWS_WITH(batches.next(), ContainsSubstring("sample 5, map(throw_a_number)"));
}

TEST_CASE("a source that grows is as large as it was when its loader was made") {
    grown = 100;
    data::loader batches(growing() | data::map<&draw>() | data::shuffle() | data::batch(10),
                         {.seed = 3, .threads = 1, .budget = 1, .epochs = 2});
    std::vector<std::uint64_t> ids = batches.next()->samples();
    grown = 200;
    const auto rest = rest_of(batches);
    ids.insert(ids.end(), rest.begin(), rest.end());
    REQUIRE(ids.size() == 200);
    for (const auto half : {0, 100}) {
        const std::set<std::uint64_t> epoch(ids.begin() + half, ids.begin() + half + 100);
        CHECK(epoch.size() == 100);
        CHECK(*epoch.rbegin() == 99);
    }
    data::loader later(growing() | data::map<&draw>() | data::batch(10),
                       {.threads = 1, .epochs = 1});
    CHECK(rest_of(later).size() == 200);
}

TEST_CASE("a child that was forked has no loader, and does not wait for one") {
    const auto what = data::range(100) | data::map<&draw>() | data::batch(4);
    auto batches = std::make_unique<data::loader<std::remove_const_t<decltype(what)>>>(
        what, data::loader_options{.threads = 2, .epochs = 1});
    (void)batches->next();
    const auto child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        ::alarm(60); // else it would wait for ever
        int result = 1;
        try {
            (void)batches->next();
        } catch (const error& e) {
            result = e.code() == errc::usage ? 0 : 2;
        }
        batches.reset();
        ::_exit(result);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    CHECK(rest_of(*batches).size() == 96);
}

TEST_CASE("a row draws other numbers in the next epoch, and the same ones on every thread") {
    const auto what = data::range(8) | data::map<&draw>() | data::batch(8);
    std::vector<std::vector<float>> seen;
    for (const int threads : {1, 3}) {
        data::loader batches(what, {.seed = 7, .threads = threads, .epochs = 2});
        while (auto b = batches.next()) {
            const auto x = b->column<0>();
            seen.emplace_back(x.begin(), x.end());
        }
    }
    REQUIRE(seen.size() == 4);
    CHECK(seen[0] == seen[2]);
    CHECK(seen[1] == seen[3]);
    CHECK(seen[0] != seen[1]);
    // Nor do rows of one batch have the same numbers: each draws five.
    const std::set<float> distinct(seen[0].begin(), seen[0].end());
    CHECK(distinct.size() == 40);
}

TEST_CASE("a run that stops and goes on several times in one epoch sees each sample once") {
    const auto what = plan(100, 7);
    std::vector<std::uint64_t> whole, parts;
    (void)hash_of(what, 1, 1, 1, &whole);
    std::string place;
    for (const std::size_t batches : {3u, 1u, 4u, 1u, 100u}) {
        data::loader next(what, {.seed = 5, .threads = 1, .epochs = 1});
        if (!place.empty()) next.restore(place);
        for (std::size_t i = 0; i < batches; ++i) {
            const auto b = next.next();
            if (!b) break;
            parts.insert(parts.end(), b->samples().begin(), b->samples().end());
        }
        place = next.state();
    }
    CHECK(parts == whole);
}

TEST_CASE("loaders that are left after their first batch leave no thread") {
    const auto threads = [] {
        return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
    };
    const auto before = threads();
    for (int i = 0; i < 30; ++i) {
        data::loader batches(plan(100, 7), {.threads = 3});
        (void)batches.next();
    }
    CHECK(threads() == before);
}

TEST_CASE(
    "a place behind the last batch of an epoch is the next epoch, and stays as it was saved") {
    const auto what = plan(40, 10);
    for (const std::uint64_t epochs : {1, 2, 3}) {
        data::loader first(what, {.seed = 5, .epochs = 3});
        for (std::uint64_t i = 0; i < 4 * epochs; ++i) (void)first.next();
        const auto saved = first.state();
        data::loader second(what, {.seed = 5, .epochs = 3});
        second.restore(saved);
        CHECK(second.state() == saved);
        CHECK(rest_of(second) == rest_of(first));
        data::loader third(what, {.seed = 5, .epochs = 3});
        third.restore(saved);
        CHECK(rest_of(third).size() == 40 * (3 - epochs));
    }
}

bool is_early(const point& p) { return p.of[0] % 10 < 5; }

TEST_CASE("ranks have as many batches, though a filter takes the rows of one of them alone") {
    const auto what = data::range(60) | data::map<&draw>() | data::filter<&is_early>() |
                      data::batch(10); // the first half of each: rank 0's
    std::vector<std::size_t> rows[2];
    for (const int rank : {0, 1}) {
        data::loader batches(what, {.rank = rank, .world_size = 2, .epochs = 2});
        while (auto b = batches.next()) rows[rank].push_back(b->rows());
    }
    CHECK(rows[0] == std::vector<std::size_t>(12, 5));
    CHECK(rows[1] == std::vector<std::size_t>(12, 0));
}

bool is_drawn(const point&, data::draws& random) { return random.unit() < 0.3; }

TEST_CASE("a filter that draws keeps its share of the samples, the same ones in any batches") {
    std::vector<std::uint64_t> wanted;
    for (const std::uint64_t batch : {1, 2, 7, 1000}) {
        data::loader some(data::range(1000) | data::map<&draw>() | data::filter<&is_drawn>() |
                              data::batch(batch),
                          {.seed = 11, .threads = 2, .epochs = 1});
        std::vector<std::uint64_t> kept;
        while (auto b = some.next())
            kept.insert(kept.end(), b->samples().begin(), b->samples().end());
        CHECK(kept.size() > 250);
        CHECK(kept.size() < 350);
        if (batch == 1) wanted = kept;
        CHECK(kept == wanted);
    }
}

/// Sample 7 does not end until it is let go.
std::shared_future<void> let_go;
point wait_at_7(std::int64_t i) {
    const auto gate = let_go; // its own: the program may have ended when it wakes
    if (i == 7) gate.wait();
    return {{}, {}, i};
}

TEST_CASE(
    "a row that takes longer than its limit is an error that names it, and the loader can go on") {
    std::promise<void> gate;
    let_go = gate.get_future().share();
    data::loader batches(data::range(20) | data::map<&wait_at_7>() | data::batch(10),
                         {.threads = 2, .row_limit = std::chrono::milliseconds(50), .epochs = 1});
    CHECK_THROWS_WITH(batches.next(), ContainsSubstring("sample 7, map(wait_at_7)") &&
                                          ContainsSubstring("its limit is"));
    gate.set_value();
    CHECK(rest_of(batches).size() == 20);
}

TEST_CASE("a stop ends the wait for a row that does not end, and the loader goes without it") {
    std::promise<void> gate;
    let_go = gate.get_future().share();
    {
        const auto what = data::range(20) | data::map<&wait_at_7>() | data::batch(10);
        data::detail::loader_core core(
            std::make_shared<data::detail::typed_program<std::decay_t<decltype(what)>>>(what),
            {.threads = 1});
        bool is_asked = false;
        core.watch_stop([&] { return is_asked = true; }, std::chrono::milliseconds(50));
        const data::detail::dealing deal{.size = 20, .global_batch = 10};
        CHECK_THROWS_WITH(core.next(data::detail::batch_request::of(deal, 0, 0, 0)),
                          ContainsSubstring("sample 7, map(wait_at_7)") &&
                              ContainsSubstring("a stop was asked for"));
        CHECK(is_asked);
    } // returns, though the thread is in that row
    gate.set_value();
}

} // namespace loader_test
