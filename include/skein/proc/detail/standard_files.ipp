// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of proc/standard_files.hpp.

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <iostream>
#include <streambuf>
#include <system_error>
#include <thread>

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio_ext.h>
#include <sys/stat.h>
#include <ucontext.h>
#include <unistd.h>

namespace skein::proc {

namespace detail {

/// std::cout of a program that has parted it from stdout, given back to it.
class to_stdout final : public std::streambuf {
    int_type overflow(int_type c) override {
        if (traits_type::eq_int_type(c, traits_type::eof())) return traits_type::not_eof(c);
        return std::putc(traits_type::to_char_type(c), stdout) == EOF ? traits_type::eof() : c;
    }
    std::streamsize xsputn(const char* text, std::streamsize n) override {
        return static_cast<std::streamsize>(
            std::fwrite(text, 1, static_cast<std::size_t>(n), stdout));
    }
    int sync() override { return std::fflush(stdout); }
};

/// /dev/null, for an output that nobody reads any more.
inline constinit std::atomic<int> nowhere{-1};

/// Safe in a signal handler.
SKEIN_INLINE void drop_unread() noexcept {
    const int saved = errno;
    for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
        ::pollfd one{fd, 0, 0};
        if (::poll(&one, 1, 0) == 1 && (one.revents & (POLLERR | POLLHUP)) != 0)
            (void)::dup2(nowhere, fd);
    }
    errno = saved;
}

/// SIGPIPE and SIGXFSZ come on the thread whose write has failed, before that returns: it returns
/// that one byte was written, so that who prints goes on with the rest, which is dropped. fmt would
/// throw, in the middle of a task.
SKEIN_INLINE void pass_over_failed_print([[maybe_unused]] void* at) noexcept {
#if defined(__x86_64__) && defined(__linux__)
    auto& registers = static_cast<::ucontext_t*>(at)->uc_mcontext.gregs;
    const auto fd = registers[REG_RDI]; // the first argument; the other machines overwrite it
    const bool is_print = fd == STDOUT_FILENO || fd == STDERR_FILENO;
    const bool is_dropped = nowhere >= 0 && registers[REG_RAX] == -EPIPE;
    if (is_print && (is_dropped || registers[REG_RAX] == -EFBIG)) registers[REG_RAX] = 1;
#endif
}

/// Not SIG_IGN: what this process starts would inherit that.
SKEIN_INLINE void on_unread(int, ::siginfo_t*, void* at) {
    drop_unread();
    pass_over_failed_print(at);
}
/// A file that may not grow any more is printed to again and again: each time it is passed over.
SKEIN_INLINE void on_full(int, ::siginfo_t*, void* at) { pass_over_failed_print(at); }

/// A print that comes first would fail, and some that print throw then: so the end of a reader is
/// waited for.
SKEIN_INLINE void watch_readers() {
    std::array<::pollfd, 2> both{};
    std::size_t n = 0;
    for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
        struct ::stat what{};
        if (::fstat(fd, &what) == 0 && (S_ISFIFO(what.st_mode) || S_ISSOCK(what.st_mode)))
            both[n++] = {fd, 0, 0};
    }
    if (n == 0) return;
    sigset_t all, before; // signals are for the program's own threads
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        std::thread([both, n]() mutable {
            ::pthread_setname_np(::pthread_self(), "skein-output");
            while (n > 0) {
                if (::poll(both.data(), n, -1) < 0) continue;
                drop_unread();
                const auto* const end = std::remove_if(
                    both.data(), both.data() + n, [](const auto& f) { return f.revents != 0; });
                n = static_cast<std::size_t>(end - both.data());
            }
        }).detach();
    } catch (const std::system_error&) { // then the first print fails
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

} // namespace detail

SKEIN_INLINE void open_standard_files() noexcept {
    const int saved = errno;
    for (int fd = 0; fd < 3; ++fd) {
        if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
        const int got = ::open("/dev/null", O_RDWR); // the lowest number that is free: fd
        if (got > fd) ::close(got);
    }
    errno = saved;
}

SKEIN_INLINE void print_by_lines() noexcept {
    const bool has_none = ::__fbufsize(stdout) == 1;
    if (!has_none && ::__flbf(stdout) == 0) (void)std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
    if (std::ios_base::sync_with_stdio(true)) return;
    std::cout.flush();
    static detail::to_stdout line_by_line;
    std::cout.rdbuf(&line_by_line);
}

SKEIN_INLINE void outlive_readers() noexcept {
    if (detail::nowhere < 0) detail::nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    const auto handle = [](int number, void (*handler)(int, ::siginfo_t*, void*), auto is_free) {
        struct ::sigaction now{};
        if (::sigaction(number, nullptr, &now) != 0 || !is_free(now.sa_handler)) return;
        now = {};
        now.sa_sigaction = handler;
        now.sa_flags = SA_RESTART | SA_SIGINFO;
        (void)::sigaction(number, &now, nullptr);
    };
    handle(SIGPIPE, &detail::on_unread, [](auto* now) { return now == SIG_DFL; });
    handle(SIGXFSZ, &detail::on_full,
           [](auto* now) { return now == SIG_DFL || is_file_limit_outlived(now); });
    if (detail::nowhere < 0) return;
    detail::drop_unread(); // of a reader that has gone already
    detail::watch_readers();
}

} // namespace skein::proc
