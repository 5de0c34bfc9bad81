// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of program/program.hpp.

#include <skein/cluster/access.hpp>
#include <skein/cluster/agent.hpp>
#include <skein/cluster/detail/serve_role.hpp>
#include <skein/cluster/head.hpp>
#include <skein/cluster/head_log.hpp>
#include <skein/cluster/job_storage.hpp>
#include <skein/cluster/leased_ranks.hpp>
#include <skein/cluster/leased_workers.hpp>
#include <skein/cluster/package_store.hpp>
#include <skein/cluster/space_server.hpp>
#include <skein/cluster/tools.hpp>
#include <skein/core/file_lock.hpp>
#include <skein/core/log.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/core/printable.hpp>
#include <skein/core/this_process.hpp>
#include <skein/core/unique_fd.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/objects/local_store.hpp>
#include <skein/proc/children.hpp>
#include <skein/proc/gpus.hpp>
#include <skein/proc/host_load.hpp>
#include <skein/proc/process.hpp>
#include <skein/proc/standard_files.hpp>
#include <skein/program/helper_hosts.hpp>
#include <skein/program/job.hpp>
#include <skein/rt/runtime.hpp>
#include <skein/spmd/environment.hpp>
#include <skein/spmd/meeting.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

namespace skein::program {

namespace detail {

/// As people type it: HOST:PORT, with brackets around IPv6.
[[nodiscard]] inline std::string typed(const net::address& at) {
    if (at.kind != net::scheme::tcp) return to_string(at);
    const bool is_any = at.host == "*" || at.host == "0.0.0.0" || at.host == "::";
    const auto host = is_any ? proc::host_name() : at.host;
    return host.find(':') == host.npos ? fmt::format("{}:{}", host, at.port)
                                       : fmt::format("[{}]:{}", host, at.port);
}

/// Takes a lock; false: another process has it. Where there are no locks, that is said.
[[nodiscard]] inline bool locked(const unique_fd& fd, const std::string& path) {
    const auto taken = try_lock(fd.get());
    if (taken != file_lock::unsupported) return taken == file_lock::held;
    logging::warn("head", "the state folder cannot be locked: two heads in it are not told apart",
                  {{"why", errno_error(errno, "lock", path).text()}});
    return true;
}

/// Of two heads with one state folder the second is refused. Kept until the end of the process. The
/// lock is that of the folder, which nobody removes by mistake without the log in it; a file beside
/// it says whose it is, and is the lock of older releases.
[[nodiscard]] inline std::vector<unique_fd> lock_state(const std::string& folder) {
    posix_disk disk(link_policy::refuse);
    const auto unusable = [&](const error& why) {
        return error(why.code(),
                     fmt::format("state folder {} cannot be used: {}", folder, why.text()))
            .with_hint("give this user a folder of its own with --state");
    };
    const bool is_new = !std::filesystem::exists(folder);
    if (auto made = disk.make_dirs(folder); !made) throw unusable(made.error());
    if (is_new) (void)::chmod(folder.c_str(), 0700); // jobs' environments stand in it
    const auto path = join_path(folder, "head.lock");
    const auto refuse = [&] {
        const auto owner = disk.read_whole(path, 256);
        throw error(
            errc::already_exists,
            fmt::format("state folder {} is in use by another head{}", folder,
                        owner && !owner->empty() ? ", " + skein::to_string(byte_span(*owner)) : ""))
            .with_hint("end that one first, or name another folder with --state");
    };
    std::vector<unique_fd> out;
    out.emplace_back(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!out.back()) throw unusable(errno_error(errno, "open", folder));
    if (!locked(out.back(), folder)) refuse();
    unique_fd fd(
        ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
    if (!fd) { // a disk that is full or read-only; a log that can be read is enough to start
        const auto why = errno_error(errno, "open", path);
        if (!disk.read_whole(join_path(folder, "head.log"))) throw unusable(why);
        return out;
    }
    if (!locked(fd, path)) refuse();
    sign_lock(fd.get(), fmt::format("pid {} on {}", ::getpid(), proc::host_name()));
    out.push_back(std::move(fd));
    return out;
}

} // namespace detail

namespace detail {

inline constexpr std::uint64_t job_storage_bytes = std::uint64_t{8} << 30;

/// A name with nothing in it that a path would take for something else.
[[nodiscard]] inline std::string file_name(std::string text) {
    for (auto& c : text)
        if (c == '/' || c == '\0') c = '_';
    return text.starts_with('.') ? "_" + text : text;
}

[[nodiscard]] inline cluster::opened_storage open_folder(const std::string& folder) {
    std::filesystem::create_directories(folder);
    return {folder,
            std::make_shared<cluster::package_store>(folder + "/packages", job_storage_bytes)};
}

[[nodiscard]] inline std::filesystem::path absolute_folder(const std::string& named) {
    std::error_code why;
    auto out = std::filesystem::absolute(named, why);
    if (why) throw errno_error(why.value(), "find the folder", named);
    return out;
}

/// Of this user, with files of jobs that have been; "": there is none.
[[nodiscard]] inline std::string cache_folder() {
    const char* const cache = std::getenv("XDG_CACHE_HOME");
    const char* const home = std::getenv("HOME");
    if (cache != nullptr && *cache == '/') return cache;
    return home != nullptr && *home == '/' ? std::string(home) + "/.cache" : "";
}

/// The nearest folder above it that is there.
[[nodiscard]] inline std::string folder_on_disk(const std::string& folder) {
    std::error_code none;
    auto at = std::filesystem::absolute(folder.empty() ? "/" : folder, none);
    while (at.has_relative_path() && !std::filesystem::is_directory(at, none))
        at = at.parent_path();
    return at.string();
}

/// `name`, name-2, ... of this user's cache: the first that nobody else has open.
[[nodiscard]] inline cluster::opened_storage open_in_cache(const std::string& name) {
    const auto base = cache_folder();
    if (base.empty())
        throw error(errc::not_found, "there is no folder for the files of jobs: neither HOME nor "
                                     "XDG_CACHE_HOME is set")
            .with_hint("name one with --storage");
    for (int i = 1;; ++i) {
        try {
            return open_folder(
                fmt::format("{}/skein/{}{}", base, name, i == 1 ? "" : fmt::format("-{}", i)));
        } catch (const error& why) {
            if (why.code() != errc::already_exists || i == 64) throw;
        }
    }
}

/// The folder that is named, which must be there for this process alone, or one of the cache.
[[nodiscard]] inline std::shared_ptr<cluster::job_storage> storage_of(const std::string& named,
                                                                      std::string name) {
    const auto opens = [](auto open) {
        return std::make_shared<cluster::job_storage>([open] {
            try {
                return open();
            } catch (const std::filesystem::filesystem_error& why) {
                throw error(errc::io, fmt::format("the folder for files of jobs: {}", why.what()))
                    .with_hint("name another one with --storage");
            }
        });
    };
    if (named.empty()) {
        const auto before = fmt::format("{}/skein/{}", cache_folder(), name);
        auto out = opens([name = std::move(name)] { return open_in_cache(name); });
        std::error_code none;
        try { // who was there before may have left something behind
            if (std::filesystem::exists(before, none)) (void)out->get();
        } catch (const error& why) {
            logging::warn("storage", "jobs can bring no files here", {{"why", why.what()}});
        }
        return out;
    }
    const auto folder = absolute_folder(named).string();
    auto out = opens([folder] { return open_folder(folder); });
    (void)out->get(); // what is wrong with it is said at once
    return out;
}

/// The folder for runs, made if it is not there; absolute, as all nodes are to see it.
[[nodiscard]] inline std::string folder_for_runs(const std::string& named) {
    std::error_code why;
    const auto folder = absolute_folder(named).lexically_normal();
    std::filesystem::create_directories(folder, why);
    if (why || ::access(folder.c_str(), W_OK) != 0)
        throw error(errc::io,
                    fmt::format("the folder for runs {} cannot be used: {}", folder.string(),
                                why ? why.message() : "it cannot be written"))
            .with_hint("name one with --runs that all nodes see and this user may write to");
    return folder.string();
}

} // namespace detail

SKEIN_INLINE int run_head(const head_program& how) {
    proc::open_standard_files();
    proc::outlive_readers();
    proc::name_process("head");
    cluster::head_options o;
    o.listen = cluster::head_address_or_own(how.listen);
    o.secret = cluster::find_or_make_token(how.token_file);
    o.host = proc::host_name();
    o.pid = ::getpid();
    const auto mine = how.state.empty() ? std::vector<unique_fd>() : detail::lock_state(how.state);
    posix_disk disk(link_policy::refuse);
    if (!how.state.empty()) o.log = std::make_shared<cluster::head_log>(disk, how.state);
    const auto secret = o.secret;
    o.storage = detail::storage_of(how.storage, fmt::format("head-{}", o.listen.port));
    if (!how.runs.empty()) o.runs = detail::folder_for_runs(how.runs);
    if (how.lost_after > duration(0)) o.lost_after = how.lost_after;
    if (how.results_bytes != 0) o.results_bytes = how.results_bytes;
    net::real_loop loop;
    net::real_network network(loop);
    const auto runs = o.runs;
    cluster::head h(loop, network, std::move(o));
    if (how.web) h.set_web(how.web(h, secret));
    const auto at = h.local();
    const auto reach = detail::typed(at);
    fmt::print("skein head: listens on {}{}\n", to_string(at),
               at.is_loopback() ? " (this host only; --listen HOST:PORT for others)" : "");
    fmt::print("  token:          {}\n", cluster::token_source(how.token_file));
    if (!how.state.empty()) fmt::print("  state:          {}\n", how.state);
    if (!how.runs.empty()) fmt::print("  runs:           {}\n", runs);
    fmt::print("  add a node:     skein join {}\n", reach);
    fmt::print("  run a program:  ./app --address {}\n", reach);
    fmt::print("  send a job:     skein job submit --address {} --working-dir . -- ./app\n", reach);
    if (how.web) fmt::print("  look at it:     skein dashboard {}\n", reach);
    std::fflush(stdout);
    return loop.run(cluster::detail::serve_role(&loop, &h));
}

SKEIN_INLINE int run_agent(const agent_program& how) {
    proc::open_standard_files();
    proc::outlive_readers();
    proc::name_process("agent");
    spmd::take_variable(spmd::token_variable); // its workers have a secret of their own
    cluster::agent_options o;
    o.head = cluster::head_address_or_own(cluster::find_head_address(how.head));
    o.secret = cluster::find_token(how.token_file);
    o.name = how.name;
    o.host = proc::host_name();
    o.pid = ::getpid();
    auto offers = sched::parse_resources(how.resources);
    if (!offers)
        throw error(errc::usage, "--resources: " + offers.error().text())
            .with_hint(offers.error().hint().empty() ? "e.g. --resources cpu=8,ssd=1"
                                                     : offers.error().hint());
    constexpr std::uint64_t least_memory = 1 << 20;
    if (offers->memory != 0 && offers->memory < least_memory)
        throw error(errc::usage, fmt::format("--resources: memory of {} bytes", offers->memory))
            .with_hint("with a unit: --resources memory=4GiB");
    o.offers = *offers;
    const bool names_gpus = how.resources.find("gpu") != how.resources.npos;
    o.gpu_names =
        proc::gpus_to_offer(names_gpus ? std::optional(o.offers.gpu) : std::nullopt, "--resources");
    o.offers.gpu = static_cast<int>(o.gpu_names.size());
    if (!o.offers.gpu) ::setenv(proc::gpus_variable, "", 1); // then no task here sees one
    o.labels = how.labels;
    o.store_bytes = objects::store_bytes_for(how.store);
    o.storage = detail::storage_of(
        how.storage, "node-" + detail::file_name(how.name.empty() ? o.host : how.name));
    o.numbers = &metric_registry::process();
    o.watch = std::make_shared<proc::local_host>(
        detail::folder_on_disk(how.storage.empty() ? detail::cache_folder() : how.storage));
    o.on_joined = [at = to_string(o.head)](const std::string& name) {
        fmt::print("skein node {}: joined {}\n", printable(name), at);
        std::fflush(stdout);
    };
    net::real_loop loop;
    net::real_network network(loop);
    if (how.notices.are_there())
        o.until_notice = [&network, signs = how.notices] {
            return spmd::until_leave_notice(network, signs);
        };
    if (duration(how.notice_within) > duration(0)) o.notice_within = how.notice_within;
    proc::local_children children(loop);
    cluster::agent a(loop, network, children, std::move(o));
    return loop.run(cluster::detail::serve_role(&loop, &a));
}

namespace detail {

[[nodiscard]] inline std::string address_of(const program::cluster_flags& flags) {
    return cluster::find_head_address(flags.address);
}

[[nodiscard]] inline std::unique_ptr<rt::worker_source> workers_of(
    loop& on, net::network& via, rt::runtime& driver, const program::cluster_flags& flags) {
    cluster::leased_workers_options how;
    how.head = cluster::parse_head_address(cluster::find_head_address(flags.address));
    how.secret = cluster::find_token(flags.token_file);
    how.workers = flags.workers;
    how.program = flags.program;
    how.name = std::filesystem::path(flags.program).filename().string();
    const auto mine = cluster::this_program(how.head);
    how.executable = mine.executable;
    how.folder = mine.folder;
    how.job = mine.job;
    if (!flags.listen.empty()) how.listen = cluster::parse_head_address(flags.listen, 0);
    how.print = proc::print_to_standard_files(flags.prefix_output.value_or(true));
    return std::make_unique<cluster::leased_workers>(on, via, driver, std::move(how));
}

inline int head_of(const program::cluster_flags& flags) {
    return run_head({flags.listen, flags.token_file, flags.state, {}, {}, {}, {}, 0});
}
inline int join_of(const program::cluster_flags& flags) {
    agent_program how;
    how.head = flags.join;
    how.token_file = flags.token_file;
    return run_agent(how);
}
inline program::part_in_job part_of(const program::cluster_flags& flags) {
    program::part_in_job out;
    out.address = helped_job::head_here();
    if (!out.address.empty()) return out;
    const auto where = job_of_launcher();
    if (!where) return out;
    if (where->rank == 0)
        out.leads = std::make_unique<led_job>(*where, flags.token_file);
    else
        out.exit_code = run_job_node(*where, flags.token_file);
    return out;
}

inline std::unique_ptr<program::job_with_helpers> helpers_of(
    const spmd::launch_environment& where) {
    return std::make_unique<helped_job>(where);
}

/// The folder for runs of this program on a cluster; "": the cluster has none. What the user or the
/// job names counts. Outside of jobs each program has one of its own: all of them share the
/// cluster's, and their runs have the same names.
///   errors  those of get_status, unless the head has said so to a job before
[[nodiscard]] inline std::string runs_on_cluster(const cluster::leased_ranks_options& how) {
    const char* const named = std::getenv(cluster::runs_variable);
    const std::string mine = named != nullptr ? named : "";
    cluster::tool_options asks{how.head, how.secret};
    asks.within = std::chrono::seconds(2);
    std::string all;
    try {
        all = cluster::get_status(asks).runs;
    } catch (const error& why) {
        const bool is_away = why.code() == errc::refused || why.code() == errc::timeout;
        if (mine.empty() || how.program.job.empty() || !is_away) throw;
        return mine; // the head is away for a while
    }
    if (all.empty() || !mine.empty()) return all.empty() ? "" : mine;
    if (!how.program.job.empty()) return fmt::format("{}/{}", all, how.program.job);
    const auto where = how.host + ":" + how.program.folder;
    return fmt::format("{}/{}-{:.8}", all,
                       std::filesystem::path(how.program.folder).filename().string(),
                       to_hex(sha256_of(as_bytes(where))));
}

[[nodiscard]] inline program::ranks_on_cluster ranks_of(
    const sched::resources& demand, bool come_and_go, const std::string& own_runs,
    std::function<void(const std::string& why)> on_wait) {
    program::ranks_on_cluster out;
    const auto named = cluster::find_head_address("");
    if (named.empty() || named == "local") return out;
    try {
        cluster::leased_ranks_options how;
        how.head = cluster::parse_head_address(named);
        how.secret = cluster::find_token("");
        how.program = cluster::this_program(how.head);
        how.name = std::filesystem::path(how.program.executable).filename().string();
        how.host = proc::host_name();
        how.pid = ::getpid();
        how.demand = demand;
        how.come_and_go = come_and_go;
        how.print = proc::print_to_standard_files(false);
        how.on_wait = std::move(on_wait);
        if (const char* name = std::getenv("SKEIN_ADVERTISE")) how.advertise = name;
        how.runs = runs_on_cluster(how);
        how.serves_runs = how.runs.empty(); // no folder that all nodes see: others reach this one
        out.runs = how.runs;
        if (how.serves_runs) how.runs = own_runs;
        out.children = [how](loop& on, net::network& via) {
            return std::make_shared<cluster::leased_ranks>(on, via, how);
        };
    } catch (const error& why) {
        out.why_not =
            fmt::format("the cluster at {} cannot be used (SKEIN_ADDRESS): {}", named, why.what());
    }
    return out;
}

} // namespace detail

SKEIN_INLINE const program::cluster_roles* roles() noexcept {
    static constexpr program::cluster_roles all{
        &detail::address_of, &detail::workers_of, &detail::head_of,
        &detail::join_of,    &detail::part_of,    &detail::helpers_of,
        &run_helper_host,    &detail::ranks_of,   &cluster::run_space_server};
    return &all;
}

} // namespace skein::program

#if !SKEIN_HEADER_ONLY
namespace skein::program {
const cluster_roles* roles_of_program() noexcept { return program::roles(); }
} // namespace skein::program
#endif
