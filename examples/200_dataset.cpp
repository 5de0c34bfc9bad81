// SPDX-License-Identifier: Apache-2.0
// A data set as a value: map, filter, shuffle, batch; a held-out part; a loader that goes on where
// another one stopped.
//
//     200_dataset [--helpers N]

#include <skein/data/explain.hpp>
#include <skein/data/loader.hpp>
#include <skein/program/run_options.hpp>

#include <fmt/core.h>

#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace data = skein::data;

// [rows]
// A row: a plain struct of numbers, arrays and images.
struct point {
    data::array<float> x;
    std::int64_t label = 0;
};

/// The sample with a number. `random` draws the same for it on every machine, and anew each epoch.
point draw(std::int64_t number, data::draws& random) {
    const auto x = data::arena::current().array<float>(4);
    random.fill_normal(x);
    return {x, number % 3};
}
bool is_small(const point& p) { return p.x[0] < 0.5f; }
/// A function with a field, which travels to helpers.
struct scale {
    float by = 1;
    point operator()(const point& p) const {
        const auto x = data::arena::current().array<float>(p.x.size());
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = by * p.x[i];
        return {x, p.label};
    }
};
// [/rows]

int main(int argc, char** argv) {
    skein::serve_if_worker(); // a helper is this program, too
    int helpers = 0;
    if (argc == 3 && std::string_view(argv[1]) == "--helpers") {
        helpers = std::atoi(argv[2]);
    } else if (argc != 1) {
        fmt::print(stderr, "usage: 200_dataset [--helpers N]\n");
        return 2;
    }
    // [plan]
    const auto all = data::range(10'000) | data::map<&draw>() | data::map(scale{.by = 0.5f}) |
                     data::on(data::helpers{.most = helpers}) | data::filter<&is_small>();
    const auto [seen, held_out] = data::split(all, 0.9);
    const auto train = seen | data::shuffle() | data::batch(64);
    fmt::print("{}\n", train.describe());
    fmt::print("{} samples to train on, {} held out\n", train.size(), held_out.size());
    // [/plan]

    // [loader]
    data::loader batches(train, {.seed = 1, .epochs = 2});
    std::uint64_t rows = 0, count = 0;
    double sum = 0;
    std::string place;
    while (const auto b = batches.next()) {
        for (const float x : b->column<0>()) sum += x; // [rows, 4], without gaps
        rows += b->rows();
        if (++count == 100) place = batches.state(); // 40 bytes: what a checkpoint keeps
    }
    fmt::print("{} batches, {} rows, mean {:.5f}\n", count, rows, sum / double(rows * 4));

    // Another process, on another number of ranks: each gets its part of what is left.
    std::uint64_t left = 0;
    for (int rank = 0; rank < 2; ++rank) {
        data::loader rest(train, {.rank = rank, .world_size = 2, .seed = 1, .epochs = 2});
        rest.restore(place);
        while (const auto b = rest.next()) left += b->rows();
    }
    fmt::print("{} rows after batch 100, by two ranks\n", left);
    // [/loader]
    if (helpers > 0) fmt::print("{}", batches.stats().text());
    fmt::print("\n{}", data::explain(train).text());
}
