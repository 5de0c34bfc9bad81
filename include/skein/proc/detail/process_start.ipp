// SPDX-License-Identifier: Apache-2.0
#pragma once
// The start of a child process: what is prepared, and what the child does before it executes the
// program.
//
// Until then the child shares the memory of this process, and the thread that started it stands
// still (CLONE_VM | CLONE_VFORK): nothing is copied, however large this process is, and no page of
// it is made read-only for a copy on write. So what runs in the child calls the kernel directly,
// allocates nothing, and is not instrumented: a sanitizer would take what it does for deeds of this
// process.

#include <skein/core/check.hpp>
#include <skein/core/unique_fd.hpp>
#include <skein/proc/detail/process.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fmt/format.h>

extern char** environ;
#if defined(__GLIBC__)
// ThreadSanitizer takes every clone() for a fork and holds its locks around it; it does not know
// this name.
extern "C" int __clone(int (*)(void*), void*, int, void*, ...);
#endif

#if defined(__clang__)
#define SKEIN_IN_CHILD __attribute__((disable_sanitizer_instrumentation, noinline))
#else
#define SKEIN_IN_CHILD __attribute__((no_sanitize("address", "thread", "undefined"), noinline))
#endif

namespace skein::proc::detail {

/// A file that the child gets: ours, the number it has there.
struct passed_file {
    int source, target;
};

/// Everything the child needs between its start and exec, prepared before it: no allocation there.
struct child_plan {
    const char* executable;
    char* const* argv;
    char* const* env;
    const char* cwd;
    passed_file* fds; // the sources get replaced by copies
    std::size_t fd_count;
    int first_free; // above every target
    const char *out_file, *err_file;
    bool null_stdin, own_group, die_with_parent;
    pid_t parent;
    int report; // write {step, errno} here if something fails
    // Shared between the child and who gives up: either sees what the other has written.
    pid_t pid = 0;
    int given_up = 0;
};

/// The step that changes to its folder, as child_failed() reports it.
inline constexpr int change_folder = 3;

[[noreturn]] SKEIN_IN_CHILD SKEIN_INLINE void child_leaves() {
    while (true) ::syscall(SYS_exit_group, 127);
}

[[noreturn]] SKEIN_IN_CHILD SKEIN_INLINE void child_failed(const child_plan& plan, int step) {
    const int message[2] = {step, errno};
    ::syscall(SYS_write, plan.report, message, sizeof message);
    child_leaves();
}

/// The host has run out of something, whatever is started.
[[nodiscard]] SKEIN_INLINE bool is_used_up(int number) noexcept {
    return number == EMFILE || number == ENFILE || number == EAGAIN || number == ENOMEM;
}

/// What spawn() throws. Running out of descriptors has a limit with a name.
SKEIN_INLINE error cannot_start(std::string_view executable, std::string_view step, int number) {
    const auto code = number == ENOENT || number == ENOTDIR  ? errc::not_found
                      : number == EACCES                     ? errc::permission_denied
                      : number == ENOEXEC                    ? errc::invalid_argument
                      : is_used_up(number)                   ? errc::exhausted
                      : number == ENOSPC || number == EDQUOT ? errc::disk_full
                                                             : errc::io;
    error why(code, fmt::format("cannot start {}: {}: {}", executable, step,
                                number == EMFILE ? "too many open files" : std::strerror(number)));
    if (number == EMFILE) why.with_hint("raise the limit of open files: ulimit -n");
    if (number == ENOEXEC)
        why.with_hint("it is no program of this machine; a script names its interpreter in its "
                      "first line, as in #!/bin/sh");
    return why;
}

/// Closes (on exec) all descriptors but the standard three.
SKEIN_IN_CHILD SKEIN_INLINE void close_others_on_exec(int first) noexcept {
#ifdef SYS_close_range
    if (::syscall(SYS_close_range, unsigned(first), ~0U, 4U /* CLOSE_RANGE_CLOEXEC */) == 0) return;
#endif
    for (int fd = first; fd < 4096; ++fd) ::syscall(SYS_fcntl, fd, F_SETFD, FD_CLOEXEC);
}

SKEIN_IN_CHILD SKEIN_INLINE void open_over(const child_plan& plan, const char* path, int target,
                                           int flags) {
    const int fd = int(::syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, 0644));
    if (fd < 0) child_failed(plan, 2);
    // dup3 onto itself is an error, and would keep close-on-exec.
    const long done =
        fd == target ? ::syscall(SYS_fcntl, fd, F_SETFD, 0) : ::syscall(SYS_dup3, fd, target, 0);
    if (done < 0) child_failed(plan, 2);
}

SKEIN_IN_CHILD SKEIN_INLINE void arrange_files(child_plan& plan) {
    close_others_on_exec(3);
    for (std::size_t i = 0; i < plan.fd_count; ++i) {
        auto& source = plan.fds[i].source;
        source = int(::syscall(SYS_fcntl, source, F_DUPFD_CLOEXEC, plan.first_free));
        if (source < 0) child_failed(plan, 1);
    }
    if (plan.null_stdin) open_over(plan, "/dev/null", 0, O_RDONLY);
    if (plan.out_file) open_over(plan, plan.out_file, 1, O_WRONLY | O_CREAT | O_APPEND);
    if (plan.err_file) open_over(plan, plan.err_file, 2, O_WRONLY | O_CREAT | O_APPEND);
    for (std::size_t i = 0; i < plan.fd_count; ++i)
        if (::syscall(SYS_dup3, plan.fds[i].source, plan.fds[i].target, 0) < 0)
            child_failed(plan, 1);
    // Where a standard file of the parent is closed, or the number is one of its sockets, the child
    // gets none of it: what it opened next would take the number, and what it prints would go
    // there.
    for (int fd = 0; fd < 3; ++fd)
        if (const long flags = ::syscall(SYS_fcntl, fd, F_GETFD);
            flags < 0 || (flags & FD_CLOEXEC) != 0)
            open_over(plan, "/dev/null", fd, O_RDWR);
}

/// No handler of this process may run in the child, which has its memory; ignored signals and the
/// mask would survive exec: what ends a program by default does so again. A process of another
/// session may print on the terminal all the same, also where that would stop it for it
/// (`stty tostop`): nobody would let it go on.
SKEIN_IN_CHILD SKEIN_INLINE void reset_signals(bool own_group) {
    // As the kernel has it on 64-bit hosts: handler, flags, restorer, mask.
    unsigned long now[4];
    const unsigned long normal[4] = {}; // SIG_DFL
    const unsigned long ignored[4] = {1};
    for (int number = 1; number < 65; ++number) {
        if (::syscall(SYS_rt_sigaction, number, nullptr, now, 8) != 0) continue;
        const bool has_handler = now[0] > 1; // neither SIG_DFL nor SIG_IGN
        if (has_handler || number == SIGPIPE || number == SIGINT || number == SIGTERM)
            ::syscall(SYS_rt_sigaction, number, normal, nullptr, 8);
    }
    if (own_group) ::syscall(SYS_rt_sigaction, SIGTTOU, ignored, nullptr, 8);
    const unsigned long none = 0;
    ::syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, nullptr, 8);
}

/// Runs in the child; only calls of the kernel.
SKEIN_IN_CHILD SKEIN_INLINE int become(void* order) {
    auto& plan = *static_cast<child_plan*>(order);
    if (plan.own_group) ::syscall(SYS_setsid);
    if (plan.die_with_parent) {
        ::syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
        // The parent may have died before the line above took effect.
        if (::syscall(SYS_getppid) != plan.parent) child_leaves();
    }
    __atomic_store_n(&plan.pid, pid_t(::syscall(SYS_getpid)), __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&plan.given_up, __ATOMIC_SEQ_CST) != 0) child_leaves();
    arrange_files(plan);
    if (plan.cwd && ::syscall(SYS_chdir, plan.cwd) != 0) child_failed(plan, change_folder);
    reset_signals(plan.own_group);
    ::syscall(SYS_execve, plan.executable, plan.argv, plan.env);
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
    std::map<std::string_view, std::string_view> last; // programs read the first of two
    for (const auto& [key, value] : how.env) last[key] = value;
    for (const auto& [key, value] : last) out.push_back(fmt::format("{}={}", key, value));
    return out;
}

SKEIN_INLINE std::vector<char*> c_strings(std::vector<std::string>& strings) {
    std::vector<char*> out;
    for (auto& s : strings) out.push_back(s.data());
    out.push_back(nullptr);
    return out;
}

/// What a start needs until the child has become the other program.
struct start_attempt::parts {
    explicit parts(process_options options);
    [[nodiscard]] pid_t start();
    [[nodiscard]] bool end_start();

    process_options how;
    std::vector<std::string> environment;
    std::vector<char*> env, argv;
    std::vector<passed_file> files;
    unique_fd words_in, words_out, report_in, report_out;
    child_plan plan{};

    std::mutex mutex; // guards returned: before it is set the child is not reaped, its pid its own
    bool returned = false; ///< the thread that started the child goes on
};

SKEIN_INLINE start_attempt::parts::parts(process_options options) : how(std::move(options)) {
    SKEIN_CHECK(!how.argv.empty(), "a process needs argv[0]");
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
    for (auto& [ours, theirs] : how.fds) files.push_back({ours, theirs});

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
    plan.fds = files.data();
    plan.fd_count = files.size();
    plan.first_free = first_free;
    plan.out_file = how.stdout_file.empty() ? nullptr : how.stdout_file.c_str();
    plan.err_file = how.stderr_file.empty() ? nullptr : how.stderr_file.c_str();
    plan.null_stdin = !how.keep_stdin;
    plan.own_group = how.own_group;
    plan.die_with_parent = how.die_with_parent;
    plan.parent = ::getpid();
    plan.report = report_out.get();
}

/// Gives the pid when the child executes the program, or has ended.
SKEIN_INLINE pid_t start_attempt::parts::start() {
    constexpr std::size_t stack_bytes = std::size_t{64} << 10;
    const auto stack = std::make_unique<std::byte[]>(stack_bytes);
    // No signal handler of ours may run in the child.
    sigset_t all, before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    constexpr int flags = CLONE_VM | CLONE_VFORK | SIGCHLD;
    void* const top = stack.get() + stack_bytes; // it grows down
#if defined(__GLIBC__)
    const pid_t pid = ::__clone(&become, top, flags, &plan);
#else
    const pid_t pid = ::clone(&become, top, flags, &plan);
#endif
    const int number = errno;
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (pid < 0) throw cannot_start(how.executable, "clone", number);
    return pid;
}

/// Nobody kills the child from here on. Gives whether somebody has.
SKEIN_INLINE bool start_attempt::parts::end_start() {
    const std::lock_guard lock(mutex);
    returned = true;
    return __atomic_load_n(&plan.given_up, __ATOMIC_SEQ_CST) != 0;
}

SKEIN_INLINE start_attempt::start_attempt(process_options how)
    : parts_(std::make_unique<parts>(std::move(how))) {}
SKEIN_INLINE start_attempt::~start_attempt() = default;

SKEIN_INLINE void start_attempt::give_up() noexcept {
    const std::lock_guard lock(parts_->mutex);
    __atomic_store_n(&parts_->plan.given_up, 1, __ATOMIC_SEQ_CST);
    const pid_t pid = __atomic_load_n(&parts_->plan.pid, __ATOMIC_SEQ_CST);
    if (pid > 0 && !parts_->returned) ::kill(pid, SIGKILL); // else the child sees it by itself
}

SKEIN_INLINE child_process start_attempt::run() {
    auto& start = *parts_;
    const auto& executable = start.how.executable;
    child_process child;
    child.pid_ = start.start();
    detail::hold(child.pid_);
    child.own_group_ = start.how.own_group;
    if (start.end_start()) {
        child.kill_group(SIGKILL);
        child.wait_blocking();
        throw error(errc::cancelled, fmt::format("the start of {} was given up", executable));
    }
    // The child has executed the program, or written why not and ended.
    int message[2];
    if (::read(start.report_in.get(), message, sizeof message) == ssize_t(sizeof message)) {
        child.wait_blocking();
        static constexpr std::array<const char*, 5> steps{
            "", "pass open files", "open its output file", "change to its folder", "execute"};
        std::string step = steps.at(std::size_t(message[0]));
        if (message[0] == change_folder) step += " " + start.how.cwd;
        throw cannot_start(executable, step, message[1]);
    }
    child.pidfd_ = unique_fd(int(::syscall(SYS_pidfd_open, child.pid_, 0)));
    if (child.pidfd_.get() < 0 && (errno == EMFILE || errno == ENFILE))
        throw cannot_start(executable, "pidfd_open", errno);
    if (child.pidfd_.get() < 0)
        throw error(errc::not_supported, fmt::format("not supported: pidfd_open: {} (Linux >= 5.3 "
                                                     "is needed)",
                                                     std::strerror(errno)));
    child.words_ = std::move(start.words_in);
    return child;
}

} // namespace skein::proc::detail

#undef SKEIN_IN_CHILD
