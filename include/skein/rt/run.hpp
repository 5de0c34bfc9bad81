// SPDX-License-Identifier: Apache-2.0
#pragma once
// run: a main() that is a driver with its own local cluster, and, started again by itself, a worker.
//
//     skein::task<int> app();
//     int main(int argc, char** argv) { return skein::run(argc, argv, app); }
//
// Workers start with the first remote call: --workers N, or SKEIN_WORKERS=N, or one per core. The exit
// code is the app's; 1 for an error (printed to stderr), 2 for a wrong command line, 130 and 143 when
// SIGINT or SIGTERM stopped it: the app is cancelled, workers leave, a second signal ends it at once.

#include <skein/core/stop_signals.hpp>
#include <skein/rt/actor.hpp>
#include <skein/rt/local_workers.hpp>
#include <skein/rt/standard_files.hpp>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace skein {

/// Defaults of run(); flags and environment win.
struct run_options {
    int workers = 0; ///< 0: one per core
    rt::local_workers_options processes;
};

namespace rt::detail {

/// Watches for the first stop signal and cancels the app.
inline task<void> watch_signals(net::real_loop* loop, const stop_signals* signals,
                                cancel_source stop, int* which) {
    auto readable = net::wait_readable(*loop, signals->fd());
    co_await readable;
    *which = signals->which();
    stop.request();
}

/// What is left of the command line after skein's own flags.
struct command_line {
    std::vector<std::string> rest;
    std::optional<int> workers;
};

inline int parse_count(std::string_view flag, std::string_view text) {
    int n = 0;
    const auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), n);
    if (bad != std::errc() || end != text.data() + text.size())
        throw error(errc::usage, fmt::format("{} {}: not a number", flag, text))
            .with_hint("e.g. --workers 4");
    if (n < 1)
        throw error(errc::usage, fmt::format("{} {}: at least one worker is needed", flag, text));
    if (n > 4096) throw error(errc::usage, fmt::format("{} {}: at most 4096 workers", flag, text));
    return n;
}

inline command_line parse_command_line(int argc, char** argv) {
    command_line out;
    if (const char* text = std::getenv("SKEIN_WORKERS"); text != nullptr && *text != '\0')
        out.workers = parse_count("SKEIN_WORKERS", text);
    for (int i = 1; i < argc; ++i) {
        const std::string_view arg = argv[i];
        if (arg == "--workers") {
            if (++i == argc)
                throw error(errc::usage, "--workers needs a number").with_hint("e.g. --workers 4");
            out.workers = parse_count("--workers", argv[i]);
        } else if (arg.starts_with("--workers=")) {
            out.workers = parse_count("--workers", arg.substr(10));
        } else {
            out.rest.emplace_back(arg);
        }
    }
    return out;
}

/// Prints what skein itself understands; for an app that takes no arguments, that is all.
inline int print_usage(std::string_view program) {
    program.remove_prefix(std::min(program.rfind('/') + 1, program.size()));
    fmt::print("usage: {} [--workers N]\n\n"
               "  --workers N   worker processes (default: SKEIN_WORKERS, else one per core)\n"
               "  --help        this text\n",
               program);
    return exit_code::done;
}

/// Calls the app with what it takes: nothing, its arguments as strings, or argc and argv.
template <class App>
auto call_app(App& app, int argc, char** argv, std::vector<std::string> rest) {
    if constexpr (std::is_invocable_v<App&>) {
        if (!rest.empty())
            throw error(errc::usage, fmt::format("unknown argument {}", rest.front()))
                .with_hint("this program takes --workers N only; see --help");
        return app();
    } else if constexpr (std::is_invocable_v<App&, std::vector<std::string>>) {
        return app(std::move(rest));
    } else {
        static_assert(
            std::is_invocable_v<App&, int, char**>,
            "skein::run: app must be callable with nothing, with std::vector<std::string> (its "
            "arguments), or with (int argc, char** argv)");
        return app(argc, argv);
    }
}

template <class T>
task<int> as_exit_code(task<T> work) {
    static_assert(std::is_void_v<T> || std::is_convertible_v<T, int>,
                  "skein::run: app must return skein::task<int> or skein::task<void>");
    if constexpr (std::is_void_v<T>) {
        co_await work;
        co_return exit_code::done;
    } else {
        co_return co_await work;
    }
}

/// The driver: the app under its signals, then everything else in order.
inline task<int> drive(net::real_loop* loop, node* self, local_workers* workers, task<int> app,
                       int* stopped_by) {
    stop_signals signals;
    cancel_source stop;
    scope services;
    services.spawn(watch_signals(loop, &signals, stop, stopped_by));
    self->on_first_call([&services, workers] { services.spawn(workers->serve()); });

    int code = exit_code::failed;
    std::exception_ptr failure;
    try {
        auto guarded = with_cancel(stop.token(), std::move(app));
        code = co_await guarded;
    } catch (...) {
        failure = std::current_exception();
    }
    workers->stop();
    auto goodbye = self->close();
    co_await goodbye;
    services.cancel();
    try {
        auto joined = services.join();
        co_await joined;
    } catch (const error& e) {
        if (!failure && e.code() != errc::cancelled) failure = std::current_exception();
    }
    if (failure) std::rethrow_exception(failure);
    co_return code;
}

} // namespace rt::detail

/// Runs app as a driver, or this process as one of its workers. Call it from main and return its result.
///   app     task<int> or task<void>, from (), (std::vector<std::string>) or (int, char**); flags that
///           belong to skein (--workers) are taken out of the vector. An app from () has --help.
/// In a worker it does not return: the process leaves with its driver, and nothing after run() happens
/// there. A program may call run() again after it; the workers of the second run start like all others,
/// at the top of main.
template <class App>
[[nodiscard]] int run(int argc, char** argv, App app, run_options how = {}) {
    rt::open_standard_files();
    // A task of a worker may be a driver of its own: it has a node.
    if (rt::is_worker() && rt::node::try_current() == nullptr) rt::detail::live_as_worker();

    int stopped_by = 0;
    try {
        auto line = rt::detail::parse_command_line(argc, argv);
        if constexpr (std::is_invocable_v<App&>) { // others have a --help of their own
            if (!line.rest.empty() && (line.rest.front() == "--help" || line.rest.front() == "-h"))
                return rt::detail::print_usage(argv[0]);
        }
        how.processes.count = line.workers.value_or(how.workers);
        if (argc > 0) how.processes.program = argv[0];
        net::real_loop loop;
        rt::node_options who;
        who.host = rt::host_name();
        who.pid = ::getpid();
        rt::node self(who);
        const rt::node::use current(self);
        rt::local_workers workers(loop, self, how.processes);
        auto work =
            rt::detail::as_exit_code(rt::detail::call_app(app, argc, argv, std::move(line.rest)));
        return loop.run(rt::detail::drive(&loop, &self, &workers, std::move(work), &stopped_by));
    } catch (const error& e) {
        std::fflush(stdout);
        if (stopped_by != 0 && e.code() == errc::cancelled) {
            fmt::print(stderr, "stopped by {}\n", rt::signal_name(stopped_by));
            return 128 + stopped_by;
        }
        fmt::print(stderr, "error: {}\n", e.what());
        return e.code() == errc::usage ? exit_code::usage : exit_code::failed;
    } catch (const std::exception& e) {
        std::fflush(stdout);
        fmt::print(stderr, "error: {}\n", e.what());
        return exit_code::failed;
    } catch (...) {
        std::fflush(stdout);
        fmt::print(stderr, "error: the app threw something that is not a std::exception\n");
        return exit_code::failed;
    }
}

} // namespace skein
