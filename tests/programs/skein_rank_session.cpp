// SPDX-License-Identifier: Apache-2.0
// Ranks of a job, without LibTorch: each computes steps on its own thread, and calls an actor and a
// task of a session of its own between them.
//
//     skein_rank_session N      # N ranks under launch's supervisor, one of them alone; under a
//                               launcher its world
//     skein_rank_session N missing    # each throws at its start, as for a file that is not there
//     skein_rank_session N starting   # ranks that say "starting" and do not come to launch()

#include <skein/skein.hpp>
#include <skein/spmd/meeting.hpp>
#include <skein/train/launch.hpp>

#include <fmt/core.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include <unistd.h>

struct scores {
    int sum = 0;
    void note(int value) { sum += value; }
    int total() const { return sum; }
};
int square(int x) { return x * x; }
long where() { return ::getpid(); }

void steps(skein::train::context& ctx) {
    skein::run_options how;
    how.workers = 1;
    skein::session cluster(how); // SKEIN_ADDRESS: on a cluster
    auto seen = cluster.actor<scores>();
    skein::pending<int> ahead;
    for (int step = 1; step <= 5; ++step) {
        ahead = cluster.submit<&square>(step + ctx.rank()); // runs while this thread computes
        double work = 0;
        for (int i = 0; i < 100'000; ++i) work += static_cast<double>(i % (step + 1));
        seen.call<&scores::note>(ahead);
        if (work < 0) std::abort();
    }
    const bool is_elsewhere = cluster.submit<&where>().get() != ::getpid();
    fmt::print("rank {} of {}: {} {} {}\n", ctx.rank(), ctx.world_size(), ahead.get(),
               seen.call<&scores::total>().get(), is_elsewhere);
    std::fflush(stdout);
}

int main(int argc, char** argv) {
    skein::run_config config;
    config.output = skein::train::output_mode::quiet;
    config.scaling.workers = argc > 1 ? std::atoi(argv[1]) : 1;
    const std::string_view how = argc > 2 ? argv[2] : "";
    if (!how.empty()) config.output = skein::train::output_mode::plain;
    if (how == "starting" && skein::spmd::is_supervised()) {
        fmt::print("starting\n");
        std::fflush(stdout);
        for (;;) ::pause();
    }
    if (how == "missing")
        return skein::train::launch(config, [](skein::train::context&) {
            throw std::runtime_error("cannot open digits.gz");
        });
    return skein::train::launch(config, steps);
}
