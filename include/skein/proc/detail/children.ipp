// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of proc/children.hpp: the processes of this host.

#include <skein/core/available_cores.hpp>
#include <skein/core/available_memory.hpp>
#include <skein/core/awaitable.hpp>
#include <skein/core/backoff.hpp>
#include <skein/core/check.hpp>
#include <skein/core/fork_guard.hpp>
#include <skein/core/race.hpp>
#include <skein/core/this_process.hpp>
#include <skein/core/timeout.hpp>
#include <skein/core/unique_fd.hpp>
#include <skein/net/readable_fd.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/net/socket_pair.hpp>
#include <skein/proc/boot.hpp>
#include <skein/proc/detail/boot_message.hpp>
#include <skein/proc/detail/children.hpp>
#include <skein/proc/detail/starter.hpp>
#include <skein/proc/detail/threads.hpp>
#include <skein/proc/process_wait.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <sstream>
#include <string_view>
#include <system_error>
#include <tuple>
#include <unordered_map>

#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

namespace skein::proc {

SKEIN_INLINE child::~child() = default;
SKEIN_INLINE children::~children() = default;

namespace detail {

SKEIN_INLINE process_usage usage_of(std::int64_t pid) {
    process_usage now;
    std::uint64_t pages = 0;
    std::ifstream(fmt::format("/proc/{}/statm", pid)) >> pages >> pages; // the second: resident
    now.resident_bytes = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    std::string line;
    std::getline(std::ifstream(fmt::format("/proc/{}/stat", pid)), line);
    // The second field is the program's name in brackets, with whatever is in it; user and system
    // time, in ticks, are the 14th and the 15th.
    std::istringstream fields(line.substr(std::min(line.rfind(')') + 1, line.size())));
    std::string skipped;
    for (int field = 3; field < 14; ++field) fields >> skipped;
    std::int64_t user = 0, system = 0;
    fields >> user >> system;
    now.cpu_time = duration(std::chrono::seconds(user + system)) / ::sysconf(_SC_CLK_TCK);
    return now;
}

/// The ends to read of the pipes behind a child's standard output and error.
using output_files = std::array<unique_fd, 2>;

/// A process of this host.
class local_child final : public child {
public:
    local_child(net::real_loop& on, std::shared_ptr<starter> by, std::string name,
                child_process process, unique_fd socket, output_files output)
        : loop_(on), starter_(std::move(by)), name_(std::move(name)), process_(std::move(process)),
          output_(std::move(output)) {
        if (!socket) return;
        socket_ = unique_fd(::fcntl(socket.get(), F_DUPFD_CLOEXEC, 0));
        unforked_ = fork_guard(socket_.get());
        stream_ = net::adopt_unix_stream(on, socket.release(), name_);
    }

    const std::string& name() const noexcept override { return name_; }
    std::int64_t pid() const noexcept override { return process_.pid(); }
    bool running() const noexcept override { return process_.running(); }

    task<child_end> ended() override {
        auto waited = wait(loop_, process_);
        const auto status = co_await waited;
        if (!end_) {
            end_ = child_end{status, process_.last_words()};
            // A child that it left behind may hold the other end: an end behind the last byte.
            if (socket_) net::end_input(socket_.get());
            unforked_.reset();
            socket_.reset();
        }
        co_return *end_;
    }

    void signal(int number) noexcept override { process_.kill(number); }
    void signal_group(int number) noexcept override { process_.kill_group(number); }
    void kill() noexcept override { process_.kill_group(SIGKILL); }
    process_usage usage() override {
        return process_.running() ? usage_of(process_.pid()) : process_usage{};
    }
    process_look look() override {
        return process_.running() ? look_at(process_.pid(), static_cast<bool>(socket_))
                                  : process_look{};
    }
    std::unique_ptr<net::stream> take_stream() override { return std::move(stream_); }

    task<std::size_t> read_output(bool is_error, std::span<std::byte> into) override {
        auto& from = output_[is_error ? 1 : 0];
        while (from) {
            // Whom it has left behind may hold the pipe for ever: what is there when it has ended
            // is all.
            const bool is_over = !process_.running();
            const auto n = ::read(from.get(), into.data(), into.size());
            if (n > 0) co_return static_cast<std::size_t>(n);
            if (n < 0 && errno == EINTR) continue;
            if (n == 0 || errno != EAGAIN || is_over) {
                from.reset();
                break;
            }
            auto either = race(net::wait_readable(loop_, from.get()), has_ended(this));
            (void)co_await either;
        }
        co_return 0;
    }

private:
    static task<void> has_ended(local_child* self) {
        auto waited = wait(self->loop_, self->process_);
        (void)co_await waited;
    }

    net::real_loop& loop_;
    const std::shared_ptr<starter> starter_; // the process dies with its thread
    std::string name_;
    child_process process_;
    unique_fd socket_; // once more
    fork_guard unforked_;
    std::unique_ptr<net::stream> stream_;
    std::optional<child_end> end_;
    output_files output_;
};

SKEIN_INLINE void check_boot_size(const child_options& how) {
    if (how.files.size() > most_inherited)
        throw error(errc::too_large, fmt::format("{} inherits {} files, at most {} are allowed",
                                                 how.name, how.files.size(), most_inherited));
    if (how.message.size() <= most_boot_bytes) return;
    throw error(errc::too_large,
                fmt::format("the boot message of {} has {} bytes, at most {} are allowed", how.name,
                            how.message.size(), most_boot_bytes));
}

/// Each process of this user with the environment that it was started with, "NAME=value" and a null
/// byte each; that of one which has ended is empty.
template <class Each>
void each_environment(const Each& each) {
    std::error_code none;
    for (std::filesystem::directory_iterator one("/proc", none), end; !none && one != end;
         one.increment(none)) {
        const auto name = one->path().filename().string();
        if (name.find_first_not_of("0123456789") != name.npos) continue;
        std::ifstream file(one->path() / "environ", std::ios::binary);
        const std::string all(std::istreambuf_iterator<char>(file), {});
        if (!all.empty()) each(static_cast<pid_t>(std::stol(name)), std::string_view(all));
    }
}

/// The read end of a pipe with the message in it. All of it is there before the child starts, so
/// the child never waits, and its end of file needs nobody.
SKEIN_INLINE unique_fd boot_pipe(const child_options& how) {
    check_boot_size(how);
    boot_message text;
    text.role = how.role;
    text.name = how.name;
    text.message = how.message;
    if (how.socket) text.socket = socket_file;
    if (how.memory) text.memory = memory_file;
    text.files = static_cast<std::int32_t>(how.files.size());
    text.threads = how.threads;
    const auto bytes = wire::encode(text);
    auto [read_end, write_end] = make_pipe();
    if (::write(write_end.get(), bytes.data(), bytes.size()) != ssize_t(bytes.size()))
        throw error(errc::io, fmt::format("the boot message of {} does not fit a pipe", how.name));
    return std::move(read_end);
}

/// Pipes for what the child writes, in `plan`; gives their ends to read, and keeps those of the
/// child in `theirs`.
SKEIN_INLINE output_files output_pipes(process_options& plan, output_files& theirs) {
    output_files ours;
    for (std::size_t i = 0; i < ours.size(); ++i) {
        std::tie(ours[i], theirs[i]) = make_pipe();
        // Who writes there knows nothing of it and would take a full pipe for an error.
        ::fcntl(theirs[i].get(), F_SETFL, 0);
    }
    plan.stdout_fd = theirs[0].get();
    plan.stderr_fd = theirs[1].get();
    return ours;
}

} // namespace detail

SKEIN_INLINE task<std::unique_ptr<child>> local_children::start(child_options how) {
    process_options plan;
    plan.executable = how.executable;
    plan.cwd = how.cwd;
    // A main that goes to another folder does so once more in the child.
    if (plan.cwd.empty() && has_left_start_folder()) plan.cwd = folder_at_start();
    if (!plan.cwd.empty() && plan.executable.find('/') != plan.executable.npos &&
        !plan.executable.starts_with('/'))
        plan.executable = folder_at_start() + "/" + plan.executable;
    plan.argv = how.argv.empty() ? own_arguments() : how.argv;
    if (plan.argv.empty()) plan.argv.emplace_back("skein");
    plan.env = how.env;
    if (!detail::threads_are_said(how.env)) {
        if (how.threads > 0)
            plan.env.emplace_back(threads_variable, std::to_string(how.threads));
        else
            plan.unset_env.emplace_back(threads_variable); // it was this process's own number
    } else {
        how.threads = 0;
    }
    plan.own_group = true;
    unique_fd message;
    if (!how.role.empty()) {
        message = detail::boot_pipe(how);
        plan.fds.emplace_back(message.get(), detail::boot_file);
        plan.env.emplace_back(boot_variable, fmt::format("{}:{}", detail::boot_file,
                                                         detail::file_number(message.get())));
    } else {
        how.socket = false;
        plan.last_words = false;
        plan.unset_env.emplace_back(boot_variable);
        plan.unset_env.emplace_back(last_words_variable);
    }
    net::socket_pair link;
    if (how.socket) {
        link = net::make_socket_pair();
        plan.fds.emplace_back(link.theirs.get(), detail::socket_file);
    }
    if (how.memory) plan.fds.emplace_back(how.memory.fd(), detail::memory_file);
    for (int next = detail::first_file; const auto& file : how.files)
        plan.fds.emplace_back(file->get(), next++);
    detail::output_files output, writes;
    if (how.reads_output) output = detail::output_pipes(plan, writes);
    if (!starter_) starter_ = std::make_shared<detail::starter>();
    const auto by = starter_;
    auto& home = loop_;
    auto starting = detail::start_process(by, std::move(plan));
    auto process = co_await starting;
    co_return std::make_unique<detail::local_child>(
        home, by, std::move(how.name), std::move(process), std::move(link.ours), std::move(output));
}

SKEIN_INLINE void local_children::signal_marked(std::span<marked_signal* const> all) {
    std::unordered_multimap<std::string_view, marked_signal*> wanted;
    for (auto* const one : all) {
        one->found = 0;
        wanted.emplace(one->mark, one);
    }
    detail::each_environment([&](pid_t pid, std::string_view environment) {
        std::vector<marked_signal*> its; // a variable that stands there twice counts once
        while (!environment.empty()) {
            const auto variable = environment.substr(0, environment.find('\0'));
            environment.remove_prefix(std::min(variable.size() + 1, environment.size()));
            for (auto [at, end] = wanted.equal_range(variable); at != end; ++at)
                if (std::find(its.begin(), its.end(), at->second) == its.end())
                    its.push_back(at->second);
        }
        for (auto* const one : its) {
            ++one->found;
            if (one->number != 0 && (one->but_not == 0 || ::getpgid(pid) != one->but_not))
                (void)::kill(pid, one->number);
        }
    });
}

SKEIN_INLINE host_resources local_children::resources() {
    return {available_cores(), available_memory()};
}

namespace detail {
/// Its end, if that comes within the limit.
SKEIN_INLINE task<std::optional<child_end>> end_within(child* which, time_span limit) {
    auto in_time = with_timeout(which->ended(), limit);
    auto asked = as_result(std::move(in_time));
    auto end = co_await asked;
    if (end) co_return std::move(*end);
    if (end.error().code() != errc::timeout) throw end.error();
    co_return std::nullopt;
}
} // namespace detail

SKEIN_INLINE task<child_end> stop(child& which, time_span before_asking, time_span before_killing) {
    auto unasked = detail::end_within(&which, before_asking);
    if (auto end = co_await unasked) co_return std::move(*end);
    if (before_killing.count() > 0) {
        which.signal(SIGTERM);
        auto asked = detail::end_within(&which, before_killing);
        if (auto end = co_await asked) co_return std::move(*end);
    }
    which.kill();
    auto gone = which.ended();
    co_return co_await gone;
}

SKEIN_INLINE task<std::vector<child_place>> children::reserve(int many) {
    std::vector<child_place> all;
    for (int r = 0; r < many; ++r) all.push_back({r, many});
    co_return all;
}

SKEIN_INLINE children_door children::door() {
    return {net::address::abstract_unix(
                fmt::format("@skein-{}-{:016x}", ::getpid(), system_random().next())),
            net::token::generate()};
}

SKEIN_INLINE std::optional<duration> restart_policy::failed(const error& why) noexcept {
    ++failures_;
    if (failures_ > rules_.most || rules_.is_lasting(why.code())) return std::nullopt;
    return pause_after(failures_, rules_.first_pause, rules_.longest_pause, rules_.factor);
}

} // namespace skein::proc
