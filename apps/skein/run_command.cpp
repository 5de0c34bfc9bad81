// SPDX-License-Identifier: Apache-2.0
// The bodies of run_command.hpp.
#include "run_command.hpp"

#include "rank_options.hpp"

#include <skein/cluster/access.hpp>
#include <skein/cluster/training_scale.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/error.hpp>
#include <skein/core/notice.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/core/printable.hpp>
#include <skein/net/address.hpp>
#include <skein/net/token.hpp>
#include <skein/proc/process.hpp>
#include <skein/spmd/elastic_run.hpp>
#include <skein/spmd/meeting.hpp>
#include <skein/spmd/program_run.hpp>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

namespace skein_program {
namespace {

namespace cluster = skein::cluster;
namespace spmd = skein::spmd;
using skein::errc;
using skein::error;

constexpr std::uint16_t default_port = 29400; ///< torchrun's

int read_int(std::string_view text, const char* option) {
    if (const auto n = read_number(text); n && *n > 0) return *n;
    throw error(errc::usage, fmt::format("{} {}: a number from 1 on is wanted", option, text));
}

/// "1:4", or "4" for both.
std::pair<int, int> read_range(const std::string& text) {
    const auto colon = text.find(':');
    const int least = read_int(std::string_view(text).substr(0, colon), "--nnodes");
    if (colon == std::string::npos) return {least, least};
    const int most = read_int(std::string_view(text).substr(colon + 1), "--nnodes");
    if (most >= least) return {least, most};
    throw error(errc::usage, fmt::format("--nnodes {}: the first number is larger", text))
        .with_hint("least:most, as in 1:4");
}

skein::net::address read_endpoint(const std::string& text) {
    const bool has_port = text.find(':') != std::string::npos;
    auto at = skein::net::address::parse(
        fmt::format("tcp:{}{}", text, has_port ? "" : fmt::format(":{}", default_port)));
    if (at) return *at;
    throw error(errc::usage, fmt::format("--rdzv-endpoint {}: {}", text, at.error().what()));
}

std::string variable(const char* name) {
    const char* const value = std::getenv(name);
    return value != nullptr ? value : "";
}

/// The same on all hosts of a job.
skein::net::token read_token(const run_arguments& args) {
    return args.token_file.empty() ? spmd::group_token()
                                   : skein::cluster::find_token(args.token_file);
}

bool is_etcd(const run_arguments& args) {
    if (args.backend == "etcd") return true;
    if (args.backend == "embedded" || args.backend == "c10d" || args.backend == "static")
        return false;
    if (args.backend == "etcd-v2")
        throw error(errc::usage, "--rdzv-backend etcd-v2: etcd has no v2 any more")
            .with_hint("--rdzv-backend etcd speaks v3");
    throw error(errc::usage, fmt::format("--rdzv-backend {}: there are embedded (also called "
                                         "c10d) and etcd",
                                         args.backend));
}

void say(const std::string& line) {
    skein::write_notice(fmt::format("skein run: {}\n", skein::printable(line)));
}

/// --rdzv-conf: key=value,...
void read_settings(const std::string& text, spmd::elastic_run_options& how) {
    std::string_view rest = text;
    while (!rest.empty()) {
        const auto comma = rest.find(',');
        const auto one = rest.substr(0, comma);
        rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
        const auto equals = one.find('=');
        const auto key = one.substr(0, equals);
        const auto value = equals == std::string_view::npos ? "" : one.substr(equals + 1);
        if (key == "join_timeout" || key == "timeout")
            how.meet_limit = std::chrono::seconds(read_int(value, "--rdzv-conf join_timeout"));
        else if (key == "last_call_timeout")
            how.times.first_settle =
                std::chrono::seconds(read_int(value, "--rdzv-conf last_call_timeout"));
        else if (key == "silence")
            how.silence = std::chrono::seconds(read_int(value, "--rdzv-conf silence"));
        else
            say(fmt::format("--rdzv-conf {} means nothing here", key));
    }
}

/// Where hosts meet: torchrun names it also as the host of rank 0.
std::string endpoint_of(const run_arguments& args, bool are_several) {
    constexpr int torchruns_port = 29500;
    const auto& host = args.master_host;
    const bool is_master = are_several && args.endpoint.empty() && !host.empty();
    if (!host.empty() && !is_master)
        say(fmt::format("--master-addr means nothing {}",
                        are_several ? "beside --rdzv-endpoint"
                                    : "here: the ranks of one host meet on it"));
    if (args.master_port > 0 && !is_master)
        say("--master-port means nothing here: MASTER_PORT is a free port, another one at each "
            "start");
    if (!is_master) return args.endpoint;
    const bool is_bare = std::count(host.begin(), host.end(), ':') > 1 && host.front() != '[';
    return fmt::format("{}{}{}:{}", is_bare ? "[" : "", host, is_bare ? "]" : "",
                       args.master_port > 0 ? args.master_port : torchruns_port);
}

spmd::elastic_run_options options_of(const run_arguments& args, std::vector<std::string> command) {
    spmd::elastic_run_options how;
    how.hosts = read_range(args.hosts);
    how.workers_per_host = read_ranks(args.workers);
    how.max_failures = args.max_restarts;
    how.executable.clear();
    how.argv = std::move(command);
    how.times.stop_grace = skein::time_constants::lan().training_stop_grace;
    if (args.stop_grace > 0)
        how.times.stop_grace = how.times.silent_grace = std::chrono::seconds(args.stop_grace);
    how.job = args.job.empty() ? "job" : args.job;
    how.host = args.local_address;
    how.notices = {args.notice_file, args.notice_url, std::chrono::seconds(1)};
    how.say = &say;
    read_settings(args.settings, how);
    const auto endpoint = endpoint_of(args, how.hosts.second > 1);
    const bool is_alone = args.standalone || (how.hosts.second == 1 && endpoint.empty());
    if (is_alone) {
        if (args.standalone && how.hosts.second != 1)
            throw error(errc::usage, "--standalone is for one host: leave --nnodes out");
        how.endpoint = skein::net::address::tcp(skein::net::own_loopback(), 0);
        how.secret = skein::net::token::generate();
        return how;
    }
    if (endpoint.empty())
        throw error(errc::usage, "several hosts, and no --rdzv-endpoint HOST:PORT: where do they "
                                 "meet?")
            .with_hint(
                "one of the hosts, the same for all of them; with --rdzv-backend etcd, etcd");
    how.secret = read_token(args);
    if (is_etcd(args)) {
        if (args.job.empty())
            throw error(errc::usage, "--rdzv-backend etcd needs a name for the job: --rdzv-id");
        how.make_register = etcd_register_of(args);
    } else {
        how.endpoint = read_endpoint(endpoint);
    }
    return how;
}

/// What another command line or program on this host would mend.
bool is_wrong_start(errc code) { return code == errc::usage || code == errc::mismatch; }

/// What is thrown keeps this host out before it has a part in the job: of these the same is so.
bool is_wrong_entry(errc code) {
    return is_wrong_start(code) || code == errc::permission_denied || code == errc::not_found ||
           code == errc::invalid_argument || code == errc::not_supported;
}

void say_failure(const error& why) {
    skein::write_notice(fmt::format("error: {}\n", skein::printable_lines(why.what())));
}

/// A new one that only this user may look into: others write to the folder for temporary files, too.
std::string folder_of_its_own() {
    std::error_code failed;
    const auto temporary = std::filesystem::temp_directory_path(failed);
    constexpr std::string_view pattern = "skein-run-XXXXXX"; // mkdtemp's: it fills the end in
    auto path = (temporary / pattern).string();
    if (!failed && ::mkdtemp(path.data()) != nullptr) return path;
    throw skein::errno_error(failed ? failed.value() : errno, "make log folder", path)
        .with_hint("name one that can be written: --log-dir, or TMPDIR");
}

/// Which outputs of ranks go to files, and where these are.
spmd::rank_output_options output_of(const run_arguments& args,
                                    const spmd::elastic_run_options& host) {
    spmd::rank_output_options how;
    const int ranks = host.workers_per_host;
    how.redirect = read_outputs(args.redirects.empty() ? "0" : args.redirects, "-r", ranks);
    how.tee = read_outputs(args.tee.empty() ? "0" : args.tee, "-t", ranks);
    if (!args.shown_ranks.empty())
        how.shown = read_rank_list(args.shown_ranks, "--local-ranks-filter", ranks);
    how.say = &say;
    if (!how.writes_files()) {
        if (!args.log_folder.empty())
            say("--log-dir keeps nothing without -r (files) or -t (files and terminal)");
        return how;
    }
    const std::filesystem::path folder =
        args.log_folder.empty() ? folder_of_its_own() : args.log_folder;
    how.folder = (folder / (args.job.empty() ? name_of_run() : host.job)).string();
    if (args.log_folder.empty() || args.job.empty()) // who has named both knows
        say(fmt::format("output of the ranks: {}/attempt_K/RANK/*.log", how.folder));
    return how;
}

/// What is wrong with the program, as a shell says it.
int exit_code_of(const spmd::supervisor_outcome& how) {
    if (how.stop_signal != 0) return 128 + how.stop_signal;
    if (!how.failure) return skein::exit_code::done;
    if (how.culprit_code != 0) return how.culprit_code;
    return is_wrong_start(how.failure->code()) ? skein::exit_code::usage : skein::exit_code::failed;
}

/// One host has the whole job, and its program says what it is.
spmd::supervisor_outcome run_here(const run_arguments& args, spmd::elastic_run_options host) {
    spmd::program_run_options how;
    how.output = output_of(args, host);
    how.on_restart = [](const error& why, int restart, int most) {
        say(fmt::format("{}; all ranks start again (restart {} of {})", why.what(), restart, most));
    };
    const bool is_one_host = host.hosts.second == 1 && !host.make_register;
    if (is_one_host && !(host.notices.file + host.notices.url).empty())
        say("--notice-file and --notice-url are heeded where the program's Trainer is elastic");
    how.host = std::move(host);
    const auto output = how.output;
    auto outcome = spmd::run_program(std::move(how));
    const int rank = outcome.culprit;
    if (!is_one_host || !outcome.failure || rank < 0 || outcome.failure->code() == errc::cancelled)
        return outcome;
    for (const bool is_error : {true, false}) {
        if (!output.has_file(rank, is_error)) continue;
        outcome.failure->with_hint(
            outcome.failure->hint() + (outcome.failure->hint().empty() ? "" : "; ") +
            fmt::format("what it printed: {}", output.file(outcome.restarts, rank, is_error)));
        break;
    }
    return outcome;
}

spmd::elastic_run_options checked_options(run_arguments& args, std::vector<std::string> command) {
    if (!command.empty() && command.front() == "--") command.erase(command.begin());
    if (command.empty())
        throw error(errc::usage, "no program: skein run [options] ./train [its arguments]");
    if (command.front().starts_with('-'))
        throw error(errc::usage, fmt::format("skein run has no option {}", command.front()))
            .with_hint("docs/elastic.md has torchrun's options, and what each does here");
    args.etcd.user = variable("SKEIN_ETCD_USER");
    args.etcd.password = variable("SKEIN_ETCD_PASSWORD");
    auto how = options_of(args, std::move(command));
    how.on_view = [](const spmd::view& now) {
        if (now.is_over)
            say(fmt::format("the job is over: {}", now.why));
        else
            say(fmt::format("world {} of {} worker{}: {}", now.generation, now.members.size(),
                            now.members.size() == 1 ? "" : "s", now.why));
    };
    how.on_failure = [](const error& why, int failures, int most) {
        say(fmt::format("{} ({} of {} that the job allows)", why.what(), failures, most));
    };
    return how;
}

int run(run_arguments args, std::vector<std::string> command) {
    auto how = checked_options(args, std::move(command));
    spmd::supervisor_outcome outcome;
    try {
        outcome = run_here(args, std::move(how));
    } catch (const error& why) {
        if (!is_wrong_entry(why.code())) throw;
        say_failure(why);
        return skein::exit_code::usage;
    }
    if (outcome.failure && outcome.failure->code() != errc::cancelled)
        say_failure(*outcome.failure);
    return exit_code_of(outcome);
}

/// One that was submitted to a cluster.
int scale_job(const run_arguments& args) {
    cluster::tool_options how;
    how.head = cluster::head_address_or_own(cluster::find_head_address(args.address));
    how.secret = cluster::find_token(args.token_file);
    how.name = "skein scale";
    fmt::print("{}\n", cluster::scale_training_of(how, args.job, args.target));
    return skein::exit_code::done;
}

int scale(run_arguments args) {
    args.etcd.user = variable("SKEIN_ETCD_USER");
    args.etcd.password = variable("SKEIN_ETCD_PASSWORD");
    const auto pid = read_number(args.job);
    const bool is_of_cluster = !cluster::find_head_address(args.address).empty();
    if (args.endpoint.empty() && !pid && !is_etcd(args) && is_of_cluster) return scale_job(args);
    if (args.endpoint.empty() && (!pid || is_etcd(args)))
        throw error(errc::usage, fmt::format("skein scale {} {}: no --rdzv-endpoint HOST:PORT",
                                             args.job, args.target))
            .with_hint("as the job's skein run has it; a program that was started alone, as "
                       "./train --workers 1:4, is named by its process id, and a job of a cluster "
                       "by its id, with --address");
    const auto secret = read_token(args);
    std::string said;
    if (args.endpoint.empty())
        said = spmd::scale_elastic_job(spmd::door_of_job(*pid), secret, "", args.target);
    else if (is_etcd(args))
        said = spmd::scale_elastic_job(etcd_register_of(args), secret, args.job, args.target);
    else
        said = spmd::scale_elastic_job(read_endpoint(args.endpoint), secret, args.job, args.target);
    fmt::print("{}\n", said);
    return skein::exit_code::done;
}

void declare_meeting(CLI::App& sub, run_arguments& args) {
    sub.add_option(
        "--rdzv-backend,--rdzv_backend", args.backend,
        "who knows the job's workers: embedded (the host of --rdzv-endpoint; also called "
        "c10d) or etcd (default: embedded)");
    sub.add_option("--rdzv-endpoint,--rdzv_endpoint", args.endpoint,
                   "HOST:PORT of the host that is always there, or of etcd: H:P[,H:P]");
    sub.add_option("--token-file", args.token_file,
                   "the token of the job's hosts (default: SKEIN_TOKEN, SKEIN_TOKEN_FILE, else "
                   "~/.config/skein/token)");
    sub.add_option("--etcd-prefix", args.etcd.prefix, "of all keys (default: /skein)");
    sub.add_option("--etcd-ca", args.etcd.ca, "PEM file of who signs etcd's certificates");
    sub.add_option("--etcd-cert", args.etcd.cert, "PEM file of this client's certificate");
    sub.add_option("--etcd-key", args.etcd.key, "PEM file of its key");
}

/// Options of torchrun that are taken and do nothing, each with a line that says so.
void declare_unused(CLI::App& sub, run_arguments& args) {
    const auto declare = [&sub, &args](const char* name, std::string why) {
        const std::string_view all = name;
        sub.add_option_function<std::string>(
               name,
               [&args, line = std::string(all.substr(0, all.find(','))) + " " +
                              why](const std::string&) { args.unused.push_back(line); },
               "torchrun's; means nothing here")
            ->group("");
    };
    declare("--monitor-interval,--monitor_interval",
            "means nothing here: the kernel tells the end of a rank at once");
    for (const char* name : {"--start-method,--start_method", "--node-rank,--node_rank", "--role",
                             "--event-log-handler,--event_log_handler"})
        declare(name, "means nothing here");
    for (const char* name : {"--no-python,--no_python", "--run-path,--run_path"})
        sub.add_flag_function(
               name, [](std::int64_t) {}, "torchrun's; what is run is a program anyway")
            ->group("");
}

/// Options of torchrun that are refused, with what does the same.
void declare_refused(CLI::App& sub) {
    const auto declare = [&sub](const char* name, const char* instead) {
        const std::string_view all = name;
        sub.add_option_function<std::string>(
               name,
               [option = std::string(all.substr(0, all.find(','))), instead](const std::string&) {
                   throw error(errc::usage, "not supported: " + option).with_hint(instead);
               },
               "torchrun's; not supported")
            ->group("");
    };
    declare("-m,--module", "skein run starts a program: skein run [options] python3 -m MODULE");
    declare("--numa-binding,--numa_binding", "skein run [options] numactl ... PROGRAM");
    declare("--virtual-local-rank,--virtual_local_rank",
            "LOCAL_RANK counts the ranks of this host; CUDA_VISIBLE_DEVICES is left as it is");
    declare("--signals-to-handle,--signals_to_handle",
            "SIGINT, SIGTERM and SIGHUP ask the ranks to end");
    declare("--log-line-prefix-template,--log_line_prefix_template",
            "-t begins lines with (rank N)");
    declare("--duplicate-stdout-filters,--duplicate_stdout_filters", "skein run ... | grep");
    declare("--duplicate-stderr-filters,--duplicate_stderr_filters", "skein run ... 2>&1 | grep");
    declare("--logs-specs,--logs_specs", "-r, -t and --log-dir say what is kept");
}

/// torchrun's variables for its options; Kubernetes operators give them to each pod. The command
/// line goes before them.
void read_variables(CLI::App& sub) {
    for (const char* const option :
         {"--nnodes", "--nproc-per-node", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id",
          "--rdzv-conf", "--standalone", "--max-restarts", "--local-addr", "--log-dir",
          "--redirects", "--tee", "--master-addr", "--master-port", "--local-ranks-filter"}) {
        std::string variable = "PET";
        for (const char c : std::string_view(option).substr(1))
            variable +=
                c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
        sub.get_option(option)->envname(variable);
    }
}

} // namespace

void declare_run(CLI::App& app, run_arguments& args, std::function<int()>& chosen) {
    auto* const sub = app.add_subcommand(
        "run", "start a program as several ranks, on this host or on several, as "
               "torchrun does: run [options] ./train [its arguments]");
    sub->add_option("--nnodes", args.hosts, "hosts of the job: N or LEAST:MOST (default: 1)");
    sub->add_option("--nproc-per-node,--nproc_per_node", args.workers,
                    "ranks on each host: a number, cpu, gpu or auto (default: 1)");
    sub->add_option("--rdzv-id,--rdzv_id", args.job, "the job's name, the same on all hosts");
    sub->add_option("--max-restarts,--max_restarts", args.max_restarts,
                    "how often all ranks start again; of an elastic job: workers that may be "
                    "lost in all (default: 3)")
        ->check(CLI::NonNegativeNumber);
    sub->add_option("--stop-grace,--shutdown-timeout,--shutdown_timeout", args.stop_grace,
                    "seconds from the request to stop (SIGTERM) until a rank is killed (default: "
                    "300 for a training, 30 for other programs)")
        ->check(CLI::Range(1, std::numeric_limits<int>::max()));
    sub->add_flag("--standalone", args.standalone, "one host, no endpoint");
    sub->add_option("--local-addr,--local_addr", args.local_address,
                    "this host, as others reach it (default: its name)");
    sub->add_option("--master-addr,--master_addr", args.master_host,
                    "of several hosts: the host of --rdzv-endpoint, where that is not given");
    sub->add_option("--master-port,--master_port", args.master_port,
                    "and its port (default: 29500)")
        ->check(CLI::Range(1, 65535));
    sub->add_option("--rdzv-conf,--rdzv_conf", args.settings,
                    "join_timeout=S,last_call_timeout=S,silence=S");
    sub->add_option("--notice-file", args.notice_file,
                    "when it appears, this host's workers leave");
    sub->add_option("--notice-url", args.notice_url,
                    "when it answers 200 (EC2's spot/instance-action), they leave");
    sub->add_option("-r,--redirects", args.redirects,
                    "outputs of ranks that go to files alone: 1 standard output, 2 standard "
                    "error, 3 both; of some ranks RANK:N,RANK:N");
    sub->add_option("-t,--tee", args.tee,
                    "the same to files and, with the name of its rank before each line, here");
    sub->add_option("--log-dir,--log_dir", args.log_folder,
                    "of these files: DIR/ID/attempt_K/RANK/stdout.log (default: in the folder for "
                    "temporary files)");
    sub->add_option("--local-ranks-filter,--local_ranks_filter", args.shown_ranks,
                    "ranks of this host that print to the terminal, as in 0,2 (default: all)");
    declare_meeting(*sub, args);
    declare_unused(*sub, args);
    declare_refused(*sub);
    read_variables(*sub);
    sub->prefix_command();
    sub->callback([&chosen, &args, sub] {
        chosen = [&args, sub] {
            for (const auto& line : args.unused) say(line);
            return run(args, sub->remaining());
        };
    });

    auto* const scaling = app.add_subcommand("scale", "another number of workers for a job");
    scaling
        ->add_option("job", args.job,
                     "its --rdzv-id; without --rdzv-endpoint: the id of a job of the cluster, or "
                     "the process id of a program that was started alone, on this host")
        ->required();
    scaling->add_option("workers", args.target, "that are wanted")
        ->required()
        ->check(CLI::Range(1, std::numeric_limits<int>::max()));
    declare_meeting(*scaling, args);
    scaling->add_option("--address", args.address,
                        "of the head of the job's cluster (default: SKEIN_ADDRESS, else this "
                        "host)");
    scaling->callback([&chosen, &args] { chosen = [&args] { return scale(args); }; });
}

} // namespace skein_program
