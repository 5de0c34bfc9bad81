// SPDX-License-Identifier: Apache-2.0
// The shapes of Ray's microbenchmark: tasks and actor calls, one by one and in batches of 1,000,
// and a cold start.
//
// Names and lengths are those of Ray's ray_perf.py: a small value, four rounds of two seconds after
// a second of warm-up. With SKEIN_PYTHON set to a Python that has ray, both sides take turns; else
// the figures stand beside those that Ray 2.55 gave on a machine of two cores, and "ray" says
// "recorded".
#include "bench.hpp"
#include "echo_peer.hpp"
#include "ray_side.hpp"

#include <skein/core/scope.hpp>
#include <skein/core/unique_fd.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/proc/children.hpp>
#include <skein/proc/process.hpp>
#include <skein/program/run.hpp>
#include <skein/rt/runtime.hpp>

#include <array>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using namespace skein;

constexpr std::size_t batch = 1000;
constexpr const char* script = "/ray_micro_ray.py";

/// How long the rounds are.
struct effort {
    int rounds = 4;
    double warm_up = 1, seconds = 2;
};

// ---- ours ---------------------------------------------------------------------------------------

std::string small_value() { return "ok"; }
struct holder {
    std::string small_value() { return "ok"; }
};

/// A driver with a worker per core. The loop runs only during measurements.
struct driver_here {
    net::real_loop loop;
    net::real_network network{loop};
    proc::local_children children{loop};
    rt::runtime driver{rt::runtime_options{}};
    program::local_workers workers{loop, network, children, driver,
                                   program::local_workers_options{}};
    scope services;
    actor_handle<holder> actor;

    driver_here() { loop.run(start(this)); }
    driver_here(const driver_here&) = delete;
    driver_here& operator=(const driver_here&) = delete;
    ~driver_here() { loop.run(stop(this)); }

    static task<void> start(driver_here* self) {
        self->services.spawn(self->workers.serve());
        const rt::runtime::use current(self->driver);
        self->actor = co_await skein::actor<holder>();
    }
    static task<void> stop(driver_here* self) {
        self->actor = {};
        self->workers.stop();
        auto bye = self->driver.close();
        co_await bye;
        auto joined = self->services.join();
        co_await joined;
    }
};

/// Makes `calls` calls at a time and awaits them, for so long; calls per second.
template <class Call>
task<double> rate(Call call, std::size_t calls, double seconds) {
    const bench::stopwatch watch;
    std::size_t done = 0;
    std::vector<ref<std::string>> all(calls);
    while (watch.ns() < seconds * 1e9) {
        for (auto& r : all) r = call();
        for (auto& r : all) (void)co_await r;
        done += calls;
    }
    co_return static_cast<double>(done) * 1e9 / watch.ns();
}

double our_rate(driver_here& d, std::string_view shape, double seconds) {
    const std::size_t calls = shape.ends_with("_async") ? batch : 1;
    if (shape.find("actor") == shape.npos)
        return d.loop.run(
            rate([&] { return remote<&small_value>.on(d.driver)(); }, calls, seconds));
    return d.loop.run(rate([&] { return d.actor.call<&holder::small_value>(); }, calls, seconds));
}

/// A whole program, up to its first result.
task<int> first_result() {
    auto r = remote<&small_value>();
    (void)co_await r;
    fmt::print("first\n");
    std::fflush(stdout);
    co_return 0;
}

// ---- Ray ----------------------------------------------------------------------------------------

/// Seconds from the start of a program to its first line; none: it has said nothing.
std::optional<double> seconds_to_first(proc::process_options how) {
    auto [ours, theirs] = make_pipe();
    how.stdout_fd = theirs.get();
    const bench::stopwatch watch;
    auto child = proc::child_process::spawn(how);
    theirs.reset();
    const auto said = bench::read_line(ours.get());
    const double took = watch.ns() / 1e9;
    child.wait_blocking();
    return said == "first" ? std::optional(took) : std::nullopt;
}

// ---- both ---------------------------------------------------------------------------------------

/// A row of Ray's microbenchmark.
struct shape {
    const char* name;
    double recorded; ///< of Ray 2.55, calls per second
    double bar;
};
constexpr std::array<shape, 4> shapes{{{"single_client_tasks_sync", 304, 30},
                                       {"single_client_tasks_async", 1067, 300},
                                       {"1_1_actor_calls_sync", 1190, 30},
                                       {"1_1_actor_calls_async", 1928, 500}}};
constexpr double recorded_start = 3;

bool rates(const char* python, const effort& e) {
    driver_here ours;
    const auto ray = bench::ray_side::start(python, script);
    bool ok = true;
    for (const auto& s : shapes) {
        (void)our_rate(ours, s.name, e.warm_up);
        if (ray) (void)ray->rate(s.name, e.warm_up);
        std::vector<double> our_rates, ray_rates;
        for (int round = 0; round < e.rounds; ++round) {
            our_rates.push_back(our_rate(ours, s.name, e.seconds));
            ray_rates.push_back(ray ? ray->rate(s.name, e.seconds) : s.recorded);
        }
        ok &= bench::figure(fmt::format("ray_micro.{}", s.name), bench::summary(our_rates).median,
                            "calls/s")
                  .against("ray", bench::summary(ray_rates).median)
                  .at_least(s.bar)
                  .with("ray", ray ? ray->version() : "recorded")
                  .print();
    }
    return ok;
}

/// From the start of the process to the first result. Ours has no daemon to start.
bool cluster_start(const char* python, const effort& e) {
    proc::process_options how;
    how.executable = "/proc/self/exe";
    how.argv = {"bench-first"};
    how.env = {{"SKEIN_BENCH_FIRST", "1"}};
    how.unset_env = {"SKEIN_ADDRESS", "SKEIN_WORKERS"};
    std::vector<double> ours, theirs;
    bool is_recorded = python == nullptr;
    for (int round = 0; round < e.rounds; ++round) {
        ours.push_back(seconds_to_first(how).value_or(0));
        const auto took = is_recorded
                              ? std::nullopt
                              : seconds_to_first(bench::ray_program(python, script, {"--start"}));
        is_recorded = is_recorded || !took;
        theirs.push_back(took.value_or(recorded_start));
    }
    return bench::figure("ray_micro.cluster_start", bench::summary(ours).median, "s")
        .against("ray", bench::summary(theirs).median)
        .at_most(1.0 / 50)
        .with("ray", is_recorded ? "recorded" : "measured")
        .print();
}

} // namespace

int main(int argc, char** argv) {
    if (std::getenv("SKEIN_BENCH_FIRST") != nullptr) return skein::run(argc, argv, first_result);
    if (program::is_worker()) return program::worker_main();
    effort e;
    if (argc > 1 && std::string_view(argv[1]) == "--quick") e = {1, 0.05, 0.1};
    const char* python = std::getenv("SKEIN_PYTHON");
    if (python != nullptr && !bench::ray_side::start(python, script)) {
        fmt::print(stderr, "bench ray_micro: {} has no ray; its figures are recorded ones\n",
                   python);
        python = nullptr;
    }
    const bool started = cluster_start(python, e);
    return rates(python, e) && started ? 0 : 1;
}
