// SPDX-License-Identifier: Apache-2.0
// The bodies of job_command.hpp.
#include "job_command.hpp"
#include "dashboard_text.hpp"
#include "job_progress.hpp"
#include "time_option.hpp"

#include <skein/cluster/access.hpp>
#include <skein/cluster/detail/result_files.hpp>
#include <skein/cluster/digest_cache.hpp>
#include <skein/cluster/jobs.hpp>
#include <skein/cluster/package_scan.hpp>
#include <skein/cluster/results.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/error.hpp>
#include <skein/core/notice.hpp>
#include <skein/core/printable.hpp>
#include <skein/core/units.hpp>
#include <skein/core/with_commas.hpp>
#include <skein/proc/process.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <string_view>

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

namespace skein_program {
namespace {

using skein::errc;
using skein::error;

template <class... Args>
void say(fmt::format_string<Args...> text, Args&&... args) {
    skein::write_notice(fmt::format(text, std::forward<Args>(args)...));
}

cluster::tool_options reach(const job_arguments& args) {
    cluster::tool_options how;
    const auto address = cluster::find_head_address(args.address);
    how.head = cluster::head_address_or_own(address);
    how.secret = cluster::find_token(args.token_file);
    how.name = "skein job";
    how.patience = std::chrono::seconds(10); // as programs and nodes have
    how.on_wait = [at = to_string(how.head)](const error& why, skein::time_span most) {
        say("skein job: no head answers at {} ({}); it is tried for {:.0f} s\n", at,
            skein::printable(why.text()), skein::to_seconds(most));
    };
    return how;
}

/// What the head says no to is no mistake of this command line.
int with_head(const std::function<int()>& ask) {
    try {
        return ask();
    } catch (const error& why) {
        if (why.code() == errc::usage || why.code() == errc::io) throw;
        std::fflush(stdout);
        say("error: {}\n", skein::printable_lines(why.what()));
        const bool is_there = why.code() == errc::not_found ||
                              why.code() == errc::invalid_argument ||
                              why.code() == errc::already_exists || why.code() == errc::too_large ||
                              why.code() == errc::exhausted;
        return is_there ? skein::exit_code::failed : 3;
    }
}

/// Nobody means a few bytes: a unit was left out.
void check_memory(const std::string& text, std::uint64_t bytes) {
    constexpr std::uint64_t least = std::uint64_t{1} << 20;
    if (text.empty() || bytes == 0 || bytes >= least) return;
    const bool is_number = text.find_first_not_of("0123456789.") == text.npos;
    throw error(errc::usage, fmt::format("--memory {} is {} byte{}", skein::printable(text), bytes,
                                         bytes == 1 ? "" : "s"))
        .with_hint(is_number ? fmt::format("with a unit: --memory {}GiB", skein::printable(text))
                             : std::string("1MiB is the least: --memory 512MiB, --memory 4GiB"));
}

std::string demand_of(const job_arguments& args) {
    if (args.cpus < 0 || args.gpus < 0)
        throw error(errc::usage, "--cpus and --gpus cannot be negative");
    auto text = fmt::format("cpu={:.4f}", args.cpus);
    if (args.gpus > 0) text += fmt::format(",gpu={:.4f}", args.gpus);
    if (!args.memory.empty()) text += ",memory=" + args.memory;
    if (!args.resources.empty()) text += "," + args.resources;
    const auto read = sched::parse_resources(text);
    if (!read)
        throw error(errc::usage, "--resources: " + read.error().text())
            .with_hint(read.error().hint());
    check_memory(args.memory, read->memory);
    return sched::to_string(*read);
}

/// What its training has where the program says nothing itself, as variables of the job.
void add_scaling(const job_arguments& args, std::vector<std::string>& env) {
    if (args.worker_cpus < 0 || args.worker_gpus < 0)
        throw error(errc::usage, "--cpus-per-worker and --gpus-per-worker cannot be negative");
    if (args.elastic.empty() && (args.worker_cpus > 0 || args.worker_gpus > 0))
        throw error(errc::usage, "--cpus-per-worker and --gpus-per-worker: of which workers")
            .with_hint("say how many: --elastic 1:4, or --elastic 4 for a fixed number");
    if (args.elastic.empty()) return;
    int least = 0, most = 0, end = 0;
    const auto* const text = args.elastic.c_str();
    const bool is_range = std::sscanf(text, "%d:%d%n", &least, &most, &end) == 2;
    if (!is_range && std::sscanf(text, "%d%n", &least, &end) == 1) most = least;
    if (end == 0 || text[end] != '\0' || least < 1 || most > 4096)
        throw error(errc::usage, fmt::format("--elastic {} is no number of workers",
                                             skein::printable(args.elastic)))
            .with_hint("the fewest and the most: --elastic 1:4");
    if (least > most)
        throw error(errc::usage,
                    fmt::format("--elastic {}: the fewest are more than the most", args.elastic))
            .with_hint(fmt::format("--elastic {}:{}", most, least));
    env.push_back("SKEIN_TRAIN_WORKERS=" + args.elastic);
    if (args.worker_cpus > 0)
        env.push_back(fmt::format("SKEIN_TRAIN_CPUS={:.4f}", args.worker_cpus));
    if (args.worker_gpus > 0)
        env.push_back(fmt::format("SKEIN_TRAIN_GPUS={:.4f}", args.worker_gpus));
}

/// "me@laptop"
std::string by_whom() {
    const auto* const who = ::getpwuid(::getuid());
    return fmt::format("{}@{}", who != nullptr ? who->pw_name : fmt::to_string(::getuid()),
                       skein::proc::host_name());
}

std::string state_name(const cluster::job_info& job) {
    return std::string(cluster::to_string(cluster::state_of(job)));
}

/// "exit code 3", "signal SIGKILL", "".
std::string end_text(const cluster::job_info& job) {
    if (job.signal != 0) return skein::proc::signal_name(job.signal);
    if (job.exit_code >= 0) return fmt::format("exit code {}", job.exit_code);
    return "";
}

std::string json_text(const skein::ordered_json& what) {
    return what.dump(2, ' ', false, skein::json::error_handler_t::replace) + "\n";
}

std::string since_text(const cluster::job_info& job) {
    const auto from = job.started != 0 ? job.started : job.submitted;
    const auto now = static_cast<std::int64_t>(std::time(nullptr)) * 1000;
    return skein::elapsed_text(
        std::max<std::int64_t>((job.ended != 0 ? job.ended : now) - from, 0));
}

// ---- what is printed of a job -------------------------------------------------------------------

template <class Lines>
void print_lines(const Lines& said, std::uint64_t from) {
    if (said.first > from && (!said.lines.empty() || said.is_all)) {
        std::fflush(stdout);
        say("skein job: {} left out here: too many came at once, or too long ago\n",
            said.first == from + 1 ? fmt::format("line {} is", from)
                                   : fmt::format("lines {} to {} are", from, said.first - 1));
    }
    for (const auto& line : said.lines) {
        auto* const to = line.is_error ? stderr : stdout;
        if (to == stderr) std::fflush(stdout);
        std::fwrite(line.text.data(), 1, line.text.size(), to);
        std::fputc('\n', to);
    }
    std::fflush(stdout);
    if (std::ferror(stdout) != 0) // nobody reads any more: the job goes on
        throw error(errc::io, "what the job prints cannot be written")
            .with_hint("the job goes on: skein job logs shows it");
}

int tell_end(const cluster::job_info& job, bool with_lines) {
    std::fflush(stdout);
    const auto state = cluster::state_of(job);
    const auto how =
        state == cluster::job_state::failed && !job.reason.empty() ? std::string() : end_text(job);
    say("skein job: {} {}{}{}{}{}\n", job.id, state_name(job),
        job.node.empty() ? "" : " on " + skein::printable(job.node),
        how.empty() || state == cluster::job_state::succeeded ? "" : ", " + how,
        job.attempt > 1 ? fmt::format(", attempt {}", job.attempt) : "",
        job.reason.empty() ? "" : ": " + skein::printable_lines(job.reason));
    if (with_lines && state == cluster::job_state::failed)
        for (const auto& line : job.last_lines) say("    {}\n", skein::printable(line));
    return state == cluster::job_state::succeeded ? skein::exit_code::done
                                                  : skein::exit_code::failed;
}

std::string detach_text; // for a signal handler

/// Ctrl-C ends the watching, not the job.
void detach_on_interrupt(const std::string& id) {
    detach_text = fmt::format("\nskein job: {0} goes on; skein job logs {0} --follow shows it, "
                              "skein job stop {0} ends it\n",
                              id);
    std::signal(SIGINT, [](int) {
        (void)!::write(2, detach_text.data(), detach_text.size());
        ::_exit(130);
    });
}

/// Prints what changes, and lines; gives the exit code.
int watch(const cluster::tool_options& how, const std::string& id, std::uint64_t from,
          bool prints) {
    detach_on_interrupt(id);
    std::string told;
    auto next = from;
    const auto end = cluster::follow_job_to_end(how, id, from, [&](const cluster::job_lines& said) {
        const auto state = cluster::state_of(said.now);
        // What one that runs waits for has a time in it: that it does is said once.
        const bool runs = state == cluster::job_state::running;
        auto news = state_name(said.now) +
                    (runs && !said.now.reason.empty() ? std::string(" waits") : said.now.reason);
        if (!cluster::is_over(state) && news != told) {
            std::fflush(stdout);
            say("skein job: {} {}{}{}\n", id, state_name(said.now),
                said.now.node.empty() || state == cluster::job_state::pending
                    ? ""
                    : " on " + skein::printable(said.now.node),
                said.now.reason.empty() ? "" : ": " + skein::printable(said.now.reason));
            told = std::move(news);
        }
        if (prints) print_lines(said, next);
        next = std::max(next, said.first + said.lines.size());
    });
    return tell_end(end, !prints);
}

// ---- the commands -------------------------------------------------------------------------------

/// Words of the command that are files of the folder: they go along, whatever is ignored there.
std::vector<std::string> named_files(const job_arguments& args) {
    namespace fs = std::filesystem;
    std::vector<std::string> out;
    std::error_code none;
    for (const auto& word : args.command) {
        const auto path = fs::path(word).lexically_normal();
        if (word.empty() || path.is_absolute() || path.string().starts_with("..") || path == ".")
            continue;
        if (!fs::is_regular_file(fs::path(args.folder) / path, none)) continue;
        if (word.find('/') == word.npos && &word == &args.command.front()) continue; // of the PATH
        out.push_back(path.string());
    }
    return out;
}

/// Files of so many bytes are read when they are sent, if nobody knows their digests.
constexpr std::uint64_t large_file = std::uint64_t{1} << 20;

/// Lists the folder, and reads its small files but those that are as they were the last time.
cluster::package_manifest read_folder(const job_arguments& args, cluster::digest_cache& known) {
    progress_line shown;
    cluster::scan_options scan;
    scan.known = [&](const struct stat& is) {
        auto digest = known.find(is);
        if (!digest && static_cast<std::uint64_t>(is.st_size) >= large_file) digest.emplace();
        return digest;
    };
    scan.learned = [&](const struct stat& is, const skein::sha256_digest& digest,
                       std::int64_t read_at) { known.learn(is, digest, read_at); };
    scan.always = named_files(args);
    scan.progress = [&](const cluster::scan_progress& now) {
        shown.say([&] {
            return reading_text(args.folder, now.files, now.all_files, now.bytes, now.all_bytes);
        });
    };
    return cluster::scan_folder(args.folder, scan);
}

/// Sends the folder.
std::string send_folder(const cluster::tool_options& how, const job_arguments& args,
                        const cluster::package_manifest& files, cluster::digest_cache& known) {
    progress_line shown;
    auto id = cluster::send_folder_now(
        how, args.folder, files,
        [&](std::uint64_t sent, std::uint64_t all) {
            shown.say([&] { return sending_text(args.folder, sent, all); });
        },
        &known);
    (void)known.save();
    return id;
}

/// Patterns of --results travel in the environment: the job sees what is kept of it.
void add_results(const job_arguments& args, cluster::job_request& to) {
    std::string all;
    for (const auto& one : args.results) {
        if (const auto good = cluster::detail::check_result_pattern(one); !good)
            throw error(errc::usage, "--results: " + good.error().text())
                .with_hint(good.error().hint());
        if (one.find('\n') != one.npos)
            throw error(errc::usage, "--results: a name with a line end cannot be asked for")
                .with_hint("name the folder that it is in");
        all += (all.empty() ? "" : "\n") + one;
    }
    if (args.results.size() > cluster::detail::most_result_patterns)
        throw error(errc::usage, fmt::format("--results may be given {} times at most",
                                             cluster::detail::most_result_patterns))
            .with_hint("one pattern may name many files: out/**");
    if (!all.empty()) to.env.push_back(fmt::format("{}={}", cluster::results_variable, all));
}

int submit(const job_arguments& args) {
    const auto how = reach(args);
    cluster::job_request what;
    what.id = args.id;
    what.command = args.command;
    if (what.command.empty())
        throw error(errc::usage, "no command is given: it stands behind --")
            .with_hint("skein job submit --working-dir . -- ./train --workers 2");
    add_scaling(args, what.env);
    what.env.insert(what.env.end(), args.env.begin(), args.env.end());
    what.demand = demand_of(args);
    what.label = args.on;
    what.retries = args.retries;
    what.pending_ms = read_time(args.pending, "--pending-timeout");
    what.timeout_ms = read_time(args.limit, "--timeout");
    what.grace_ms = read_time(args.grace, "--grace");
    what.by = by_whom();
    add_results(args, what);
    cluster::package_manifest files;
    cluster::digest_cache known(args.folder.empty() ? "" : cluster::digest_cache::own_path());
    if (!args.folder.empty()) files = read_folder(args, known);
    return with_head([&] {
        if (!args.folder.empty()) what.package = send_folder(how, args, files, known);
        const auto taken = cluster::submit(how, what);
        if (!taken.not_durable.empty())
            say("skein job: a head that is started again will not know of it: {}\n",
                skein::printable(taken.not_durable));
        if (!taken.has_log)
            say("skein job: the head has no --state: when it ends, this job ends too, and its "
                "state "
                "and lines are lost\n");
        if (args.no_wait) {
            fmt::print("{}\n", taken.id);
            return skein::exit_code::done;
        }
        say("skein job: {} is submitted to {}\n", taken.id, to_string(how.head));
        return watch(how, taken.id, 1, true);
    });
}

int list(const job_arguments& args) {
    const auto how = reach(args);
    return with_head([&] {
        const auto now = cluster::list_jobs(how);
        if (args.json) {
            auto all = skein::ordered_json::array();
            for (const auto& job : now.jobs) all.push_back(json_of(job));
            fmt::print("{}", json_text({{"jobs", all}, {"total", now.total}}));
            return skein::exit_code::done;
        }
        if (now.jobs.empty()) fmt::print("no job was submitted here\n");
        for (const auto& job : now.jobs)
            fmt::print("{:<22} {:<9} {:<12} {:<12} {}\n", job.id, state_name(job), since_text(job),
                       skein::printable(job.node), command_text(job.command));
        if (now.total > now.jobs.size())
            fmt::print("... and {} older ones\n", now.total - now.jobs.size());
        return skein::exit_code::done;
    });
}

/// "3 files"
template <class Count>
std::string count_of(Count n, const char* what) {
    return fmt::format("{} {}{}", skein::with_commas(n), what, n == 1 ? "" : "s");
}

/// "attempt 2: 14 files, 3.2 MiB, from n1"
std::string text_of_set(const cluster::stored_set& one) {
    const bool is_step = one.name.find('/') != one.name.npos;
    auto out =
        fmt::format("{}attempt {}: ", is_step ? skein::printable(one.name) + " of " : std::string(),
                    one.attempt);
    if (!one.id.empty())
        out += fmt::format("{}, {}, from {}", count_of(one.files, "file"),
                           skein::binary_bytes(one.bytes), skein::printable(one.node));
    if (!one.trouble.empty()) out += (one.id.empty() ? "" : "; ") + skein::printable(one.trouble);
    return out;
}

/// A head that keeps none says so; that is no failure of the question what a job does.
std::vector<cluster::stored_set> sets_of(const cluster::tool_options& how,
                                         const cluster::job_info& job) {
    try {
        return cluster::list_results(how, job.id).sets;
    } catch (const error& why) {
        cluster::stored_set none;
        none.attempt = job.attempt;
        none.trouble = why.text();
        return {none};
    }
}

int fetch(const job_arguments& args) {
    const auto how = reach(args);
    return with_head([&] {
        if (args.list) {
            const auto all = cluster::list_results(how, args.id);
            const auto from = cluster::choose_results(args.id, all, args.attempt);
            if (from.id.empty()) {
                say("skein job: {} is {}, and nothing of it is kept yet\n", args.id,
                    state_name(all.now));
                return skein::exit_code::done;
            }
            const auto files = cluster::list_result_files(how, args.id, from.id);
            for (const auto& one : files.entries)
                fmt::print("{:>14} {}\n", skein::with_commas(one.size), skein::printable(one.path));
            return skein::exit_code::done;
        }
        cluster::fetch_options what;
        what.to = args.to.empty() ? args.id : args.to;
        what.path = args.path;
        what.attempt = args.attempt;
        what.force = args.force;
        progress_line shown;
        what.told = [&](std::uint64_t here, std::uint64_t all) {
            shown.say([&] {
                return fmt::format("fetches {}: {}", skein::printable(what.to),
                                   skein::binary_part(here, all));
            });
        };
        const auto got = cluster::fetch_results(how, args.id, what);
        const bool is_over = cluster::is_over(cluster::state_of(got.now));
        if (got.from.id.empty()) {
            say("skein job: {} is {}, and nothing of it is kept{}\n", args.id, state_name(got.now),
                is_over ? "" : " yet");
            return is_over ? skein::exit_code::failed : skein::exit_code::done;
        }
        fmt::print("{} of attempt {} in {}: {} fetched{}\n",
                   count_of(got.files + got.there, "file"), got.from.attempt,
                   skein::printable(what.to), skein::binary_bytes(got.bytes),
                   got.there == 0 ? "" : fmt::format(", {} were there", got.there));
        if (!got.from.trouble.empty())
            say("skein job: not all of it: {}\n", skein::printable(got.from.trouble));
        if (!is_over)
            say("skein job: {} is {}: this is what is kept so far\n", args.id, state_name(got.now));
        return skein::exit_code::done;
    });
}

int status(const job_arguments& args) {
    const auto how = reach(args);
    return with_head([&] {
        const auto job = cluster::list_jobs(how, args.id).jobs.at(0);
        if (args.json) {
            fmt::print("{}", json_text(json_of(job)));
            return skein::exit_code::done;
        }
        fmt::print("{}: {}\n", job.id, state_name(job));
        const auto row = [](const char* name, const std::string& text) {
            if (!text.empty()) fmt::print("  {:<10} {}\n", name, text);
        };
        row("why", skein::printable_lines(job.reason));
        row("command", command_text(job.command));
        row("by", skein::printable(job.by));
        row("node", skein::printable(job.node));
        row("attempt", fmt::format("{} of {}", job.attempt, job.retries + 1 + job.not_counted));
        row("workers", skein::printable(job.workers));
        if (job.worlds > 1) row("worlds", worlds_text(job));
        row("end", end_text(job));
        row("submitted", date_text(job.submitted / 1000));
        row(job.ended != 0 ? "ran for" : "for", since_text(job));
        row("lines", fmt::format("{}{}", job.lines,
                                 job.left_out == 0
                                     ? ""
                                     : fmt::format(", {} of them were left out", job.left_out)));
        for (const auto& one : sets_of(how, job)) row("results", text_of_set(one));
        if (!job.last_lines.empty()) fmt::print("  last lines:\n");
        for (const auto& line : job.last_lines) fmt::print("    {}\n", skein::printable(line));
        return skein::exit_code::done;
    });
}

int logs(const job_arguments& args) {
    const auto how = reach(args);
    return with_head([&] {
        cluster::log_question which{args.attempt, 1, args.tail};
        for (bool is_first = true;; is_first = false) {
            const auto said = cluster::read_log(how, args.id, which);
            // What is before an attempt, or before the last ones, was not asked for.
            const bool begins = is_first && (which.attempt != 0 || which.tail != 0);
            print_lines(said, begins ? said.first : which.from);
            which.from = said.first + said.lines.size();
            which.tail = 0;
            if (!said.is_all) continue;
            return args.follow ? watch(how, args.id, which.from, true) : skein::exit_code::done;
        }
    });
}

int wait(const job_arguments& args) {
    const auto how = reach(args);
    return with_head([&] { return watch(how, args.id, 1, false); });
}

int stop(const job_arguments& args) {
    const auto how = reach(args);
    return with_head([&] {
        const auto now = cluster::stop_one_job(how, args.id).now;
        if (cluster::is_over(cluster::state_of(now)))
            fmt::print("job {} is {}\n", now.id, state_name(now));
        else
            fmt::print("job {} is told to end\n", now.id);
        return skein::exit_code::done;
    });
}

int forget(const job_arguments& args) {
    const auto how = reach(args);
    return with_head([&] {
        (void)cluster::stop_one_job(how, args.id, true);
        fmt::print("job {} is forgotten\n", args.id);
        return skein::exit_code::done;
    });
}

void declare_submit(CLI::App& sub, job_arguments& args) {
    sub.add_option("--working-dir", args.folder, "a folder that goes along; the job runs in it")
        ->check([](const std::string& path) {
            return path.empty() ? "it is empty; leave it out where no folder goes along" : "";
        });
    sub.add_option("--id", args.id, "of the job (default: one is drawn)")
        ->check([](const std::string& id) {
            return id.empty() ? "it is empty; leave it out, and one is drawn" : "";
        });
    sub.add_option("--env", args.env, "NAME=value, for its environment; may be given again")
        ->take_all()
        ->allow_extra_args(false);
    sub.add_option("--cpus", args.cpus, "of its node that it takes (default: 1)");
    sub.add_option("--gpus", args.gpus, "of its node that it takes");
    sub.add_option("--memory", args.memory, "of its node that it takes: 4GiB");
    sub.add_option("--resources", args.resources, "others that it takes: ssd=1");
    sub.add_option("--elastic", args.elastic,
                   "MIN:MAX workers of its training on all nodes, if its program names none");
    sub.add_option("--cpus-per-worker", args.worker_cpus, "of their nodes (default: 1)");
    sub.add_option("--gpus-per-worker", args.worker_gpus, "of their nodes");
    sub.add_option("--on", args.on, "a label of its node: zone=a, node=n1");
    sub.add_option("--retries", args.retries, "attempts after the first one");
    sub.add_option("--pending-timeout", args.pending,
                   "it fails when no node has had room for so long: 90s, 15m, 2h");
    sub.add_option("--timeout", args.limit, "of each attempt, which is ended then");
    sub.add_option("--results", args.results,
                   "files of its folder that are kept at its end, beside its runs: 'out/*.txt', "
                   "models; may be given again")
        ->take_all()
        ->allow_extra_args(false);
    sub.add_option("--grace", args.grace,
                   "from SIGTERM to the kill when it is to end: 30s, 5m (default: 2 s)");
    sub.add_flag("--no-wait", args.no_wait, "print its id, and leave it alone");
}

} // namespace

void declare_jobs(CLI::App& app, job_arguments& args, std::function<int()>& chosen) {
    auto* const job = app.add_subcommand("job", "send programs to a running cluster");
    job->require_subcommand(1);
    const auto command = [&](const char* name, const char* what,
                             int (*does)(const job_arguments&)) {
        auto* const sub = job->add_subcommand(name, what);
        sub->callback([&chosen, &args, does] { chosen = [&args, does] { return does(args); }; });
        sub->add_option("--address", args.address,
                        "of the head: HOST or HOST:PORT (default: SKEIN_ADDRESS, else this host)");
        sub->add_option("--token-file", args.token_file,
                        "the cluster's token (default: SKEIN_TOKEN, SKEIN_TOKEN_FILE, else "
                        "~/.config/skein/token)");
        return sub;
    };
    declare_submit(*command("submit", "run a command on a node with room", &submit), args);
    command("list", "all jobs, the newest first", &list)->add_flag("--json", args.json, "as JSON");
    const auto of_one = [&](const char* name, const char* what, int (*does)(const job_arguments&)) {
        auto* const sub = command(name, what, does);
        sub->add_option("id", args.id, "of the job, as skein job list shows it")->required();
        return sub;
    };
    of_one("status", "what is known of a job", &status)->add_flag("--json", args.json, "as JSON");
    auto* const lines = of_one("logs", "what a job has printed", &logs);
    auto* const follows = lines->add_flag("-f,--follow", args.follow, "until it has ended");
    lines->add_option("--attempt", args.attempt, "of this attempt alone, the first is 1")
        ->excludes(follows);
    lines->add_option("--tail", args.tail, "the last N lines");
    auto* const fetches = of_one("fetch", "bring back its runs and results", &fetch);
    fetches->add_option("path", args.path, "this file, or what is in this folder (default: all)");
    fetches->add_option("--to", args.to, "the folder for them (default: one with the job's id)");
    fetches->add_option("--attempt", args.attempt, "of this attempt (default: the newest)");
    fetches->add_flag("--force", args.force, "replace files that are there and differ");
    fetches->add_flag("--list", args.list, "show which files there are, and fetch none");
    of_one("wait", "return when it has ended: 0 if it succeeded, else 1", &wait);
    of_one("stop", "end a job", &stop);
    of_one("delete", "forget a job that has ended", &forget);
}

} // namespace skein_program
