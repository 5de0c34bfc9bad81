// SPDX-License-Identifier: Apache-2.0
// A loader's images per second against its bare kernels, torch's DataLoader and Ray Data.
//
// The workload is that of examples/240_hetero_vit (bench/blurred_images.hpp), on two threads. Bare
// kernels are the same functions in a plain loop on two threads, without a loader and without the
// copy into a batch. With SKEIN_PYTHON set to a Python that has torch, the same work runs through
// torch's DataLoader with two workers (bench/data_pytorch.py), and, if it has ray, through Ray Data
// (bench/data_ray.py), each round in a process of its own; what is not there is skipped, and said.
//
//     data              one JSON line per figure; SKEIN_BENCH_ROUNDS (default 5)
//     data --first      one batch in this process

#include "bench.hpp"
#include "blurred_images.hpp"
#include "other_programs.hpp"

#include <skein/data/arena.hpp>
#include <skein/data/loader.hpp>
#include <skein/proc/process.hpp>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <ctime>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/core.h>
#include <unistd.h>

namespace {

constexpr int threads = 2;
/// The first batches are not measured: while memory is new, the kernel clears it.
constexpr std::uint64_t warm_up = 14, batches = 20, images = batches * bench::images_per_batch;

// ---- ours ---------------------------------------------------------------------------------------

/// Images per second, and processor time for each, of this whole process.
struct rate {
    double per_second = 0, cpu_ms = 0;
};

double cpu_now() {
    std::timespec t{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

template <class F>
rate rate_of(F make) {
    const double before = cpu_now(), took = bench::seconds(make);
    return {static_cast<double>(images) / took,
            (cpu_now() - before) * 1000 / static_cast<double>(images)};
}

/// A loader whose batches are only taken.
rate loader_rate(bool as_written) {
    const auto all = (warm_up + batches) * bench::images_per_batch;
    return bench::with_pipeline(all, {}, as_written, [](auto plan) {
        skein::data::loader from(std::move(plan), {.threads = threads, .epochs = 1});
        const auto take = [&](std::uint64_t count) {
            for (std::uint64_t i = 0; i < count; ++i)
                bench::keep(from.next()->template column<0>().data());
        };
        take(warm_up);
        return rate_of([&] { take(batches); });
    });
}

/// The same number of images by the kernels alone.
rate kernel_rate(bool as_written) {
    return rate_of([&] {
        std::vector<std::jthread> all;
        for (std::uint64_t t = 0; t < threads; ++t)
            all.emplace_back([t, as_written] {
                skein::data::arena memory;
                const skein::data::arena_scope scope(memory);
                for (std::uint64_t i = t; i < images; i += threads) {
                    memory.reset();
                    bench::make_alone(i, as_written);
                }
            });
    });
}

/// A process of its own that takes one batch.
int take_first() {
    bench::with_pipeline(images, {}, true, [](auto plan) {
        skein::data::loader from(std::move(plan), {.threads = threads, .epochs = 1});
        const auto batch = from.next();
        fmt::print("first {}\n", batch->rows());
        std::fflush(stdout);
        ::_exit(0); // what is made ahead is not waited for
    });
    return 1;
}

/// Seconds from the start of a program to its first batch.
double seconds_to_first() {
    return bench::seconds([&] {
        skein::proc::process_options how;
        how.executable = "/proc/self/exe";
        how.argv = {"bench-first", "--first"};
        if (!bench::output_of(std::move(how))) std::abort();
    });
}

// ---- both ---------------------------------------------------------------------------------------

/// What each round gave; [0] as written, [1] folded.
struct rounds {
    std::array<std::vector<rate>, 2> loader, kernels;
    std::vector<double> first, their_first;
    std::vector<rate> theirs;
    std::string version;
};

void measure_ours(rounds& all) {
    for (const bool as_written : {true, false}) {
        all.kernels[!as_written].push_back(kernel_rate(as_written));
        all.loader[!as_written].push_back(loader_rate(as_written));
    }
    all.first.push_back(seconds_to_first());
}

double median(std::vector<double> values) { return bench::summary(std::move(values)).median; }
double median(const std::vector<rate>& of, double rate::* what) {
    std::vector<double> values;
    for (const auto& each : of) values.push_back(each.*what);
    return median(std::move(values));
}

/// The median of the ratios within each round: the machine is shared.
double ratio(const std::vector<rate>& ours, const std::vector<rate>& theirs, double rate::* what) {
    std::vector<double> values;
    for (std::size_t i = 0; i < ours.size(); ++i) values.push_back(ours[i].*what / theirs[i].*what);
    return median(std::move(values));
}

bool against_kernels(const rounds& all) {
    bool ok = true;
    for (std::size_t i = 0; i < 2; ++i) {
        const char* name = i == 0 ? "as_written" : "folded";
        const double rates = median(all.kernels[i], &rate::per_second),
                     times = median(all.kernels[i], &rate::cpu_ms);
        ok &= bench::figure(fmt::format("data.{}", name),
                            rates * ratio(all.loader[i], all.kernels[i], &rate::per_second),
                            "images/s")
                  .against("bare kernels", rates)
                  .at_least(0.85)
                  .print();
        ok &= bench::figure(fmt::format("data.{}_cpu", name),
                            times * ratio(all.loader[i], all.kernels[i], &rate::cpu_ms), "ms/image")
                  .against("bare kernels", times)
                  .at_most(1 / 0.85)
                  .print();
    }
    return bench::figure("data.first_batch", median(all.first), "s").at_most(0.2).print() && ok;
}

/// Figures against what a script measured.
bool against_python(const char* who, const char* key, const rounds& all,
                    std::array<double, 2> bars) {
    bool ok = true;
    const auto print = [&](std::size_t i, double rate::* what, const char* more, const char* unit) {
        const double theirs = median(all.theirs, what);
        auto line = bench::figure(fmt::format("data.{}{}_against_{}",
                                              i == 0 ? "as_written" : "folded", more, key),
                                  theirs * ratio(all.loader[i], all.theirs, what), unit)
                        .against(who, theirs)
                        .with("version", all.version);
        if (what == &rate::per_second) (void)std::move(line).at_least(bars[i]);
        ok &= line.print();
    };
    for (std::size_t i = 0; i < 2; ++i) {
        print(i, &rate::per_second, "", "images/s");
        if (all.theirs[0].cpu_ms > 0) print(i, &rate::cpu_ms, "_cpu", "ms/image");
    }
    return bench::figure(fmt::format("data.first_batch_against_{}", key), median(all.first), "s")
               .against(who, median(all.their_first))
               .with("version", all.version)
               .print() &&
           ok;
}

bool python_figures(const char* script, const char* who, const char* key, int count,
                    std::array<double, 2> bars) {
    rounds all;
    for (int round = 0; round < count; ++round) {
        const auto theirs = bench::python_run(script);
        if (!theirs) {
            fmt::print(stderr,
                       "bench data: {} skipped: SKEIN_PYTHON names no Python in which {} runs\n",
                       who, script);
            return true;
        }
        all.theirs.push_back({theirs->rate, theirs->cpu_ms});
        all.their_first.push_back(theirs->first);
        all.version = theirs->version;
        measure_ours(all);
    }
    return against_python(who, key, all, bars);
}

} // namespace

int main(int argc, char** argv) {
    if (argc > 1 && std::string_view(argv[1]) == "--first") return take_first();
    const char* wanted = std::getenv("SKEIN_BENCH_ROUNDS");
    const int count = std::max(1, wanted != nullptr ? std::atoi(wanted) : 5);
    rounds all;
    for (int round = 0; round < count; ++round) measure_ours(all);
    bool ok = against_kernels(all);
    ok &= python_figures("data_pytorch.py", "torch DataLoader, 2 workers", "dataloader",
                         std::min(count, 3), {60, 120});
    ok &= python_figures("data_ray.py", "Ray Data, 2 cpus", "ray", 1, {20, 20});
    return ok ? 0 : 1;
}
