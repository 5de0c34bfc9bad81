// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of core/file_limit.hpp.

#include <cerrno>
#include <csignal>
#include <cstring>

#include <fmt/core.h>
#include <sys/resource.h>

namespace skein {

namespace detail {

/// Not SIG_IGN: what this process starts would inherit that.
SKEIN_INLINE void on_file_limit(int) {}

} // namespace detail

SKEIN_INLINE std::optional<std::uint64_t> file_size_limit() noexcept {
    struct ::rlimit now{};
    if (::getrlimit(RLIMIT_FSIZE, &now) != 0 || now.rlim_cur == RLIM_INFINITY) return std::nullopt;
    return static_cast<std::uint64_t>(now.rlim_cur);
}

SKEIN_INLINE void outlive_file_limit() noexcept {
    struct ::sigaction now{};
    if (::sigaction(SIGXFSZ, nullptr, &now) != 0 || now.sa_handler != SIG_DFL) return;
    now = {};
    now.sa_handler = &detail::on_file_limit;
    now.sa_flags = SA_RESTART;
    (void)::sigaction(SIGXFSZ, &now, nullptr);
}

SKEIN_INLINE bool is_file_limit_outlived(void (*handler)(int)) noexcept {
    return handler == &detail::on_file_limit;
}

SKEIN_INLINE std::string errno_text(int number) {
    std::string text = std::strerror(number);
    if (!text.empty() && text[0] >= 'A' && text[0] <= 'Z')
        text[0] = static_cast<char>(text[0] - 'A' + 'a');
    if (const auto limit = file_size_limit(); number == EFBIG && limit)
        text += fmt::format(" (the limit on files of this process is {} bytes: ulimit -f)", *limit);
    return text;
}

} // namespace skein
