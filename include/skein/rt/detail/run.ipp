// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of rt/run.hpp: the driver's life around its app.

#include <skein/core/cancel.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/stop_signals.hpp>
#include <skein/net/readable_fd.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/rt/children.hpp>
#include <skein/rt/process.hpp>
#include <skein/rt/runtime.hpp>
#include <skein/rt/standard_files.hpp>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

#include <fmt/format.h>

namespace skein::rt::detail {

/// Watches for the first stop signal and cancels the app.
SKEIN_INLINE task<void> watch_signals(net::real_loop* loop, const stop_signals* signals,
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

SKEIN_INLINE int parse_count(std::string_view flag, std::string_view text) {
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

SKEIN_INLINE command_line parse_command_line(int argc, char** argv) {
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
SKEIN_INLINE int print_usage(std::string_view program) {
    program.remove_prefix(std::min(program.rfind('/') + 1, program.size()));
    fmt::print("usage: {} [--workers N]\n\n"
               "  --workers N   worker processes (default: SKEIN_WORKERS, else one per core)\n"
               "  --help        this text\n",
               program);
    return exit_code::done;
}

/// The driver: the app under its signals, then everything else in order.
SKEIN_INLINE task<int> drive(net::real_loop* loop, runtime* self, local_workers* workers,
                             task<int> app, int* stopped_by) {
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

/// Tells the exception that is being handled, as the last line of a program; gives its exit code.
SKEIN_INLINE int tell_failure(int stopped_by) {
    std::fflush(stdout);
    try {
        throw;
    } catch (const error& e) {
        if (stopped_by != 0 && e.code() == errc::cancelled) {
            fmt::print(stderr, "stopped by {}\n", signal_name(stopped_by));
            return 128 + stopped_by;
        }
        fmt::print(stderr, "error: {}\n", e.what());
        return e.code() == errc::usage ? exit_code::usage : exit_code::failed;
    } catch (const std::exception& e) {
        fmt::print(stderr, "error: {}\n", e.what());
    } catch (...) {
        fmt::print(stderr, "error: the app threw something that is not a std::exception\n");
    }
    return exit_code::failed;
}

SKEIN_INLINE int run_app(int argc, char** argv, any_app app, run_options how) {
    open_standard_files();
    // A task of a worker may be a driver of its own: it has a runtime.
    if (is_worker() && runtime::try_current() == nullptr) live_as_worker();

    int stopped_by = 0;
    try {
        auto line = parse_command_line(argc, argv);
        if (app.takes_nothing && !line.rest.empty()) { // others have a --help of their own
            if (line.rest.front() == "--help" || line.rest.front() == "-h")
                return print_usage(argv[0]);
            throw error(errc::usage, fmt::format("unknown argument {}", line.rest.front()))
                .with_hint("this program takes --workers N only; see --help");
        }
        how.processes.count = line.workers.value_or(how.workers);
        if (argc > 0) how.processes.program = argv[0];
        net::real_loop loop;
        runtime_options who;
        who.host = host_name();
        who.pid = ::getpid();
        runtime self(who);
        const runtime::use current(self);
        net::real_network network(loop);
        local_children children(loop);
        local_workers workers(loop, network, children, self, how.processes);
        auto work = app.start(std::move(line.rest));
        return loop.run(drive(&loop, &self, &workers, std::move(work), &stopped_by));
    } catch (...) {
        return tell_failure(stopped_by);
    }
}

} // namespace skein::rt::detail
