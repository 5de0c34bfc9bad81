// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of proc/leftovers.hpp.

#include <skein/core/sleep.hpp>
#include <skein/proc/process.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include <sys/wait.h>

namespace skein::proc {

namespace detail {

SKEIN_INLINE bool has_ended(::idtype_t which, pid_t pid, pid_t* found = nullptr) noexcept {
    ::siginfo_t seen{};
    const int flags = WEXITED | WNOHANG | WNOWAIT;
    if (::waitid(which, static_cast<::id_t>(pid), &seen, flags) != 0 || seen.si_pid == 0)
        return false;
    if (found != nullptr) *found = seen.si_pid;
    return true;
}

/// The children of all threads; where the kernel does not list them, the one that it tells first.
SKEIN_INLINE std::vector<pid_t> ended_children(pid_t first) {
    std::vector<pid_t> out;
    bool is_listed = false;
    std::error_code none;
    for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", none)) {
        std::ifstream from(thread.path() / "children");
        is_listed = is_listed || from.is_open();
        for (pid_t pid = 0; from >> pid;) out.push_back(pid);
    }
    if (!is_listed) out.push_back(first);
    std::erase_if(out, [](pid_t pid) { return is_held(pid) || !has_ended(P_PID, pid); });
    std::sort(out.begin(), out.end());
    return out;
}

} // namespace detail

SKEIN_INLINE std::size_t leftovers::look() {
    pid_t first = 0;
    if (!detail::has_ended(P_ALL, 0, &first)) {
        seen_.clear();
        return 0;
    }
    auto now = detail::ended_children(first);
    std::size_t reaped = 0;
    std::erase_if(now, [&](pid_t pid) {
        if (!std::binary_search(seen_.begin(), seen_.end(), pid)) return false;
        if (::waitpid(pid, nullptr, WNOHANG) == pid) ++reaped;
        return true;
    });
    seen_ = std::move(now);
    return reaped;
}

SKEIN_INLINE task<void> reap_leftovers(std::function<bool()> is_idle, duration pause) {
    leftovers all;
    for (;;) {
        auto next = sleep_for(pause);
        co_await next;
        if (is_idle()) (void)all.look();
    }
}

} // namespace skein::proc
