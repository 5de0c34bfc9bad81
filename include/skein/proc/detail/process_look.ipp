// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of proc/children.hpp: what /proc says of a process that does not answer. What
// cannot be read (another user's, a container without /proc) says nothing.
//
// A worker runs tasks on its loop, so that it may be silent for hours and be well; its silence says
// nothing. What the kernel says of its process does: it is stopped, it has become another program,
// or it reads by itself from the socket over which its driver talks to it. Its parent, the driver
// or a node's agent, looks at it for that.

#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/unique_fd.hpp>
#include <skein/proc/detail/boot_message.hpp>

#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

namespace skein::proc::detail {

/// The first bytes of one of its files in /proc; empty: it cannot be read.
SKEIN_INLINE std::string read_start(const std::string& path) {
    std::array<char, 1024> text{};
    const unique_fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    const auto n = file ? ::read(file.get(), text.data(), text.size()) : 0;
    return std::string(text.data(), n > 0 ? static_cast<std::size_t>(n) : 0);
}

/// What /proc says of it behind its name.
struct process_state {
    char letter = 0;         ///< R S D T t Z; 0: not known
    std::uint64_t flags = 0; ///< the kernel's own
};
SKEIN_INLINE process_state read_state(const std::string& folder) {
    process_state out;
    const auto line = read_start(folder + "/stat");
    const auto name_ends = line.rfind(')'); // the name may hold anything
    if (name_ends == std::string::npos) return out;
    std::istringstream fields(line.substr(name_ends + 1));
    std::string skipped; // parent, group, session, terminal and its group
    fields >> out.letter;
    for (int field = 4; field < 9; ++field) fields >> skipped;
    fields >> out.flags;
    return out;
}

/// The flags with which a descriptor of it was opened; -1: it has none of that number, or it is not
/// known.
SKEIN_INLINE int open_flags(const std::string& folder, int descriptor) {
    const auto text = read_start(fmt::format("{}/fdinfo/{}", folder, descriptor));
    constexpr std::string_view label = "flags:";
    const auto at = text.find(label);
    const auto digits =
        at == std::string::npos ? at : text.find_first_of("01234567", at + label.size());
    int flags = -1;
    if (digits != std::string::npos)
        std::from_chars(text.data() + digits, text.data() + text.size(), flags, 8);
    return flags;
}

SKEIN_INLINE process_look look_at(std::int64_t pid, bool has_socket) {
    const auto folder = fmt::format("/proc/{}", pid);
    process_look seen;
    const auto state = read_state(folder);
    seen.is_stopped = state.letter == 'T';
    constexpr std::uint64_t exiting = 4; // PF_EXITING, before its files are closed
    seen.is_ending = (state.flags & exiting) != 0;
    struct stat about{};
    if (::stat((folder + "/exe").c_str(), &about) == 0)
        seen.executable = static_cast<std::uint64_t>(about.st_ino) ^
                          (static_cast<std::uint64_t>(about.st_dev) << 40);
    const int flags = has_socket ? open_flags(folder, socket_file) : -1;
    seen.holds_socket = flags >= 0 && (flags & O_NONBLOCK) == 0;
    return seen;
}

/// Why a process will not answer; empty: it may.
[[nodiscard]] inline const char* why_silent(const process_look& first, const process_look& now) {
    if (now.is_stopped) return "it is stopped (SIGSTOP)";
    if (first.executable != 0 && now.executable != 0 && now.executable != first.executable)
        return "it has become another program (exec)";
    if (now.holds_socket) return "a function there reads from skein's own socket";
    return "";
}

SKEIN_INLINE task<std::string> until_silent(child* process, time_constants times,
                                            unique_function<void(bool on)> suspected) {
    const auto first = process->look();
    std::optional<time_point> since;
    bool is_suspect = false;
    for (;;) {
        co_await sleep_for(times.suspect_after);
        const std::string why = why_silent(first, process->look());
        const auto now = loop::current().now();
        if (why.empty()) {
            since.reset();
            if (std::exchange(is_suspect, false) && suspected) suspected(false);
            continue;
        }
        if (!since) {
            since = now;
            continue;
        }
        if (!std::exchange(is_suspect, true) && suspected) suspected(true);
        if (now - *since >= times.dead_after)
            co_return fmt::format("it was ended after {:.3g} s: {}", to_seconds(now - *since), why);
    }
}

} // namespace skein::proc::detail
