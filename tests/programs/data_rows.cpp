// SPDX-License-Identifier: Apache-2.0
// Prints the batches of a pipeline, made by threads and helpers: for data_test.py.
//
//     data_rows --count 500 --batch 20 --epochs 2 --threads 2 --helpers 1 --row-us 500
//     data_rows --launch 1 ...        # in launch(), as a rank of its launcher: for roles_test.py
//
// --stall-s N stands still after the third batch, to look at its memory.

#include <skein/core/sha256.hpp>
#include <skein/data/loader.hpp>
#include <skein/program/run_options.hpp>
#include <skein/train/context.hpp>
#include <skein/train/launch.hpp>
#include <skein/train/run_config.hpp>

#include <fmt/core.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <thread>

#include <unistd.h>

namespace {

namespace data = skein::data;

struct row {
    data::array<float> x;
    std::int64_t id = 0;
    std::int64_t us = 0, floats = 64;
};

/// What differs between hosts: a file that must be there.
struct source {
    std::uint64_t count = 0;
    std::int64_t us = 0, local_us = 0, driver = 0; // a row's work, at helpers and here
    std::string needs;
    std::int64_t floats = 64;

    std::uint64_t size() const { return count; }
    row read(std::uint64_t i) const {
        const bool is_here = ::getpid() == driver;
        if (!needs.empty() && !is_here)
            throw skein::error(skein::errc::not_found, "no file " + needs);
        return {{}, static_cast<std::int64_t>(i), is_here ? local_us : us, floats};
    }
};

row work(row r, data::draws& random) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(r.us);
    auto x = data::arena::current().array<float>(static_cast<std::size_t>(r.floats));
    random.fill_normal(x);
    while (std::chrono::steady_clock::now() < end) {}
    r.x = x;
    return r;
}
/// Left of on(): its number travels.
struct scale {
    float by = 1;
    row operator()(const row& r) const {
        for (auto& x : made(r.x)) x *= by;
        return r;
    }
    static std::span<float> made(data::array<float> x) {
        return {const_cast<float*>(x.data()), x.size()}; // of this row's arena
    }
};
bool keep(const row& r) { return r.id % 5 != 3; }
row throw_on_77(row r) {
    if (r.id == 77) throw std::runtime_error("seventy-seven");
    return r;
}

const skein::train::context* trains_in = nullptr; // under --launch

template <class Plan>
int consume(Plan plan, data::loader_options how, std::map<std::string, std::string>& o) {
    data::loader batches(plan, how);
    if (!o["restore"].empty()) {
        std::ifstream in(o["restore"], std::ios::binary);
        batches.restore(std::string(std::istreambuf_iterator<char>(in), {}));
    }
    const auto most = std::strtoull(o["steps"].c_str(), nullptr, 10);
    skein::sha256 hash;
    std::array<std::byte, 32> digest{}; // of all rows, in any order
    std::ofstream ids(o["ids"]);
    std::uint64_t rows = 0, steps = 0;
    double longest = 0;
    bool helped = o["helpers"] == "0";
    for (;;) {
        if (most > 0 && steps == most) break;
        if (trains_in != nullptr && trains_in->stop_requested()) break;
        const auto begin = std::chrono::steady_clock::now();
        auto b = batches.next();
        if (steps > 2)
            longest = std::max(
                longest,
                std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
        if (!b) break;
        hash.update(skein::as_bytes(std::span(b->samples())));
        hash.update(std::as_bytes(b->template column<0>()));
        for (std::size_t i = 0; i < b->rows(); ++i) {
            skein::sha256 one;
            one.update(skein::as_bytes(std::span(&b->samples()[i], 1)));
            const auto width = b->template column<0>().size() / b->rows();
            one.update(std::as_bytes(b->template column<0>().subspan(i * width, width)));
            const auto sum = one.finish();
            for (std::size_t k = 0; k < digest.size(); ++k) digest[k] ^= sum[k];
            if (!o["ids"].empty()) ids << b->epoch() << ' ' << b->samples()[i] << '\n';
        }
        if (steps == 3 && !o["stall-s"].empty())
            std::this_thread::sleep_for(std::chrono::seconds(std::atoi(o["stall-s"].c_str())));
        rows += b->rows();
        steps += 1;
        fmt::print("batch {} {}\n", steps, b->rows());
        if (!helped && batches.stats().makers.size() > 1 && batches.stats().makers[1].rows > 0) {
            helped = true;
            fmt::print("helped\n");
        }
        std::fflush(stdout);
    }
    if (!o["save"].empty()) std::ofstream(o["save"], std::ios::binary) << batches.state();
    fmt::print("rows {}\nsha256 {}\ndigest {}\nlongest {:.3f}\n{}", rows,
               skein::to_hex(hash.finish()), skein::to_hex(digest), longest,
               batches.stats().text());
    return 0;
}

int rows_of(std::map<std::string, std::string>& o) {
    const auto number = [&](const char* name) {
        return std::strtoll(o[name].c_str(), nullptr, 10);
    };
    const data::loader_options how{.rank = static_cast<int>(number("rank")),
                                   .world_size = static_cast<int>(number("world")),
                                   .seed = 9,
                                   .threads = static_cast<int>(number("threads")),
                                   .bad_rows = static_cast<std::uint64_t>(number("bad-rows")),
                                   .epochs = static_cast<std::uint64_t>(number("epochs"))};
    const source from{static_cast<std::uint64_t>(number("count")),
                      number("row-us"),
                      o["local-us"].empty() ? number("row-us") : number("local-us"),
                      ::getpid(),
                      o["needs"],
                      number("floats")};
    const data::helpers to{.most = static_cast<int>(number("helpers")),
                           .cpus = static_cast<int>(number("cpus")),
                           .on = o["on"]};
    if (o["throws"].empty())
        return consume(from | data::map<&work>() | data::map(scale{.by = 0.5f}) | data::on(to) |
                           data::filter<&keep>() | data::shuffle() |
                           data::batch(static_cast<std::uint64_t>(number("batch"))),
                       how, o);
    return consume(from | data::map<&throw_on_77>() | data::map<&work>() | data::on(to) |
                       data::shuffle() | data::batch(static_cast<std::uint64_t>(number("batch"))),
                   how, o);
}

} // namespace

int main(int argc, char** argv) {
    skein::serve_if_worker();
    std::map<std::string, std::string> o{
        {"count", "500"}, {"batch", "20"}, {"epochs", "1"},  {"threads", "1"}, {"helpers", "0"},
        {"cpus", "1"},    {"row-us", "0"}, {"floats", "64"}, {"rank", "0"},    {"world", "1"}};
    for (int i = 1; i + 1 < argc; i += 2) o[std::string(argv[i]).substr(2)] = argv[i + 1];
    if (!o["launch"].empty()) {
        skein::run_config config;
        config.output = skein::train::output_mode::quiet;
        return skein::train::launch(config, [&](skein::train::context& ctx) {
            o["rank"] = std::to_string(ctx.rank());
            o["world"] = std::to_string(ctx.world_size());
            trains_in = &ctx;
            fmt::print("rank {} of {}\n", ctx.rank(), ctx.world_size());
            (void)rows_of(o);
        });
    }
    try {
        return rows_of(o);
    } catch (const std::exception& e) {
        fmt::print(stderr, "error: {}\n", e.what());
        return 1;
    }
}
