// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of program/detail/driver.hpp: the command line, roles, and a driver's life around its
// app.

#include <skein/core/log.hpp>
#include <skein/core/notice.hpp>
#include <skein/core/printable.hpp>
#include <skein/core/scope.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/proc/process.hpp>
#include <skein/proc/standard_files.hpp>
#include <skein/program/detail/near_flag.hpp>
#include <skein/program/local_workers.hpp>
#include <skein/program/run_options.hpp>
#include <skein/rt/worker_link.hpp>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <unistd.h>

#include <fmt/format.h>

namespace skein::program::detail {

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
        } else if (const auto s = flags.has("--head") || cluster.head
                                      ? flags.value("--state", "a folder")
                                      : nothing) {
            cluster.state = *s;
        } else {
            out.rest.emplace_back(flags.next());
        }
    }
    if (argc > 0) cluster.program = argv[0];
    const auto both = [](const char* one, const char* other) {
        return error(errc::usage, fmt::format("{} and {}: a process is one of them", one, other))
            .with_hint("start one process for each");
    };
    if (cluster.head && !cluster.join.empty()) throw both("--head", "--join");
    if (cluster.head && !cluster.address.empty()) throw both("--head", "--address");
    if (!cluster.join.empty() && !cluster.address.empty()) throw both("--join", "--address");
    return out;
}

/// Whether workers are of this host because somebody said so.
SKEIN_INLINE bool is_local(const cluster_flags& flags) {
    const char* const variable = std::getenv("SKEIN_ADDRESS");
    return flags.address == "local" ||
           (flags.address.empty() && variable != nullptr && std::string_view(variable) == "local");
}

/// The head that the command line or the environment names; empty: there is none, workers are of
/// this host.
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
        .with_hint("include <skein/program/program.hpp> beside <skein/program/run.hpp>, or link "
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
        "  --head            be the head of a cluster; --listen HOST:PORT for other hosts,\n"
        "                    --state DIR remembers drained nodes and past jobs\n"
        "  --join A          be a node of the cluster whose head is at A\n"
        "  --token-file F    the cluster's token (default: SKEIN_TOKEN, SKEIN_TOKEN_FILE, else\n"
        "                    ~/.config/skein/token)\n"
        "  --prefix-output   say of each line that a worker prints which worker it was;\n"
        "                    --no-prefix-output does not (default: SKEIN_PREFIX_OUTPUT=1 or 0,\n"
        "                    else on clusters only)\n"
        "  --help            this text; --skein-help where the program has a --help of its own\n",
        program);
    return exit_code::done;
}

SKEIN_INLINE driver_plan plan_driver(int argc, char** argv, run_options& how, bool takes_nothing) {
    serve_if_worker();
    auto line = parse_command_line(argc, argv);
    driver_plan plan;
    const auto asks = [&](std::string_view flag) {
        return std::find(line.rest.begin(), line.rest.end(), flag) != line.rest.end();
    };
    const bool begins = takes_nothing && !line.rest.empty(); // others have a --help of their own
    if (asks("--skein-help") ||
        (begins && (line.rest.front() == "--help" || line.rest.front() == "-h"))) {
        plan.exit_code = print_usage(argv[0]);
        return plan;
    }
    auto& cluster = line.cluster;
    const bool is_cluster =
        cluster.head || !cluster.join.empty() || !cluster_address(cluster).empty();
    if (begins) {
        const auto meant = detail::near_flag(line.rest.front(), is_cluster);
        throw error(errc::usage, fmt::format("unknown argument {}", line.rest.front()))
            .with_hint(fmt::format("{}this program takes skein's flags only; see --help",
                                   meant.empty() ? "" : fmt::format("is {} meant? ", meant)));
    }
    if (argc < 1) cluster.program = ::program_invocation_name;
    cluster.workers = line.workers.value_or(how.workers);
    if (const char* said = std::getenv("SKEIN_ADDRESS"); cluster.address.empty() &&
                                                         (said == nullptr || *said == '\0') &&
                                                         !cluster.head && cluster.join.empty())
        cluster.address = how.address;
    if (cluster.token_file.empty()) cluster.token_file = how.token_file;
    plan.head = cluster_address(cluster);
    if (cluster.head) {
        plan.exit_code = roles_of_program()->head(cluster);
    } else if (!cluster.join.empty()) {
        plan.exit_code = roles_of_program()->join(cluster);
    } else {
        if (plan.head.empty()) plan.part = take_part_in_job(cluster);
        if (plan.part.exit_code)
            std::exit(*plan.part.exit_code); // what follows is the driver's, as in workers
        if (plan.part.leads) plan.part.address = plan.part.leads->address();
        if (!plan.part.address.empty()) plan.head = cluster.address = plan.part.address;
        for (const auto& argument : line.rest)
            if (const auto meant = detail::near_flag(argument, is_cluster); !meant.empty())
                write_notice(fmt::format("warning: {} is left to the program; skein's flag is {}\n",
                                         printable(argument), meant));
    }
    how.processes.count = cluster.workers;
    how.processes.program = cluster.program;
    plan.rest = std::move(line.rest);
    plan.cluster = std::move(cluster);
    return plan;
}

/// Where the stores of nodes reach the driver's; empty: nowhere.
SKEIN_INLINE std::string open_door(objects::local_store& store, const net::address& at) {
    try {
        // A path is the driver's own door.
        return store.open_door(at.kind == net::scheme::unix_path ? net::address::tcp("127.0.0.1", 0)
                                                                 : at);
    } catch (const error& e) {
        logging::warn("objects", "the stores of nodes cannot reach that of the driver",
                      {{"why", e.what()}, {"then", "objects of other nodes cannot be read"}});
        return {};
    }
}

SKEIN_INLINE rt::runtime_options this_process() {
    rt::runtime_options who;
    who.host = proc::host_name();
    who.pid = ::getpid();
    return who;
}

SKEIN_INLINE driver::driver(net::real_loop& on, const driver_plan& plan, const run_options& how)
    : self_(this_process()), current_(self_), network_(on), children_(on) {
    if (!plan.head.empty()) {
        workers_ = roles_of_program()->workers(on, network_, self_, plan.cluster);
        const auto meeting = workers_->stores();
        if (meeting)
            open_store(on, how.store, objects::store_on_node{meeting->secret, "the driver"});
        return;
    }
    open_store(on, how.store, {});
    auto processes = how.processes;
    processes.store = store_;
    if (plan.cluster.prefix_output.value_or(false) && !processes.print)
        processes.print = proc::print_to_standard_files(true);
    workers_ =
        std::make_unique<local_workers>(on, network_, children_, self_, std::move(processes));
}

/// Nothing of it is there before the first object, but a file without pages.
SKEIN_INLINE void driver::open_store(net::real_loop& on, std::string_view asked,
                                     std::optional<objects::store_on_node> among) {
    const auto bytes = objects::store_bytes_for(asked);
    if (bytes == 0) return;
    // What other nodes read lies in memory.
    auto files = among ? nullptr : objects::default_spill_volume();
    try {
        store_ = std::make_shared<objects::local_store>(bytes, std::move(among), std::move(files));
    } catch (const error& e) {
        logging::at(asked.empty() ? logging::level::debug : logging::level::warn, "objects",
                    "there is no store",
                    {{"why", e.what()}, {"then", "large values travel in messages"}});
        return;
    }
    if (store_->has_others()) rt::tell_store_number(self_, store_->number());
    objects_ = store_->client(on, objects::process_id(self_.incarnation()));
    rt::use_store(self_, objects_, [this] {
        const auto meeting = workers_->stores();
        if (!meeting) store_->start();
        return meeting ? open_door(*store_, meeting->at) : std::string();
    });
}

SKEIN_INLINE task<int> driver::drive(task<int> app) {
    scope services;
    self_.on_first_call([&services, this] { services.spawn(workers_->serve()); });
    self_.ask(workers_.get());

    int code = exit_code::failed;
    std::exception_ptr failure;
    try {
        code = co_await app;
    } catch (...) {
        failure = std::current_exception();
    }
    workers_->stop();
    auto goodbye = self_.close();
    co_await goodbye;
    services.cancel();
    try {
        auto joined = services.join();
        co_await joined;
    } catch (const error& e) {
        if (!failure && e.code() != errc::cancelled) failure = std::current_exception();
    }
    if (objects_) {
        auto left = objects_->close();
        co_await left;
    }
    if (failure) std::rethrow_exception(failure);
    co_return code;
}

} // namespace skein::program::detail
