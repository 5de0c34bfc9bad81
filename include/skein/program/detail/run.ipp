// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of program/run.hpp: an app under the signals of its process.

#include <skein/core/cancel.hpp>
#include <skein/core/file_limit.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/notice.hpp>
#include <skein/core/printable.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/stop_signals.hpp>
#include <skein/net/readable_fd.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/proc/process.hpp>
#include <skein/program/detail/driver.hpp>
#include <skein/rt/runtime.hpp>

#include <cerrno>
#include <cstdio>
#include <exception>
#include <utility>

#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

namespace skein::program::detail {

/// Watches for the first stop signal and cancels the app.
SKEIN_INLINE task<void> watch_signals(net::real_loop* loop, const stop_signals* signals,
                                      cancel_source stop, int* which) {
    auto readable = net::wait_readable(*loop, signals->fd());
    co_await readable;
    *which = signals->which();
    stop.request();
}

/// The driver, whose app is cancelled by the first signal.
SKEIN_INLINE task<int> drive_under_signals(net::real_loop* loop, driver* by, task<int> app,
                                           int* stopped_by) {
    stop_signals signals;
    cancel_source stop;
    scope watching;
    watching.spawn(watch_signals(loop, &signals, stop, stopped_by));

    int code = exit_code::failed;
    std::exception_ptr failure;
    try {
        auto driving = by->drive(with_cancel(stop.token(), std::move(app)));
        code = co_await driving;
    } catch (...) {
        failure = std::current_exception();
    }
    watching.cancel();
    try {
        auto joined = watching.join();
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
            write_notice(fmt::format("stopped by {}\n", proc::signal_name(stopped_by)));
            return 128 + stopped_by;
        }
        write_notice(fmt::format("error: {}\n", printable_lines(e.what())));
        return e.code() == errc::usage ? exit_code::usage : exit_code::failed;
    } catch (const std::exception&) {
        write_notice(
            fmt::format("error: {}\n", printable_lines(to_error(std::current_exception()).what())));
    } catch (...) {
        write_notice("error: the app threw something that is not a std::exception\n");
    }
    return exit_code::failed;
}

/// What a program has printed into a file is there when it ends well, or it has not.
SKEIN_INLINE int with_output(int code) {
    struct ::stat to{};
    if (code != 0 || ::fstat(STDOUT_FILENO, &to) != 0 || !S_ISREG(to.st_mode)) return code;
    errno = 0;
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
    throw error(errc::io, fmt::format("what it prints cannot be written{}{}",
                                      errno != 0 ? ": " : "", errno != 0 ? errno_text(errno) : ""));
}

SKEIN_INLINE int run_app(int argc, char** argv, any_app app, run_options how) {
    if (rt::runtime::try_current() != nullptr) // else this is a worker whose life begins here
        loop::refuse_inside("skein::run",
                            "await the calls here, which have workers already; a session "
                            "(skein/program/session.hpp) has a thread and workers of its own");
    int stopped_by = 0;
    try {
        auto plan = plan_driver(argc, argv, how, app.takes_nothing);
        if (plan.exit_code) return with_output(*plan.exit_code);
        net::real_loop loop;
        driver here(loop, plan, how);
        auto work = app.start(std::move(plan.rest));
        return with_output(
            loop.run(drive_under_signals(&loop, &here, std::move(work), &stopped_by)));
    } catch (...) {
        return tell_failure(stopped_by);
    }
}

} // namespace skein::program::detail
