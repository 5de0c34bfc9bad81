// SPDX-License-Identifier: Apache-2.0
// The program `skein`: the head and the nodes of a cluster, and what people ask of it.
//
//     skein head --listen 10.0.0.1         # prints how nodes join and programs run
//     skein join 10.0.0.1                  # on each other host
//     skein status; skein drain node-2 --within 30s; skein stop --space prod; skein stop
//     skein run --nnodes 1:4 --rdzv-endpoint node-1 ./train     # workers of an elastic job
//     skein job submit --working-dir . -- ./train --workers 2     # list, status, logs, fetch, stop
//     skein scale J 8 --rdzv-endpoint node-1
//     skein checkpoint show runs/gpt       # verify, diff, export, average: without a cluster
//     skein report cost --prices trainer=0.90,spot=0.27 runs/a runs/b
//     skein token --file F                 # makes a token; a head makes its own
//     skein token --for view               # a key of it, to look
//
// Exit codes: 0; 1 it failed here, or a node is not empty in time; 2 a wrong command line; 3 no cluster at that address, or it
// refuses.

#include "checkpoint_command.hpp"
#include "drain_command.hpp"
#include "job_command.hpp"
#include "report_command.hpp"
#include "run_command.hpp"
#include "status_text.hpp"
#include "time_option.hpp"
#include "web.hpp"

#include <skein/cluster/access.hpp>
#include <skein/cluster/detail/serve_role.hpp>
#include <skein/cluster/jobs.hpp>
#include <skein/cluster/page_forward.hpp>
#include <skein/cluster/tools.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/error.hpp>
#include <skein/core/file_limit.hpp>
#include <skein/core/known_names.hpp>
#include <skein/core/notice.hpp>
#include <skein/core/printable.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/proc/standard_files.hpp>
#include <skein/program/program.hpp>
#include <skein/sched/resources.hpp>

#include <CLI/CLI.hpp>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace skein_program {
namespace {

namespace program = skein::program;

constexpr int refused = 3; ///< no cluster at that address, or it said no

/// What the subcommands are asked.
struct arguments {
    std::string address, token_file;
    program::head_program head;
    program::agent_program node;
    drain_arguments drained;
    std::string space, new_token, key, key_for, lost_after, results_room, notice_within;
    std::uint16_t port = 0;
    bool forwards = false;
    bool json = false, jobs = false;
};

int tell(const std::exception& why, int code) {
    std::fflush(stdout);
    skein::write_notice(fmt::format("error: {}\n", skein::printable_lines(why.what())));
    return code;
}

/// Runs what talks to a head; what it says no to is no mistake of this host.
int with_head(const std::function<int()>& ask) {
    try {
        return ask();
    } catch (const skein::error& why) {
        const bool here = why.code() == skein::errc::usage || why.code() == skein::errc::io;
        if (here) throw;
        return tell(why, refused);
    }
}

/// Address and token are looked at before anybody is asked: what is wrong with them is wrong here.
cluster::tool_options reach(const arguments& args, const char* name) {
    cluster::tool_options how;
    const auto address = cluster::find_head_address(args.address);
    how.head = cluster::head_address_or_own(address);
    how.secret = cluster::find_token(args.token_file);
    how.name = name;
    return how;
}

int join(const arguments& args) {
    auto how = args.node;
    how.head = args.address;
    how.token_file = args.token_file;
    if (!how.head.empty()) (void)cluster::parse_head_address(how.head);
    skein::spmd::check_leave_notices(how.notices);
    if (const auto ms = read_time(args.notice_within, "--notice-within"); ms != 0)
        how.notice_within = std::chrono::milliseconds(ms);
    (void)cluster::find_token(how.token_file);
    return with_head([&] { return program::run_agent(how); });
}

int show_status(const arguments& args) {
    const auto how = reach(args, "skein status");
    return with_head([&] {
        const auto now = cluster::get_status(how, args.jobs);
        fmt::print("{}", args.json ? status_json(now, args.jobs) : status_text(now));
        return skein::exit_code::done;
    });
}

int drain(const arguments& args) {
    check_drain(args.drained);
    const auto how = reach(args, "skein drain");
    return with_head([&] { return run_drain(args.drained, how); });
}

int stop(const arguments& args) {
    const auto how = reach(args, "skein stop");
    return with_head([&] {
        if (!args.space.empty()) {
            const auto told = cluster::stop_space(how, args.space);
            fmt::print("namespace {} ends: its space server and {} are told\n", args.space,
                       count_text(told.workers, "worker"));
            return skein::exit_code::done;
        }
        const auto told = cluster::stop_cluster(how);
        fmt::print("the cluster at {} ends: {} and {} are told\n", to_string(how.head),
                   count_text(told.nodes, "node"), count_text(told.jobs, "job"));
        return skein::exit_code::done;
    });
}

/// The page of a head on another host, at a port of this one.
int forward(const arguments& args, const cluster::tool_options& how) {
    const auto path = cluster::get_login_path(how);
    skein::net::real_loop loop;
    skein::net::real_network network(loop);
    cluster::page_forward page(network, how, args.port != 0 ? args.port : how.head.port);
    const auto at = page.local();
    fmt::print("http://{}:{}{}\n", at.host == "::1" ? "[::1]" : at.host, at.port, path);
    std::fflush(stdout);
    skein::write_notice(fmt::format(
        "skein dashboard: open it in a browser within five minutes; it works once. The page of {} "
        "is at this port until Ctrl-C\n",
        to_string(how.head)));
    return loop.run(cluster::detail::serve_role(&loop, &page));
}

int open_dashboard(const arguments& args) {
    const auto how = reach(args, "skein dashboard");
    if (!args.key.empty()) {
        const auto of =
            args.key == "view" ? skein::net::key_kind::view : skein::net::key_kind::submit;
        fmt::print("{}\n", http_key(how.secret, of));
        return skein::exit_code::done;
    }
    if (args.forwards || !how.head.is_loopback())
        return with_head([&] { return forward(args, how); });
    return with_head([&] {
        const auto path = cluster::get_login_path(how);
        fmt::print("http://{}:{}{}\n", how.head.host, how.head.port, path);
        skein::write_notice("skein dashboard: open it in a browser within five minutes; it works "
                            "once\n");
        return skein::exit_code::done;
    });
}

int make_token(const arguments& args) {
    if (!args.key_for.empty()) {
        const auto key = cluster::make_key(args.key_for, args.token_file, args.new_token);
        if (args.new_token.empty())
            fmt::print("{}\n", key);
        else
            fmt::print("{} has the {} key: name it with --token-file or SKEIN_TOKEN_FILE\n",
                       args.new_token, args.key_for);
        return skein::exit_code::done;
    }
    if (!args.token_file.empty())
        throw skein::error(skein::errc::usage, "--token-file: a new token comes from no other one")
            .with_hint("--for submit or --for view makes a key of it; --file writes a new token");
    const auto made = cluster::make_token(args.new_token);
    if (args.new_token.empty()) // for SKEIN_TOKEN, or a file of mode 600
        fmt::print("{}\n", made);
    else
        fmt::print("{} is made, for this user alone: copy it to the other hosts, and name it with "
                   "--token-file or SKEIN_TOKEN_FILE\n",
                   args.new_token);
    return skein::exit_code::done;
}

/// In milliseconds.
std::uint64_t read_lost_after(const std::string& text) {
    constexpr std::uint64_t most = cluster::detail::most_lost_after_ms;
    const auto ms = read_time(text, "--lost-after");
    if (ms > most)
        throw skein::error(skein::errc::usage,
                           fmt::format("--lost-after {}: at most {} h", text, most / 3'600'000));
    return ms;
}

/// In bytes; 0 for "".
std::uint64_t read_room(const std::string& text) {
    constexpr std::uint64_t least = 1 << 20;
    if (text.empty()) return 0;
    const auto read = skein::sched::parse_resources("memory=" + text);
    if (read && read->memory >= least) return read->memory;
    throw skein::error(skein::errc::usage,
                       fmt::format("--results-room {} is no size", skein::printable(text)))
        .with_hint("with a unit, 1MiB at least: --results-room 50GiB");
}

/// Declares the subcommands; each sets `chosen`.
void declare(CLI::App& app, arguments& args, std::function<int()>& chosen) {
    const auto command = [&](const char* name, const char* what, int (*does)(const arguments&)) {
        auto* const sub = app.add_subcommand(name, what);
        sub->callback([&chosen, &args, does] { chosen = [&args, does] { return does(args); }; });
        sub->add_option("--token-file", args.token_file,
                        "the cluster's token (default: SKEIN_TOKEN, SKEIN_TOKEN_FILE, else "
                        "~/.config/skein/token)");
        return sub;
    };
    // An empty variable of a script must not become a default.
    const auto not_empty = [](const std::string& value) {
        return value.empty() ? "it is empty; leave it out for the default" : "";
    };
    constexpr auto where =
        "of the head: HOST or HOST:PORT (default: SKEIN_ADDRESS, else this host)";

    auto* const head = command("head", "be the head of a cluster", [](const arguments& a) {
        auto how = a.head;
        how.token_file = a.token_file;
        how.web = web_of_this_program();
        how.lost_after = std::chrono::milliseconds(read_lost_after(a.lost_after));
        how.results_bytes = read_room(a.results_room);
        return program::run_head(how);
    });
    head->add_option("--listen", args.head.listen,
                     "HOST:PORT; * for all addresses of this host (default: 127.0.0.1:7117, which "
                     "other hosts cannot reach)")
        ->check(not_empty);

    head->add_option("--state", args.head.state,
                     "a folder in which it remembers nodes, drains and past jobs over its own end "
                     "(default: it keeps nothing)")
        ->check(not_empty);

    head->add_option("--runs", args.head.runs,
                     "a folder that all nodes see: runs of trainings go there (default: they stay "
                     "in the folder of their job, on its node)");
    head->add_option("--lost-after", args.lost_after,
                     "a node that says nothing for so long is lost, with what runs there: 10s, 5m "
                     "(default: 30 s)")
        ->check(not_empty);
    head->add_option("--storage", args.head.storage,
                     "a folder for the files that jobs bring and leave behind (default: one in "
                     "~/.cache/skein)")
        ->check(not_empty);
    head->add_option("--results-room", args.results_room,
                     "of that, for what jobs leave behind: 50GiB (default: 8GiB)")
        ->check(not_empty);

    auto* const node = command("join", "be a node: start workers where a head says so", &join);
    node->add_option("address", args.address, where)->check(not_empty);
    node->add_option("--name", args.node.name, "of this node (default: the host's)")
        ->check([](const std::string& name) {
            return name.empty()
                       ? "a node's name has 1 to 255 bytes; without --name it is the host's"
                       : "";
        });
    node->add_option("--resources", args.node.resources,
                     "e.g. cpu=8,ssd=1; cpus, gpus and memory that are not named are measured");
    node->add_option("--labels", args.node.labels, "e.g. zone=a disk=fast");
    node->add_option("--storage", args.node.storage,
                     "a folder for jobs, and the files that they bring (default: one in "
                     "~/.cache/skein)")
        ->check(not_empty);
    node->add_option("--store", args.node.store,
                     "memory for the objects of each program here, e.g. 4GiB; 0: none (default: 30 "
                     "% of the memory that the node may use)")
        ->check(not_empty);

    node->add_option("--notice-file", args.node.notices.file,
                     "its node is drained when this file appears: the host is about to be taken "
                     "away")
        ->check(not_empty);
    node->add_option("--notice-url", args.node.notices.url,
                     "the same when this http address answers 200, as EC2's spot/instance-action")
        ->check(not_empty);
    node->add_option("--notice-within", args.notice_within,
                     "so long after that it is there: 30s, 2m (default: 2m)")
        ->check(not_empty);

    auto* const status = command("status", "who is in the cluster", &show_status);
    status->add_option("address", args.address, where)->check(not_empty);
    status->add_flag("--json", args.json, "one JSON object");
    status->add_flag("--jobs", args.jobs, "also the jobs that were there, and how they ended");

    auto* const page =
        command("dashboard", "print a link that shows the cluster in a browser", &open_dashboard);
    page->add_option("address", args.address, where)->check(not_empty);
    page->add_option("--key", args.key,
                     "print instead the key with which scripts read (view) or change (submit) it "
                     "over HTTP, as Authorization: Bearer")
        ->check(CLI::IsMember({"view", "submit"}));
    page->add_flag("--forward", args.forwards,
                   "show it at a port of this host until Ctrl-C; without it only where the head is "
                   "on another host");
    page->add_option("--port", args.port,
                     "that is tried first (default: that of the head; another one if it is taken)");

    auto* const draining = command("drain", "give a node no new workers, and empty it", &drain);
    declare_drain(*draining, args.drained);
    draining->add_option("--address", args.address, where)->check(not_empty);

    auto* const stopping = command("stop", "end the cluster: workers, nodes, head", &stop);
    stopping->add_option("address", args.address, where)->check(not_empty);
    stopping
        ->add_option("--space", args.space,
                     "end this namespace alone: its space server and its detached actors")
        ->check([](const std::string& name) { // an empty variable must not end the cluster
            return name.empty() ? "a namespace has 1 to 255 bytes" : "";
        });

    auto* const token =
        command("token", "make a token, or a key of one for less, and print it", &make_token);
    token
        ->add_option("--file", args.new_token,
                     "write it into this new file instead, which only this user can read")
        ->check(not_empty);
    token
        ->add_option("--for", args.key_for,
                     "a key of the cluster's token that is taken wherever that is, for jobs alone "
                     "(submit), or to look (view)")
        ->check(CLI::IsMember({"submit", "view"}));
}

/// What was not understood, and the options that a command, or the program itself, has.
std::string not_expected(const CLI::App& of, const std::string& said) {
    skein::name_list all;
    for (const auto* one : of.get_options())
        for (const auto& name : one->get_lnames()) all.add("--" + name);
    return fmt::format("{}; of options {}", said, all.text("there are none"));
}

/// What is wrong with a command line, for people.
std::string what_is_wrong(const CLI::App& app, const CLI::ParseError& why, int argc, char** argv) {
    const std::string first = argc > 1 ? argv[1] : "";
    const std::string said = why.what();
    const bool extra = why.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError);
    if (first.starts_with('-')) return extra ? not_expected(app, said) : said;
    std::string all;
    for (const auto* one : app.get_subcommands([](const CLI::App*) { return true; })) {
        if (one->get_name() == first) {
            const auto chosen = one->get_subcommands(); // skein job submit
            const auto& of = chosen.empty() ? *one : *chosen.front();
            const bool submits = first == "job" && of.get_name() == "submit";
            return extra ? not_expected(of, said) +
                               (submits ? "; put -- before the command that it runs" : "")
                         : said;
        }
        all += (all.empty() ? "" : ", ") + one->get_name();
    }
    return fmt::format("{}; the commands are {}",
                       first.empty() ? "no command is given" : "there is no command " + first, all);
}

/// What stands behind -- of `skein job submit` is the job's, word for word; gives what is left.
int take_job_command(int argc, char** argv, std::vector<std::string>& into) {
    if (argc < 3 || std::string_view(argv[1]) != "job") return argc;
    for (int i = 2; i < argc; ++i) {
        if (std::string_view(argv[i]) != "--") continue;
        into.assign(argv + i + 1, argv + argc);
        return i;
    }
    return argc;
}

int run(int argc, char** argv) {
    skein::proc::open_standard_files();
    skein::outlive_file_limit();
    CLI::App app("The head and the nodes of a skein cluster, and what to ask of it.", "skein");
    app.set_version_flag("--version", fmt::format("skein {}.{}.{}", SKEIN_VERSION_MAJOR,
                                                  SKEIN_VERSION_MINOR, SKEIN_VERSION_PATCH));
    app.require_subcommand(1);
    arguments args;
    run_arguments run_args;
    std::function<int()> chosen;
    declare(app, args, chosen);
    declare_run(app, run_args, chosen);
    job_arguments job_args;
    declare_jobs(app, job_args, chosen);
    checkpoint_arguments checkpoint_args;
    declare_checkpoints(app, checkpoint_args, chosen);
    report_arguments report_args;
    declare_reports(app, report_args, chosen);
    try {
        app.parse(take_job_command(argc, argv, job_args.command), argv);
    } catch (const CLI::ParseError& said) {
        if (said.get_exit_code() != 0) {
            skein::write_notice(
                fmt::format("error: {}; see skein --help\n", what_is_wrong(app, said, argc, argv)));
            return skein::exit_code::usage;
        }
        chosen = [&app, said] { return app.exit(said); }; // --help, --version
    } catch (const skein::error& why) { // an option that is known and not supported
        return tell(why, skein::exit_code::usage);
    }
    try {
        const int code = chosen();
        errno = 0;
        if ((std::fflush(stdout) == 0 && std::ferror(stdout) == 0) || code != 0) return code;
        throw skein::error(skein::errc::io,
                           fmt::format("what it prints cannot be written{}{}",
                                       errno != 0 ? ": " : "",
                                       errno != 0 ? skein::errno_text(errno) : ""));
    } catch (const skein::error& why) {
        return tell(why, why.code() == skein::errc::usage ? skein::exit_code::usage
                                                          : skein::exit_code::failed);
    } catch (const std::exception& why) {
        return tell(why, skein::exit_code::failed);
    }
}

} // namespace
} // namespace skein_program

int main(int argc, char** argv) { return skein_program::run(argc, argv); }
