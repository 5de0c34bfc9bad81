// SPDX-License-Identifier: Apache-2.0
#pragma once
// run: a main() that is a driver with its own local cluster, and, started again by itself, a
// worker.
//
//     skein::task<int> app();
//     int main(int argc, char** argv) { return skein::run(argc, argv, app); }
//
// Workers start with the first remote call: --workers N, or SKEIN_WORKERS=N, or one per core. With
// --address A, or SKEIN_ADDRESS=A, they are started on the nodes of the cluster whose head is at A
// (program/program.hpp). The exit code is the app's; 1 for an error (printed to stderr), 2 for a
// wrong command line, 130 and 143 when SIGINT or SIGTERM stopped it: the app is cancelled, workers
// leave, a second signal ends it at once.

#include <skein/core/function.hpp>
#include <skein/core/task.hpp>
#include <skein/program/run_options.hpp>
#include <skein/rt/actor.hpp>

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace skein {

namespace program::detail {

template <class T>
task<int> as_exit_code(task<T> work) {
    if constexpr (std::is_void_v<T>) {
        co_await work;
        co_return exit_code::done;
    } else {
        co_return co_await work;
    }
}

template <class R>
consteval bool check_app_result() {
    using value = typename rt::detail::unwrap_task<R>::type;
    constexpr bool is_app = rt::detail::unwrap_task<R>::is_coroutine &&
                            (std::is_void_v<value> || std::is_convertible_v<value, int>);
    static_assert(is_app, "skein::run: app must return skein::task<int> or skein::task<void>, as a "
                          "coroutine does: write co_return instead of return");
    return is_app;
}

/// An app as the driver sees it: what main's caller wrote, and what is left of its command line.
struct any_app {
    unique_function<task<int>(std::vector<std::string>)> start;
    bool takes_nothing = false; ///< then skein's own flags are all there are
};

/// Calls the app with what it takes: nothing, its arguments as strings, or argc and argv.
template <class App>
any_app make_app(App app, int argc, char** argv) {
    if constexpr (std::is_invocable_v<App&>) {
        if constexpr (check_app_result<std::invoke_result_t<App&>>())
            return {[app = std::move(app)](std::vector<std::string>) mutable {
                        return as_exit_code(app());
                    },
                    true};
    } else if constexpr (std::is_invocable_v<App&, std::vector<std::string>>) {
        if constexpr (check_app_result<std::invoke_result_t<App&, std::vector<std::string>>>())
            return {[app = std::move(app)](std::vector<std::string> rest) mutable {
                return as_exit_code(app(std::move(rest)));
            }};
    } else if constexpr (std::is_invocable_v<App&, int, char**>) {
        if constexpr (check_app_result<std::invoke_result_t<App&, int, char**>>())
            return {[app = std::move(app), argc, argv](std::vector<std::string>) mutable {
                return as_exit_code(app(argc, argv));
            }};
    } else {
        static_assert(
            std::is_invocable_v<App&, int, char**>,
            "skein::run: app must be callable with nothing, with std::vector<std::string> (its "
            "arguments), or with (int argc, char** argv)");
    }
    return {}; // a static_assert has said why
}

/// run() for every app.
[[nodiscard]] int run_app(int argc, char** argv, any_app app, run_options how);

} // namespace program::detail

/// Runs app as a driver, or this process as one of its workers. Call it from main and return its
/// result.
///   app     task<int> or task<void>, from (), (std::vector<std::string>) or (int, char**); flags
///           that belong to skein (--workers, --address, --head, --join) are taken out of the
///           vector. An app from () has --help.
/// In a worker it does not return: the process leaves with its driver, and nothing after run()
/// happens there. A program may call run() again after it; the workers of the second run start like
/// all others, at the top of main.
///   errors  not_supported: in a task, an actor or an app; all others are told on stderr and in the
///           exit code
template <class App>
[[nodiscard]] int run(int argc, char** argv, App app, run_options how = {}) {
    auto any = program::detail::make_app(std::move(app), argc, argv);
    return program::detail::run_app(argc, argv, std::move(any), std::move(how));
}

} // namespace skein

#if SKEIN_HEADER_ONLY
#include <skein/program/detail/run.ipp>
#endif
