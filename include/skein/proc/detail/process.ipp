// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of proc/process.hpp: names, and how the end of a child is seen. Its start:
// process_start.ipp.

#include <skein/core/check.hpp>
#include <skein/core/printable.hpp>
#include <skein/proc/detail/process.hpp>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <fmt/format.h>

namespace skein::proc {

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
    const auto tail = (":" + printable(part)).substr(0, kept);
    return printable(program).substr(0, kept - tail.size()) + tail;
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
    // Where threads leave at once the first one's reason stands, and none ends the process before it
    // is written.
    static constinit std::mutex one_at_a_time;
    static constinit bool said = false;
    const int to = detail::adopt_last_words();
    if (to < 0) return false;
    const std::lock_guard lock(one_at_a_time);
    if (said || text.empty()) return true;
    const auto bytes = std::min<std::size_t>(text.size(), 4096);
    said = ::write(to, text.data(), bytes) >= 0;
    return said;
}

namespace detail {

/// The children of all child_process objects that have not seen their ends.
struct held_children {
    std::mutex mutex;
    std::vector<pid_t> pids;
};
SKEIN_INLINE held_children& all_held() {
    static auto* const all = new held_children; // some end with the program
    return *all;
}

SKEIN_INLINE bool is_held(pid_t pid) {
    auto& all = all_held();
    const std::lock_guard lock(all.mutex);
    return std::find(all.pids.begin(), all.pids.end(), pid) != all.pids.end();
}
SKEIN_INLINE void hold(pid_t pid) {
    auto& all = all_held();
    const std::lock_guard lock(all.mutex);
    all.pids.push_back(pid);
}
SKEIN_INLINE void let_go(pid_t pid) noexcept {
    auto& all = all_held();
    const std::lock_guard lock(all.mutex);
    if (const auto at = std::find(all.pids.begin(), all.pids.end(), pid); at != all.pids.end())
        all.pids.erase(at);
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
    // Once for each: some programs take a second SIGTERM for "at once".
    if (!own_group_ || signal == SIGKILL || ::getpgid(pid_) != pid_) ::kill(pid_, signal);
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
    if (status_) detail::let_go(pid_);
}

SKEIN_INLINE child_process child_process::spawn(process_options how) {
    detail::start_attempt once(std::move(how));
    return once.run();
}

} // namespace skein::proc
