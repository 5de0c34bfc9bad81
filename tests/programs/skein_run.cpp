// SPDX-License-Identifier: Apache-2.0
// Runs of train::run<&train_loop> without LibTorch: loops of collectives and a few files, told what to do.
//
//     skein_run WHAT [--workers N] [--failures N] [--late] [--folder F]
//     skein_run reads --folder F      # the result.json of a run's folder
//
// --late: main does not call serve_if_worker(), the ranks find their loop behind what main says.

#include <skein/core/error.hpp>
#include <skein/dist/comm_thread.hpp>
#include <skein/program/run_options.hpp>
#include <skein/spmd/environment.hpp>
#include <skein/train/reporter.hpp>
#include <skein/train/run.hpp>

#include <fmt/core.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <unistd.h>

using namespace skein;

struct order {
    std::string what;
    double rate = 0.0;
};
struct outcome {
    double sum = 0.0; ///< over ranks
    int ranks = 0;
    std::string note;
    std::vector<std::uint8_t> padding;
};

namespace {

double sum_over_ranks(train::context& ctx, double mine) {
    if (ctx.comm() == nullptr) return mine;
    auto value = static_cast<float>(mine);
    const dist::buffer_view view{&value, 1, dist::dtype::f32};
    ctx.comm()->all_reduce(view, dist::reduce_op::sum).wait();
    return value;
}

/// Ten rows and an end, as a Trainer leaves them.
void write_run(train::context& ctx, const run_config& config) {
    train::reporter report(ctx, config, {});
    train::start_info start;
    start.world_size = ctx.world_size();
    start.total_steps = 10;
    report.begin(start);
    for (std::uint64_t step = 1; step <= 10; ++step) {
        const std::vector<report::metric_value> row{{"loss", 1.0 / static_cast<double>(step)}};
        std::vector<report::metric_value> evaluated;
        if (step % 4 == 0) evaluated.push_back({"val_loss", step == 4 ? 0.25 : 0.5});
        train::step_info now;
        now.step = step;
        now.loss = row[0].value;
        now.metrics = &row;
        report.step(now, evaluated);
    }
    train::fit_result end;
    end.steps = end.total = 10;
    report.finish(end);
    end.run_name = report.name();
    end.run_path = report.path();
    train::leave_screen(ctx, config, end);
}

outcome train_loop(train::context& ctx, run_config config, order asked) {
    const bool last = ctx.rank() == ctx.world_size() - 1;
    if (asked.what == "trains" || asked.what == "fails late") write_run(ctx, config);
    if (asked.what == "throws" && last) throw std::runtime_error("no such digits");
    (void)sum_over_ranks(ctx, 0); // all are there
    if (asked.what == "fails late" && last) throw std::runtime_error("no such digits");
    if (asked.what == "exits" && last) std::exit(3);
    if (asked.what == "exits well" && last) std::exit(0);
    if (asked.what == "is killed" && last) ::raise(SIGKILL);
    if (asked.what == "is killed once" && last && ctx.attempt() == 0) ::raise(SIGKILL);
    if (asked.what == "nests") {
        const auto inner = train::run<&train_loop>(config, order{"adds"});
        if (!inner.ok()) throw inner.error();
    }
    if (asked.what == "launches") {
        config.scaling.workers = 2;
        const int code = train::launch(config, [](train::context&) {});
        outcome out;
        out.note = fmt::format("launch gave {}", code);
        return out;
    }
    if (asked.what == "waits") {
        if (ctx.is_first()) fmt::print("working {}\n", ::getpid());
        std::fflush(stdout);
        while (!ctx.stop_requested()) ::usleep(1000);
    }
    outcome out;
    out.sum = sum_over_ranks(ctx, (ctx.rank() + 1) * asked.rate);
    out.ranks = ctx.world_size();
    out.note = "of \"rank " + std::to_string(ctx.rank()) + "\"";
    if (asked.what == "is large") out.padding.resize(std::size_t{1} << 20);
    return out;
}

int product(train::context& ctx, int left, double right) {
    return static_cast<int>(sum_over_ranks(ctx, left * right));
}
void nothing(train::context& ctx) { (void)sum_over_ranks(ctx, 1); }

template <class Result>
void tell_end(const char* name, const Result& result) {
    fmt::print("{}: {} restarts={} rank={} stopped={}\n", name,
               result.ok() ? "ok" : result.error().what(), result.restarts, result.failed_rank,
               result.stopped_by);
    std::fflush(stdout);
}
void tell(const char* name, const train::run_result<outcome>& result) {
    tell_end(name, result);
    if (result.ok())
        fmt::print("{} value: sum={} ranks={} {}\n", name, result.value().sum, result.value().ranks,
                   result.value().note);
    if (result.path.empty()) return;
    fmt::print("{} run: {} steps={} loss={} best={}@{} rows={}\n", name, result.name, result.steps,
               result.metric("loss").value_or(-1), result.best ? result.best->value : -1,
               result.best ? result.best->step : 0, result.history().at("loss").size());
    std::fflush(stdout);
}

/// What result.json says of it.
void read(const std::string& path) {
    try {
        const auto earlier = train::load_result(path);
        if (!earlier.ok()) fmt::print("run read: failed: {}\n", earlier.error().what());
        if (earlier.ok())
            fmt::print("run read: steps={} loss={} best={}@{} ranks={}\n", earlier.steps,
                       earlier.metric("loss").value_or(-1), earlier.best->value, earlier.best->step,
                       earlier.world_size);
    } catch (const error& why) {
        fmt::print("run read: {}\n", why.what());
    }
}

int at_once(const run_config& config, int runs) {
    std::vector<std::thread> threads;
    std::vector<double> sums(static_cast<std::size_t>(runs), -1);
    for (std::size_t i = 0; i < sums.size(); ++i)
        threads.emplace_back([&, i] {
            const auto result =
                train::run<&train_loop>(config, order{"adds", static_cast<double>(i + 1)});
            if (result.ok())
                sums[i] = result.value().sum;
            else
                fmt::print("run {}: {}\n", i, result.error().what());
        });
    for (auto& thread : threads) thread.join();
    for (const double sum : sums) fmt::print("sum {}\n", sum);
    return 0;
}

} // namespace

int main(int argc, char** argv) {
    run_config config;
    config.output = train::output_mode::quiet;
    config.max_steps = 10;
    config.failure.backoff = std::chrono::milliseconds(1);
    const std::string_view what = argc > 1 ? argv[1] : "adds";
    bool late = false;
    for (int i = 2; i < argc; ++i) {
        const std::string_view flag = argv[i];
        if (flag == "--late") late = true;
        if (i + 1 == argc) break;
        if (flag == "--workers") config.scaling.workers = std::atoi(argv[i + 1]);
        if (flag == "--failures") config.failure.max_failures = std::atoi(argv[i + 1]);
        if (flag == "--folder") config.runs_dir = argv[i + 1];
    }
    if (!late) serve_if_worker();
    fmt::print("main of {}\n", ::getpid());
    std::fflush(stdout);
    if (what == "at once") return at_once(config, 3);
    if (what == "in turn") {
        tell("first", train::run<&train_loop>(config, order{"adds", 1.0}));
        const auto second = train::run<&product>(config, 6, 7.0);
        tell_end("second", second);
        if (second.ok()) fmt::print("second value: {}\n", second.value());
        tell_end("third", train::run<&nothing>(config));
        return 0;
    }
    if (what == "large order") {
        tell("run", train::run<&train_loop>(config, order{std::string(std::size_t{1} << 20, 'x')}));
        return 0;
    }
    if (what == "launch") {
        config.scaling.workers = 2;
        return train::launch(config, [&](train::context&) {
            tell("inner", train::run<&train_loop>(config, order{"adds", 1.0}));
        });
    }
    if (what == "reads") {
        read(config.runs_dir);
        return 0;
    }
    const auto result = train::run<&train_loop>(config, order{std::string(what), 2.0});
    tell("run", result);
    if (!result.path.empty() && !spmd::discover().is_launched()) read(result.path);
    return result.ok() ? 0 : 1;
}
