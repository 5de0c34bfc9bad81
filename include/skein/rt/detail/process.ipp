// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of rt/process.hpp: fork, what the child does before exec, and how its end is seen.

#include <skein/core/check.hpp>
#include <skein/rt/detail/process.hpp>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <tuple>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fmt/format.h>

extern char** environ;

namespace skein::rt {

SKEIN_INLINE std::string signal_name(int number) {
    switch (number) {
    case SIGHUP: return "SIGHUP";
    case SIGINT: return "SIGINT";
    case SIGQUIT: return "SIGQUIT";
    case SIGILL: return "SIGILL";
    case SIGTRAP: return "SIGTRAP";
    case SIGABRT: return "SIGABRT";
    case SIGBUS: return "SIGBUS";
    case SIGFPE: return "SIGFPE";
    case SIGKILL: return "SIGKILL";
    case SIGUSR1: return "SIGUSR1";
    case SIGUSR2: return "SIGUSR2";
    case SIGSEGV: return "SIGSEGV";
    case SIGPIPE: return "SIGPIPE";
    case SIGALRM: return "SIGALRM";
    case SIGTERM: return "SIGTERM";
    case SIGXCPU: return "SIGXCPU";
    default: return "signal " + std::to_string(number);
    }
}

SKEIN_INLINE std::string exit_status::describe() const {
    if (exited()) return fmt::format("exited with {}", code());
    return fmt::format("killed by signal {} ({}){}", signal(), signal_name(signal()),
                       dumped_core() ? ", core dumped" : "");
}

SKEIN_INLINE std::string host_name() {
    char text[256] = {};
    ::gethostname(text, sizeof text - 1);
    return text;
}

SKEIN_INLINE std::string process_title(std::string_view program, std::string_view part) {
    program.remove_prefix(std::min(program.rfind('/') + 1, program.size()));
    constexpr std::size_t kept = 15;
    const auto tail = (":" + std::string(part)).substr(0, kept);
    return std::string(program.substr(0, kept - tail.size())) + tail;
}

SKEIN_INLINE void name_process(std::string_view part) {
    ::prctl(PR_SET_NAME, process_title(::program_invocation_short_name, part).c_str());
}

SKEIN_INLINE int detail::adopt_last_words() noexcept {
    static const int adopted = [] {
        const char* number = std::getenv(last_words_variable);
        if (number == nullptr) return -1;
        const int fd = std::atoi(number);
        ::unsetenv(last_words_variable); // what this process starts leaves its own words elsewhere
        return fd > 2 && ::fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 ? fd : -1;
    }();
    return adopted;
}

SKEIN_INLINE bool leave_last_words(std::string_view text) noexcept {
    const int to = detail::adopt_last_words();
    if (to < 0) return false;
    const auto bytes = std::min<std::size_t>(text.size(), 4096);
    return ::write(to, text.data(), bytes) >= 0;
}

namespace detail {

/// Everything the child needs between fork and exec, prepared before it: no allocation there.
struct child_plan {
    const char* executable;
    char* const* argv;
    char* const* env;
    const char* cwd;
    std::vector<std::pair<int, int>> fds; // {source, target}; the sources get replaced by copies
    int first_free;                       // above every target
    const char *out_file, *err_file;
    bool null_stdin, own_group, die_with_parent;
    pid_t parent;
    int report; // write {step, errno} here if something fails
};

[[noreturn]] SKEIN_INLINE void child_failed(const child_plan& plan, int step) {
    int message[2] = {step, errno};
    [[maybe_unused]] auto ignored = ::write(plan.report, message, sizeof message);
    ::_exit(127);
}

/// What spawn() throws. Running out of descriptors has a limit with a name.
SKEIN_INLINE error cannot_start(std::string_view executable, std::string_view step, int number) {
    const auto code = number == ENOENT   ? errc::not_found
                      : number == EACCES ? errc::permission_denied
                                         : errc::io;
    error why(code, fmt::format("cannot start {}: {}: {}", executable, step,
                                number == EMFILE ? "too many open files" : std::strerror(number)));
    if (number == EMFILE) why.with_hint("raise the limit of open files: ulimit -n");
    return why;
}

/// Closes (on exec) all descriptors but the standard three.
SKEIN_INLINE void close_others_on_exec(int first) noexcept {
#ifdef SYS_close_range
    if (::syscall(SYS_close_range, unsigned(first), ~0U, 4U /* CLOSE_RANGE_CLOEXEC */) == 0) return;
#endif
    for (int fd = first; fd < 4096; ++fd) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
}

SKEIN_INLINE void open_over(const child_plan& plan, const char* path, int target, int flags) {
    int fd = ::open(path, flags | O_CLOEXEC, 0644);
    if (fd < 0 || ::dup2(fd, target) < 0) child_failed(plan, 2);
    // dup2 onto itself would keep close-on-exec.
    if (fd == target) ::fcntl(fd, F_SETFD, 0);
}

/// Runs in the child; only async-signal-safe calls.
[[noreturn]] SKEIN_INLINE void become(child_plan& plan) {
    if (plan.own_group) ::setpgid(0, 0);
    if (plan.die_with_parent) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        // The parent may have died before the line above took effect.
        if (::getppid() != plan.parent) ::_exit(127);
    }
    close_others_on_exec(3);
    for (auto& [source, target] : plan.fds) {
        source = ::fcntl(source, F_DUPFD_CLOEXEC, plan.first_free);
        if (source < 0) child_failed(plan, 1);
    }
    if (plan.null_stdin) open_over(plan, "/dev/null", 0, O_RDONLY);
    if (plan.out_file) open_over(plan, plan.out_file, 1, O_WRONLY | O_CREAT | O_APPEND);
    if (plan.err_file) open_over(plan, plan.err_file, 2, O_WRONLY | O_CREAT | O_APPEND);
    for (auto& [source, target] : plan.fds)
        if (::dup2(source, target) < 0) child_failed(plan, 1);
    // Where a standard file of the parent is closed, or the number is one of its sockets, the child gets
    // none of it: what it opened next would take the number, and what it prints would go there.
    for (int fd = 0; fd < 3; ++fd)
        if (const int flags = ::fcntl(fd, F_GETFD); flags < 0 || (flags & FD_CLOEXEC) != 0)
            open_over(plan, "/dev/null", fd, O_RDWR);
    if (plan.cwd && ::chdir(plan.cwd) != 0) child_failed(plan, 3);

    // Ignored signals and the mask survive exec: give the child the defaults.
    ::signal(SIGPIPE, SIG_DFL);
    ::signal(SIGINT, SIG_DFL);
    ::signal(SIGTERM, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::execve(plan.executable, plan.argv, plan.env);
    child_failed(plan, 4);
}

SKEIN_INLINE std::vector<std::string> merged_environment(const process_options& how) {
    auto replaced = [&](std::string_view entry) {
        auto name = entry.substr(0, entry.find('='));
        for (auto& [key, value] : how.env)
            if (key == name) return true;
        for (auto& key : how.unset_env)
            if (key == name) return true;
        return name == last_words_variable;
    };
    std::vector<std::string> out;
    for (char** entry = environ; *entry != nullptr; ++entry)
        if (!replaced(*entry)) out.emplace_back(*entry);
    for (auto& [key, value] : how.env) out.push_back(key + "=" + value);
    return out;
}

SKEIN_INLINE std::vector<char*> c_strings(std::vector<std::string>& strings) {
    std::vector<char*> out;
    for (auto& s : strings) out.push_back(s.data());
    out.push_back(nullptr);
    return out;
}

/// What spawn() makes before the fork, and keeps until the child has become the other program.
struct prepared_child {
    explicit prepared_child(process_options options) : how(std::move(options)) {
        if (how.executable.empty()) how.executable = how.argv[0];
        int words_target = -1;
        int first_free = 3;
        for (auto& [ours, theirs] : how.fds) first_free = std::max(first_free, theirs + 1);
        if (how.last_words) {
            std::tie(words_in, words_out) = make_pipe();
            words_target = first_free++;
            how.fds.emplace_back(words_out.get(), words_target);
        }
        if (how.stdout_fd >= 0) how.fds.emplace_back(how.stdout_fd, 1);
        if (how.stderr_fd >= 0) how.fds.emplace_back(how.stderr_fd, 2);

        environment = merged_environment(how);
        if (how.last_words)
            environment.push_back(fmt::format("{}={}", last_words_variable, words_target));
        env = c_strings(environment);
        argv = c_strings(how.argv);
        std::tie(report_in, report_out) = make_pipe();
        // The report must not sit on a number that the child gives to something else.
        report_out.reset(::fcntl(report_out.get(), F_DUPFD_CLOEXEC, first_free));
        if (!report_out) throw cannot_start(how.executable, "report pipe", errno);

        plan.executable = how.executable.c_str();
        plan.argv = argv.data();
        plan.env = env.data();
        plan.cwd = how.cwd.empty() ? nullptr : how.cwd.c_str();
        plan.fds = how.fds;
        plan.first_free = first_free;
        plan.out_file = how.stdout_file.empty() ? nullptr : how.stdout_file.c_str();
        plan.err_file = how.stderr_file.empty() ? nullptr : how.stderr_file.c_str();
        plan.null_stdin = !how.keep_stdin;
        plan.own_group = how.own_group;
        plan.die_with_parent = how.die_with_parent;
        plan.parent = ::getpid();
        plan.report = report_out.get();
    }

    process_options how;
    std::vector<std::string> environment;
    std::vector<char*> env, argv;
    unique_fd words_in, words_out, report_in, report_out;
    child_plan plan{};
};

/// Forks; in the child it does not return.
SKEIN_INLINE pid_t fork_into(prepared_child& prepared) {
    // No signal handler of ours may run in the child.
    sigset_t all, before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    const pid_t pid = ::fork();
    if (pid == 0) become(prepared.plan);
    const int fork_error = errno;
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (pid < 0)
        throw error(errc::io, fmt::format("cannot start {}: fork: {}", prepared.how.executable,
                                          std::strerror(fork_error)));
    return pid;
}

} // namespace detail

SKEIN_INLINE child_process::child_process(child_process&& other) noexcept {
    *this = std::move(other);
}

SKEIN_INLINE child_process& child_process::operator=(child_process&& other) noexcept {
    std::swap(pid_, other.pid_);
    std::swap(own_group_, other.own_group_);
    std::swap(pidfd_, other.pidfd_);
    std::swap(words_, other.words_);
    std::swap(status_, other.status_);
    return *this;
}

SKEIN_INLINE child_process::~child_process() {
    if (!running()) return;
    kill(SIGKILL);
    wait_blocking();
}

SKEIN_INLINE void child_process::kill(int signal) noexcept {
    if (running()) ::kill(pid_, signal);
}

SKEIN_INLINE void child_process::kill_group(int signal) noexcept {
    if (!running()) return;
    if (own_group_) ::kill(-pid_, signal);
    ::kill(pid_, signal);
}

SKEIN_INLINE std::optional<exit_status> child_process::try_wait() noexcept {
    if (running()) reap(WNOHANG);
    return status_;
}

SKEIN_INLINE exit_status child_process::wait_blocking() {
    SKEIN_CHECK(pid_ > 0, "wait for a process that was never started");
    if (running()) reap(0);
    return *status_;
}

SKEIN_INLINE std::string child_process::last_words() {
    std::string text;
    char piece[4096];
    for (;;) {
        auto n = words_.get() >= 0 ? ::read(words_.get(), piece, sizeof piece) : 0;
        if (n <= 0 || text.size() > 65536) return text;
        text.append(piece, std::size_t(n));
    }
}

SKEIN_INLINE void child_process::reap(int flags) noexcept {
    int raw = 0;
    pid_t got = 0;
    if (own_group_) {
        // Seen, but not yet reaped: until then the group's number belongs to nobody else.
        siginfo_t seen{};
        while ((got = ::waitid(P_PID, id_t(pid_), &seen, flags | WEXITED | WNOWAIT)) < 0 &&
               errno == EINTR) {}
        if (got == 0 && seen.si_pid == pid_) ::kill(-pid_, SIGKILL);
    }
    do {
        got = ::waitpid(pid_, &raw, flags);
    } while (got < 0 && errno == EINTR);
    if (got == pid_) status_ = exit_status(raw);
    // Somebody else reaped it (SIGCHLD ignored): the end is known, the status is not.
    if (got < 0) status_ = exit_status(0xff00);
}

SKEIN_INLINE child_process child_process::spawn(process_options how) {
    SKEIN_CHECK(!how.argv.empty(), "spawn needs argv[0]");
    detail::prepared_child prepared(std::move(how));
    const auto& executable = prepared.how.executable;
    child_process child;
    child.pid_ = detail::fork_into(prepared);
    child.own_group_ = prepared.how.own_group;
    prepared.report_out.reset();
    // Until exec the report pipe is open in the child; its closing without a message is success.
    pollfd waits{prepared.report_in.get(), POLLIN, 0};
    while (::poll(&waits, 1, -1) < 0 && errno == EINTR) {}
    int message[2];
    if (::read(prepared.report_in.get(), message, sizeof message) == ssize_t(sizeof message)) {
        child.wait_blocking();
        static constexpr const char* steps[] = {"", "pass open files", "open its output file",
                                                "change to its folder", "execute"};
        throw detail::cannot_start(executable, steps[message[0]], message[1]);
    }
    child.pidfd_ = unique_fd(int(::syscall(SYS_pidfd_open, child.pid_, 0)));
    if (child.pidfd_.get() < 0 && (errno == EMFILE || errno == ENFILE))
        throw detail::cannot_start(executable, "pidfd_open", errno);
    if (child.pidfd_.get() < 0)
        throw error(errc::not_supported, fmt::format("not supported: pidfd_open: {} (Linux >= 5.3 "
                                                     "is needed)",
                                                     std::strerror(errno)));
    child.words_ = std::move(prepared.words_in);
    return child;
}

} // namespace skein::rt
