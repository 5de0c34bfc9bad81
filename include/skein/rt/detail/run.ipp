// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of rt/run.hpp: the driver's life around its app.

#include <skein/core/cancel.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/stop_signals.hpp>
#include <skein/net/readable_fd.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/rt/boot.hpp>
#include <skein/rt/children.hpp>
#include <skein/rt/process.hpp>
#include <skein/rt/runtime.hpp>
#include <skein/rt/standard_files.hpp>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
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
    cluster_flags cluster;
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

/// Goes along a command line.
class flag_reader {
public:
    explicit flag_reader(const std::vector<std::string_view>& all) : all_(all) {}
    [[nodiscard]] bool at_end() const { return at_ == all_.size(); }
    [[nodiscard]] std::string_view next() { return all_[at_++]; }
    /// Anywhere.
    [[nodiscard]] bool has(std::string_view flag) const {
        return std::any_of(all_.begin(), all_.end(), [&](std::string_view arg) {
            return arg == flag ||
                   (arg.starts_with(flag) && arg.substr(flag.size()).starts_with('='));
        });
    }
    [[nodiscard]] bool take(std::string_view flag) {
        if (all_[at_] != flag) return false;
        ++at_;
        return true;
    }
    /// The value in "--flag value" or "--flag=value", if that is next.
    [[nodiscard]] std::optional<std::string> value(std::string_view flag, std::string_view what) {
        const auto arg = all_[at_];
        if (!arg.starts_with(flag)) return std::nullopt;
        if (arg.size() > flag.size() && arg[flag.size()] == '=') {
            ++at_;
            return std::string(arg.substr(flag.size() + 1));
        }
        if (arg != flag) return std::nullopt;
        if (at_ + 1 == all_.size())
            throw error(errc::usage, fmt::format("{} needs {}", flag, what));
        at_ += 2;
        return std::string(all_[at_ - 1]);
    }

private:
    const std::vector<std::string_view>& all_;
    std::size_t at_ = 0;
};
inline constexpr std::optional<std::string> nothing;

/// What the environment says of the output of workers.
SKEIN_INLINE std::optional<bool> prefix_by_variable() {
    const char* const text = std::getenv("SKEIN_PREFIX_OUTPUT");
    if (text == nullptr || *text == '\0') return std::nullopt;
    if (std::string_view(text) == "1" || std::string_view(text) == "0") return *text == '1';
    throw error(errc::usage, fmt::format("SKEIN_PREFIX_OUTPUT={}: neither 0 nor 1", text));
}

SKEIN_INLINE command_line parse_command_line(int argc, char** argv) {
    command_line out;
    out.cluster.prefix_output = prefix_by_variable();
    if (const char* text = std::getenv("SKEIN_WORKERS"); text != nullptr && *text != '\0')
        out.workers = parse_count("SKEIN_WORKERS", text);
    const std::vector<std::string_view> all(argv + std::min(argc, 1), argv + argc);
    flag_reader flags(all);
    // Names that an application may use itself are skein's beside one of the others only.
    const bool is_cluster = flags.has("--head") || flags.has("--join") || flags.has("--address") ||
                            std::getenv("SKEIN_ADDRESS") != nullptr;
    auto& cluster = out.cluster;
    while (!flags.at_end()) {
        if (const auto n = flags.value("--workers", "a number, e.g. --workers 4")) {
            out.workers = parse_count("--workers", *n);
        } else if (const auto a = flags.value("--address", "the head's, e.g. --address node-1")) {
            cluster.address = *a;
        } else if (const auto j = flags.value("--join", "the head's address, e.g. --join node-1")) {
            cluster.join = *j;
        } else if (flags.take("--head")) {
            cluster.head = true;
        } else if (flags.take("--prefix-output")) {
            cluster.prefix_output = true;
        } else if (flags.take("--no-prefix-output")) {
            cluster.prefix_output = false;
        } else if (const auto f = is_cluster ? flags.value("--token-file", "a file") : nothing) {
            cluster.token_file = *f;
        } else if (const auto l = is_cluster ? flags.value("--listen", "HOST:PORT") : nothing) {
            cluster.listen = *l;
        } else {
            out.rest.emplace_back(flags.next());
        }
    }
    if (argc > 0) cluster.program = argv[0];
    return out;
}

/// Whether workers are of this host because somebody said so.
SKEIN_INLINE bool is_local(const cluster_flags& flags) {
    const char* const variable = std::getenv("SKEIN_ADDRESS");
    return flags.address == "local" ||
           (flags.address.empty() && variable != nullptr && std::string_view(variable) == "local");
}

/// The head that the command line or the environment names; empty: there is none, workers are of this host.
SKEIN_INLINE std::string cluster_address(const cluster_flags& flags) {
    if (is_local(flags)) return {};
    const auto* const roles = roles_of_program();
    if (roles != nullptr) return roles->address(flags);
    const char* variable = std::getenv("SKEIN_ADDRESS");
    if (flags.address.empty() && flags.join.empty() && !flags.head &&
        (variable == nullptr || *variable == '\0'))
        return {};
    throw error(errc::not_supported, "not supported: this program was compiled header-only without "
                                     "the cluster")
        .with_hint("include <skein/cluster/program.hpp> beside <skein/rt/run.hpp>, or link "
                   "skein::runtime");
}

/// What a launcher has made of this process, if neither flags nor environment say what it is.
SKEIN_INLINE part_in_job take_part_in_job(const cluster_flags& flags) {
    const auto* const roles = roles_of_program();
    if (roles == nullptr || flags.head || !flags.join.empty() || is_local(flags)) return {};
    return roles->take_part(flags);
}

/// Prints what skein itself understands; for an app that takes no arguments, that is all.
SKEIN_INLINE int print_usage(std::string_view program) {
    program.remove_prefix(std::min(program.rfind('/') + 1, program.size()));
    fmt::print(
        "usage: {} [--workers N] [--address A | --head | --join A]\n\n"
        "  --workers N       worker processes (default: SKEIN_WORKERS, else one per core)\n"
        "  --address A       run on the cluster whose head is at A (default: SKEIN_ADDRESS,\n"
        "                    else workers of this host, as with --address local; under srun\n"
        "                    and mpirun the processes of the job are a cluster)\n"
        "  --head            be the head of a cluster; --listen HOST:PORT for other hosts\n"
        "  --join A          be a node of the cluster whose head is at A\n"
        "  --token-file F    the cluster's token (default: SKEIN_TOKEN, SKEIN_TOKEN_FILE, else\n"
        "                    ~/.config/skein/token)\n"
        "  --prefix-output   say of each line that a worker prints which worker it was;\n"
        "                    --no-prefix-output does not (default: SKEIN_PREFIX_OUTPUT=1 or 0,\n"
        "                    else on clusters only)\n"
        "  --help            this text\n",
        program);
    return exit_code::done;
}

/// The driver: the app under its signals, then everything else in order.
SKEIN_INLINE task<int> drive(net::real_loop* loop, runtime* self, worker_source* workers,
                             task<int> app, int* stopped_by) {
    stop_signals signals;
    cancel_source stop;
    scope services;
    services.spawn(watch_signals(loop, &signals, stop, stopped_by));
    self->on_first_call([&services, workers] { services.spawn(workers->serve()); });
    self->ask(workers);

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

/// An agent has started this process to keep a namespace; what follows run() is the driver's, as in workers.
[[noreturn]] SKEIN_INLINE void live_as_keeper() {
    static constinit std::atomic_flag taken = ATOMIC_FLAG_INIT;
    while (taken.test_and_set()) ::pause();
    const auto* const roles = roles_of_program();
    if (roles == nullptr) {
        (void)leave_last_words("not supported: this program was compiled without the cluster");
        std::exit(exit_code::failed);
    }
    std::exit(roles->keep());
}

SKEIN_INLINE int run_app(int argc, char** argv, any_app app, run_options how) {
    open_standard_files();
    // A task of a worker may be a driver of its own: it has a runtime.
    if (is_worker() && runtime::try_current() == nullptr) live_as_worker();
    if (started_as(keeper_role)) live_as_keeper();

    int stopped_by = 0;
    try {
        auto line = parse_command_line(argc, argv);
        if (app.takes_nothing && !line.rest.empty()) { // others have a --help of their own
            if (line.rest.front() == "--help" || line.rest.front() == "-h")
                return print_usage(argv[0]);
            throw error(errc::usage, fmt::format("unknown argument {}", line.rest.front()))
                .with_hint("this program takes skein's flags only; see --help");
        }
        line.cluster.workers = line.workers.value_or(how.workers);
        auto head = cluster_address(line.cluster);
        if (line.cluster.head) return roles_of_program()->head(line.cluster);
        if (!line.cluster.join.empty()) return roles_of_program()->join(line.cluster);
        part_in_job part;
        if (head.empty()) part = take_part_in_job(line.cluster);
        if (part.exit_code)
            std::exit(*part.exit_code); // what follows run() is the driver's, as in workers
        if (part.leads) head = line.cluster.address = part.leads->address();
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
        std::unique_ptr<worker_source> workers;
        if (head.empty()) {
            if (line.cluster.prefix_output.value_or(false) && !how.processes.print)
                how.processes.print = print_to_standard_files(true);
            workers = std::make_unique<local_workers>(loop, network, children, self, how.processes);
        } else {
            workers = roles_of_program()->workers(loop, network, self, line.cluster);
        }
        auto work = app.start(std::move(line.rest));
        return loop.run(drive(&loop, &self, workers.get(), std::move(work), &stopped_by));
    } catch (...) {
        return tell_failure(stopped_by);
    }
}

} // namespace skein::rt::detail
