// SPDX-License-Identifier: Apache-2.0
#pragma once
// The three ways of launch().

#include <skein/core/awaitable.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/notice.hpp>
#include <skein/core/printable.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/stop_signals.hpp>
#include <skein/dist/bootstrap.hpp>
#include <skein/dist/comm_thread.hpp>
#include <skein/net/loop_thread.hpp>
#include <skein/net/readable_fd.hpp>
#include <skein/proc/gpus.hpp>
#include <skein/proc/process.hpp>
#include <skein/proc/standard_files.hpp>
#include <skein/program/cluster_roles.hpp>
#include <skein/program/local_workers.hpp>
#include <skein/program/run_options.hpp>
#include <skein/spmd/elastic_member.hpp>
#include <skein/spmd/environment.hpp>
#include <skein/spmd/joined_group.hpp>
#include <skein/spmd/meeting.hpp>
#include <skein/spmd/program_kind.hpp>
#include <skein/spmd/rank_entry.hpp>
#include <skein/spmd/run_files.hpp>
#include <skein/spmd/settings.hpp>
#include <skein/spmd/supervisor.hpp>
#include <skein/train/collective.hpp>
#include <skein/train/detail/say_note.hpp>
#include <skein/train/device.hpp>

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::train {
namespace detail {

/// What LibTorch throws carries forty lines of a stack trace behind this line.
SKEIN_INLINE std::string without_trace(std::string_view text) {
    return printable_lines(text.substr(0, text.find("\nException raised from ")));
}

SKEIN_INLINE void print_error(const run_config& config, std::string_view who, const error& why) {
    // A live progress line may stand there: end it first.
    if (::isatty(STDERR_FILENO) != 0 && config.output == output_mode::automatic)
        std::fputc('\n', stderr);
    if (who.empty()) {
        write_notice(fmt::format("error: {}\n", without_trace(why.what())));
    } else {
        write_notice(fmt::format("error: {}: {}\n", who, without_trace(why.what())));
    }
}

/// Says that a stop request was heard.
SKEIN_INLINE void say_stopping(const run_config& config) {
    const bool saves = config.checkpoint.enabled && config.checkpoint.on_stop;
    say_note(config, fmt::format("stopping after this step{}; Ctrl-C again ends at once",
                                 saves ? " and saving a checkpoint" : ""));
}

/// Says so at the moment the signal comes, from a thread of its own: the step may be a long one.
class stop_notice {
public:
    stop_notice(const stop_signals& stops, const run_config& config)
        : stop_fd_(stops.fd()), config_(&config), control_("stop-notice") {
        control_.run([this] { return begin(); });
    }
    ~stop_notice() {
        control_.run([this] { return end(); });
    }
    stop_notice(const stop_notice&) = delete;
    stop_notice& operator=(const stop_notice&) = delete;

private:
    task<void> begin() {
        watching_ = std::make_unique<scope>();
        watching_->spawn(watch());
        co_return;
    }
    task<void> watch() {
        auto asked = net::wait_readable(control_.loop(), stop_fd_);
        co_await asked;
        say_stopping(*config_);
    }
    task<void> end() {
        watching_->cancel();
        auto joined = as_result(watching_->join());
        (void)co_await joined; // without the notice the run is what it was
        watching_.reset();
    }

    int stop_fd_;
    const run_config* config_;
    net::loop_thread control_;
    std::unique_ptr<scope> watching_; // lives on the thread
};

/// The communicator that was asked for.
SKEIN_INLINE std::string comm_model_of(const run_config& config) {
    auto model = dist::checked_comm_model(config.communicator);
    if (!model) throw error(errc::usage, model.error().text()).with_hint(model.error().hint());
    return *model;
}

/// A device for each of so many ranks of this host, where devices are asked for: told before any
/// of them computes.
SKEIN_INLINE void require_device_here(const run_config& config, int ranks) {
    if (config.device == "cuda")
        (void)choose_device(config.device, survey_devices(), std::max(ranks, 1),
                            /*may_share=*/config.communicator == "host");
}

SKEIN_INLINE int run_alone(const run_config& config, const rank_function& body) {
    const stop_signals stops(second_signal::ends_the_process, hang_up::asks_to_end);
    try {
        validate(config, 1);
        (void)comm_model_of(config); // a mistake also where nobody is to talk to
        require_device_here(config, 1);
        const stop_notice notice(stops, config);
        auto here = context::single();
        here.watch_stop_flag(&stops.asked(), [&stops] { return stops.which(); });
        body(here);
        return stops.exit_code();
    } catch (...) {
        const auto why = to_error(std::current_exception());
        if (stops.asked() && why.code() == errc::cancelled) {
            say_note(config, fmt::format("stopped by {}: {}", proc::signal_name(stops.which()),
                                         why.what()));
            return stops.exit_code();
        }
        print_error(config, "", why);
        return exit_code_of(why);
    }
}

/// Its ranks would be this program started again, whose main is the driver's, and would never reach
/// launch().
SKEIN_INLINE void refuse_in_task(const std::string& what) {
    const auto* const hint = "train in this process alone, with scaling.workers = 1 or a Trainer "
                             "on context::single(); start a training of several workers from main, "
                             "as a program of its own";
    loop::refuse_inside(what, hint);
    if (!program::is_worker()) return;
    throw error(errc::not_supported, "not supported: " + what + " in a task or an actor")
        .with_hint(hint);
}

/// What launch() and run() ask of a supervisor alike. `config` outlives it.
SKEIN_INLINE spmd::supervisor_options supervisor_options_of(const run_config& config) {
    spmd::supervisor_options options;
    options.workers = config.scaling.workers.most;
    options.max_failures = config.failure.max_failures;
    options.times.stop_grace = config.failure.stop_grace;
    options.times.backoff = config.failure.backoff;
    options.on_failure = [](const error& why, int restart, int most) {
        write_notice(fmt::format(
            "{}; starting again, from the last checkpoint if there is one (restart {} of {})\n",
            without_trace(why.what()), restart, most));
    };
    options.on_stop = [&] { say_stopping(config); };
    options.say = [&config](const std::string& line) { say_note(config, line); };
    options.threads = std::max(config.scaling.threads, 1);
    return options;
}

/// On this host workers share what this process sees; none is hidden from another.
///   errors  usage: there are not as many gpus
SKEIN_INLINE void require_gpus_here(const run_config& config) {
    const auto asked = static_cast<std::size_t>(config.scaling.gpus) *
                       static_cast<std::size_t>(std::max(config.scaling.workers.most, 1));
    if (asked == 0) return;
    const auto there = proc::visible_gpus().size();
    if (asked <= there) return;
    const char* const seen = std::getenv(proc::gpus_variable);
    throw error(errc::usage,
                fmt::format("{} workers with {} gpu{} each, on a host that shows this process {} "
                            "of them{}",
                            to_string(config.scaling.workers), config.scaling.gpus,
                            config.scaling.gpus == 1 ? "" : "s", there,
                            seen == nullptr ? std::string()
                                            : fmt::format(" ({}={})", proc::gpus_variable, seen)))
        .with_hint("set scaling.gpus to 0 to train on the CPU, use fewer workers, or name a "
                   "cluster whose nodes have gpus by SKEIN_ADDRESS");
}

/// The folder for runs as this process calls it: absolute, without a slash at its end.
[[nodiscard]] SKEIN_INLINE std::string own_runs_of(const run_config& config) {
    auto path = std::filesystem::absolute(config.runs_dir).lexically_normal().string();
    if (path.size() > 1 && path.ends_with('/')) path.pop_back();
    return path;
}

/// The nodes of a cluster that its ranks may have; without `children` there are none.
SKEIN_INLINE program::ranks_on_cluster find_places(const run_config& config) {
    const auto* const roles = program::roles_of_program();
    const auto named = spmd::process_environment()("SKEIN_ADDRESS").value_or("");
    program::ranks_on_cluster where;
    const auto require_here = [&] {
        require_gpus_here(config);
        require_device_here(config, config.scaling.workers.most);
    };
    if (named.empty() || named == "local") {
        require_here();
        return where;
    }
    const double cpus =
        config.scaling.cpus > 0 ? config.scaling.cpus : std::max(config.scaling.threads, 1);
    const auto wanted =
        sched::parse_resources(fmt::format("cpu={:.4f},gpu={}", cpus, config.scaling.gpus));
    if (!wanted)
        throw error(errc::usage, "scaling.cpus or scaling.gpus: " + wanted.error().text())
            .with_hint(wanted.error().hint());
    const auto demand = *wanted;
    const bool come_and_go = !config.scaling.workers.is_fixed();
    if (roles != nullptr)
        where = roles->ranks(
            demand, come_and_go, own_runs_of(config), [config](const std::string& why) {
                say_note(config, why.empty() ? "there is room for all ranks" : "waiting: " + why);
            });
    else
        where.why_not = "this program was compiled header-only without the cluster: include "
                        "<skein/program/program.hpp>, or link skein::runtime";
    if (where.children) return where;
    say_note(config, fmt::format("note: the ranks run on this host: {}", where.why_not));
    require_here();
    return where;
}

/// Which nodes of a cluster its ranks may have. Gives the folder for their runs, if they have any.
SKEIN_INLINE std::string place_ranks(spmd::supervisor_options& options, const run_config& config) {
    auto where = find_places(config);
    if (!where.children) return {};
    options.children = std::move(where.children);
    options.join_deadline = std::chrono::minutes(15); // nodes may fetch the job's folder first
    return where.runs;
}

/// Says how a supervised run ended, if it was not well.
SKEIN_INLINE int exit_code_after(const run_config& config,
                                 const spmd::supervisor_outcome& outcome) {
    const bool stopped = outcome.stop_signal != 0;
    // A stop that went wrong has saved nothing, perhaps: say what happened.
    if (outcome.failure && outcome.failure->code() != errc::cancelled)
        print_error(config, "", *outcome.failure);
    else if (outcome.failure && config.output != output_mode::quiet)
        say_note(config, fmt::format("stopped by {}: {}", proc::signal_name(outcome.stop_signal),
                                     outcome.failure->text()));
    if (stopped) return 128 + outcome.stop_signal;
    return outcome.failure ? exit_code_of(*outcome.failure) : exit_code::done;
}

SKEIN_INLINE int run_supervised(const run_config& config) {
    try {
        validate(config, config.scaling.workers.most);
        (void)comm_model_of(config);
        auto options = supervisor_options_of(config);
        (void)place_ranks(options, config);
        return exit_code_after(config, spmd::supervise(std::move(options)));
    } catch (...) {
        const auto why = to_error(std::current_exception());
        print_error(config, "", why);
        return exit_code_of(why);
    }
}

/// A number of workers that was asked for, where a launcher has started another.
SKEIN_INLINE void say_unused_workers(const spmd::launch_environment& where,
                                     const run_config& config) {
    if (spmd::is_supervised() || where.rank != 0 || config.scaling.workers == 1 ||
        config.scaling.workers == where.world_size)
        return;
    say_note(config,
             fmt::format("note: {} workers were asked for, but {} has started a world of {}",
                         to_string(config.scaling.workers), where.source, where.world_size));
}

/// Who names a cluster for tasks and actors expects it of a training, too. One of several ranks
/// says it where it places them.
SKEIN_INLINE void say_unused_cluster(const spmd::launch_environment& where,
                                     const run_config& config) {
    const auto& workers = config.scaling.workers;
    if (workers != 1 && !where.is_launched()) return;
    const char* const address = std::getenv("SKEIN_ADDRESS");
    const std::string_view at = address != nullptr ? address : "";
    if (at.empty() || at == "local" || spmd::is_supervised() || program::is_worker()) return;
    say_note(config, fmt::format("note: a training of {} worker{} does not use the cluster at {} "
                                 "(SKEIN_ADDRESS): it runs on this host",
                                 to_string(workers), workers == 1 ? "" : "s", at));
}

/// Nothing was trained yet and no other rank or host is to blame: another start would come to the
/// same. After a restart the start has worked once, so there it is worth another try.
[[nodiscard]] SKEIN_INLINE error before_first_step(const error& why) {
    auto lasting = spmd::is_lasting(why.code()) ? why
                                                : error(errc::invalid_argument, why.text())
                                                      .with_where(why.where())
                                                      .with_cause(why.cause())
                                                      .with_hint(why.hint());
    if (!spmd::is_lasting(why.code()))
        lasting.with_hint((why.hint().empty() ? "" : why.hint() + "; ") +
                          "thrown before the first step: not tried again");
    return lasting;
}

/// Everything of a rank that has to be undone in order.
///   stops  null: nobody has taken the signals
///   comm_name  of its communicator, of each run in one world another
SKEIN_INLINE void train_as_rank(spmd::joined_group& world, const spmd::launch_environment& where,
                                const run_config& config, const stop_signals* stops,
                                const std::string& comm_name, const rank_function& body) {
    dist::comm_options options;
    options.name = comm_name;
    options.model = comm_model_of(config);
    options.limits.deadline = config.failure.collective_timeout;
    if (const char* name = std::getenv("SKEIN_ADVERTISE")) options.advertise = name;
    auto comm = dist::make_comm_thread(world, options); // a lost rank aborts it

    world_info info;
    info.rank = where.rank;
    info.world_size = where.world_size;
    info.local_rank = where.local_rank;
    info.local_size = where.local_size;
    info.attempt = where.attempt;
    info.last_failure = where.last_failure;
    info.host = world.host();
    info.job_id = where.job_id;
    if (!spmd::is_supervised()) info.launcher = where.source;
    context here(std::move(info), &world, comm.get());
    here.use_options(options);
    if (stops != nullptr) here.watch_stop_flag(&stops->asked(), [stops] { return stops->which(); });
    try {
        body(here);
    } catch (...) {
        const auto why = to_error(std::current_exception());
        const bool mine = !is_of_world(why);
        if (mine && spmd::is_supervised() && !here.has_begun() && where.attempt == 0)
            throw before_first_step(why);
        throw;
    }
}

/// What a rank is to others on its host.
SKEIN_INLINE void begin_as_rank(const spmd::launch_environment& where) {
    proc::name_process(fmt::format("rank{}", where.rank));
    proc::print_by_lines(); // it may be killed
}

} // namespace detail

SKEIN_INLINE int exit_code_of(const error& why) noexcept {
    return why.code() == errc::usage ? exit_code::usage : exit_code::failed;
}

namespace detail {

/// A rank from its meeting to its leave; gives the exit code of its process.
///   world  what `life` makes when the ranks meet
SKEIN_INLINE int live_as_rank(const spmd::launch_environment& where, const run_config& config,
                              const stop_signals& stops, std::unique_ptr<spmd::joined_group>& world,
                              const std::function<void()>& life) {
    const bool supervised = spmd::is_supervised();
    const auto who = fmt::format("rank {} of {}", where.rank, where.world_size);
    try {
        life();
        world->leave();
        return stops.exit_code();
    } catch (...) {
        const auto why = to_error(std::current_exception());
        if (!world && stops.asked()) {
            if (!supervised)
                write_notice(fmt::format("{}: stopped by {} while the ranks were meeting\n", who,
                                         proc::signal_name(stops.which())));
            return stops.exit_code();
        }
        // A broken collective is mostly the echo of what happened to another rank: let that one
        // tell.
        const bool echo =
            world && is_of_world(why) && world->wait_lost(time_constants::lan().echo_wait);
        if (world && !echo) world->fail(why);
        if (supervised)
            proc::leave_last_words(why.what()); // in case nobody is told through the group
        if (!supervised && stops.asked() && why.code() == errc::cancelled) {
            say_note(config, fmt::format("{}: stopped by {}: {}", who,
                                         proc::signal_name(stops.which()), why.what()));
            return stops.exit_code();
        }
        // The supervisor prints what it was told; here only what nobody else will.
        if (!supervised || !world) print_error(config, who, why);
        return exit_code_of(why);
    }
}

} // namespace detail

SKEIN_INLINE int run_as_rank(const spmd::launch_environment& where, const run_config& config,
                             const rank_function& body) {
    const stop_signals stops;
    const bool supervised = spmd::is_supervised();
    detail::begin_as_rank(where);
    std::unique_ptr<spmd::joined_group> world;
    return detail::live_as_rank(where, config, stops, world, [&] {
        const auto secret = spmd::group_token();
        validate(config, where.world_size);
        detail::require_device_here(config, where.local_size);
        spmd::joined_group_options meeting;
        meeting.settings = settings_of(config);
        meeting.stop_fd = stops.fd();
        world = std::make_unique<spmd::joined_group>(where, secret, std::move(meeting));
        const spmd::run_files files(config.runs_dir);
        std::optional<detail::stop_notice> notice; // a supervisor says it itself
        if (!supervised && where.rank == 0) notice.emplace(stops, config);
        detail::train_as_rank(*world, where, config, &stops, "world", body);
    });
}

namespace detail {

// in detail/launch_elastic.ipp
int run_as_worker(const run_config& config, const rank_function& body);
int run_elastic(const run_config& config);

/// What this program can be where other hosts help.
SKEIN_INLINE const program::cluster_roles& roles_for_helpers() {
    if (const auto* const roles = program::roles_of_program()) return *roles;
    throw error(errc::not_supported,
                "not supported: hosts that help a program that was compiled header-only without "
                "the cluster")
        .with_hint("include <skein/program/program.hpp> beside <skein/train.hpp>, or link "
                   "skein::runtime");
}

/// A host that helps is a node of rank 0's head, and no rank. Gives the exit code.
SKEIN_INLINE int run_as_helper(const spmd::launch_environment& where, const run_config& config) {
    try {
        return roles_for_helpers().help(where);
    } catch (...) {
        const auto why = to_error(std::current_exception());
        print_error(config, "", why);
        return exit_code_of(why);
    }
}

/// A rank beside the hosts that help its job.
SKEIN_INLINE int run_with_helpers(const spmd::launch_environment& where, const run_config& config,
                                  const rank_function& body) {
    std::unique_ptr<program::job_with_helpers> job;
    try {
        job = roles_for_helpers().take_helpers(where);
    } catch (...) {
        const auto why = to_error(std::current_exception());
        print_error(config, fmt::format("rank {} of {}", where.rank, where.world_size), why);
        return exit_code_of(why);
    }
    const int code = run_as_rank(where, config, body);
    // After a failure the launcher may start the ranks again: hosts that help wait for that.
    if (code == exit_code::done || code > 128) job->end();
    return code;
}

} // namespace detail

SKEIN_INLINE int launch(const run_config& config, const rank_function& body) {
    serve_if_worker(); // of a session that a rank has opened: it is no rank, nor a supervisor
    spmd::launch_environment where;
    try {
        if (spmd::is_for_entry())
            throw error(errc::not_supported, "not supported: launch() in a rank of a run")
                .with_hint("a program has either launch() or runs of its own in its main");
        spmd::tell_program_kind(spmd::own_program_kind());
        spmd::take_launch_variables();
        if (spmd::is_elastic_rank()) return detail::run_as_worker(config, body);
        where = spmd::discover();
    } catch (const error& why) {
        detail::print_error(config, "", why);
        return exit_code::usage;
    }
    if (where.role == spmd::host_role::helps) return detail::run_as_helper(where, config);
    detail::say_unused_cluster(where, config);
    if (where.is_launched()) {
        detail::say_unused_workers(where, config);
        if (where.helper_hosts > 0) return detail::run_with_helpers(where, config, body);
        return run_as_rank(where, config, body);
    }
    if (config.scaling.workers == 1) return detail::run_alone(config, body);
    detail::refuse_in_task(
        fmt::format("launch() with {} workers", to_string(config.scaling.workers)));
    return config.scaling.workers.is_fixed() ? detail::run_supervised(config)
                                             : detail::run_elastic(config);
}

} // namespace skein::train
