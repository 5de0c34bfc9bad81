// SPDX-License-Identifier: Apache-2.0
// Programs that run for as long as they are told, and do all that comes and goes: for scripts/soak.
//
//     skein_soak tasks 60      a driver: tasks that end, fail, wait and are taken back, actors that come and go
//     skein_soak loader 60     loaders that come and go, their rows made by threads and helpers

#include <skein/data/loader.hpp>
#include <skein/skein.hpp>

#include <fmt/core.h>

#include <malloc.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace soak {

using namespace std::chrono_literals;
namespace data = skein::data;
using clock = std::chrono::steady_clock;

// ---- a driver ------------------------------------------------------------------------------------

std::vector<float> numbers(std::uint64_t count) { return std::vector<float>(count, 1.0F); }
std::uint64_t size_of(std::vector<float> all) { return all.size(); }
int fail(int of) { throw std::runtime_error(fmt::format("number {} fails", of)); }
skein::task<int> nap() {
    co_await skein::sleep_for(1ms);
    co_return 1;
}
skein::task<int> family() { // waits for tasks of its own
    auto one = skein::remote<&nap>();
    auto other = skein::remote<&nap>();
    co_return co_await one + co_await other;
}

struct store {
    std::vector<std::string> kept;
    std::uint64_t add(std::string text) {
        kept.push_back(std::move(text));
        return kept.size();
    }
    int refuse() const { throw std::logic_error("not so"); }
    skein::task<int> slow() {
        co_await skein::sleep_for(10s);
        co_return 1;
    }
};

void expect(bool good, std::string_view what) {
    if (!good) throw skein::error(skein::errc::internal, fmt::format("wrong: {}", what));
}

skein::task<void> tasks_round(int round) {
    std::vector<skein::ref<std::uint64_t>> sizes;
    for (std::uint64_t i = 0; i < 50; ++i) {
        auto made = skein::remote<&numbers>((i % 10) * 1000);
        sizes.push_back(skein::remote<&size_of>(made));
    }
    for (std::uint64_t i = 0; i < sizes.size(); ++i)
        expect(co_await sizes[i] == (i % 10) * 1000, "the size of an argument");
    bool failed = false;
    try {
        co_await skein::remote<&fail>(round);
    } catch (const skein::remote_error&) {
        failed = true;
    }
    expect(failed, "a task that fails");
    expect(co_await skein::remote<&family>() == 2, "a task that waits for others");
}

skein::task<void> actors_round(int round) {
    auto one = co_await skein::actor<store>();
    for (int i = 0; i < 20; ++i) {
        auto added = one.call<&store::add>(std::string(100, 'x'));
        if (i == 19) expect(co_await added == 20, "the calls of an actor");
    }
    bool refused = false;
    try {
        co_await one.call<&store::refuse>();
    } catch (const skein::remote_error&) {
        refused = true;
    }
    expect(refused, "a method that fails");
    if (round % 5 != 0) co_return;
    auto slow = one.call<&store::slow>(); // given up: its actor ends under it
    auto both = std::vector{slow};
    auto none = skein::wait(both, 1, 1ms);
    (void)co_await std::move(none);
}

skein::task<int> driver(std::vector<std::string> words) {
    const auto end = clock::now() + std::chrono::seconds(std::stoll(words.at(1)));
    int rounds = 0;
    for (; clock::now() < end; ++rounds) {
        auto some = tasks_round(rounds);
        co_await std::move(some);
        auto others = actors_round(rounds);
        co_await std::move(others);
    }
    fmt::print("{} rounds\n", rounds);
    co_return 0;
}

// ---- a loader ------------------------------------------------------------------------------------

struct row {
    data::array<float> x;
    std::int64_t id = 0;
};
struct source {
    std::uint64_t count = 0;
    std::uint64_t size() const { return count; }
    row read(std::uint64_t i) const { return {{}, static_cast<std::int64_t>(i)}; }
};
/// Rows of unlike cost; one in a hundred is bad.
row fill(row r, data::draws& random) {
    if (r.id % 100 == 77) throw std::runtime_error("a bad row");
    auto x = data::arena::current().array<float>(1000);
    for (std::int64_t i = 0; i < 1 + r.id % 50; ++i) random.fill_normal(x);
    r.x = x;
    return r;
}

/// Bytes that this process has allocated and not freed, exact. Its resident memory differs by megabytes from loader to loader
/// where nothing is lost: each thread has an arena of its own, and what is free in one stays there.
std::size_t held() {
    const auto all = ::mallinfo2();
    return all.uordblks + all.hblkhd;
}

void load_once(int nth, clock::time_point end) {
    const data::helpers to{.most = 1};
    data::loader batches(source{400} | data::map<&fill>() | data::on(to) | data::shuffle() |
                             data::batch(20),
                         {.seed = 9, .threads = 2, .bad_rows = 4, .epochs = 20});
    std::uint64_t rows = 0;
    while (auto b = batches.next()) {
        rows += b->rows();
        if (nth % 3 == 2 && rows > 1000) break; // left early
        if (clock::now() > end) break;
    }
}

int load(std::chrono::seconds how_long) {
    const auto end = clock::now() + how_long;
    int loaders = 0;
    for (; clock::now() < end; ++loaders) {
        load_once(loaders, end);
        fmt::print("{} bytes\n", held());
    }
    fmt::print("{} loaders\n", loaders);
    return 0;
}

} // namespace soak

int main(int argc, char** argv) {
    skein::serve_if_worker();
    if (argc < 3) {
        fmt::print(stderr, "usage: skein_soak tasks|loader SECONDS\n");
        return 2;
    }
    if (std::string_view(argv[1]) == "tasks") return skein::run(argc, argv, soak::driver);
    try {
        return soak::load(std::chrono::seconds(std::atoll(argv[2])));
    } catch (const std::exception& e) {
        fmt::print(stderr, "error: {}\n", e.what());
        return 1;
    }
}
