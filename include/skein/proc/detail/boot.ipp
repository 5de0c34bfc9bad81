// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of proc/boot.hpp.

#include <skein/core/error.hpp>
#include <skein/proc/detail/boot_message.hpp>
#include <skein/proc/detail/process.hpp>
#include <skein/proc/detail/threads.hpp>
#include <skein/proc/process.hpp>
#include <skein/wire/decode.hpp>

#include <atomic>
#include <charconv>
#include <cstdlib>
#include <string>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

namespace skein::proc {

namespace detail {

/// What this process was started with: read once, taken once.
struct inherited_boot {
    bool is_child = false;
    std::optional<boot> mine;
    std::optional<error> unreadable;
    std::atomic_flag taken = ATOMIC_FLAG_INIT;
};

SKEIN_INLINE result<boot> read_boot(std::string_view number) {
    int inherited = -1; // never a standard file: reading from a terminal would wait for ever
    std::from_chars(number.data(), number.data() + number.size(), inherited);
    const unique_fd file(inherited < boot_file ? -1 : inherited);
    byte_buffer text;
    std::byte piece[4096];
    for (ssize_t n = 0; (n = ::read(file.get(), piece, sizeof piece)) > 0;)
        append(text, byte_span(piece, static_cast<std::size_t>(n)));
    auto got = wire::decode<boot_message>(text);
    if (!got)
        return error(errc::malformed, "the boot message of this process cannot be read")
            .with_hint(
                fmt::format("{} is set by skein for its children only: unset it", boot_variable));
    threads_of_start(got->threads);
    boot mine;
    mine.role = std::move(got->role);
    mine.name = std::move(got->name);
    mine.message = std::move(got->message);
    if (got->socket >= 0 && ::fcntl(got->socket, F_SETFD, FD_CLOEXEC) == 0)
        mine.socket = unique_fd(got->socket);
    if (got->memory >= 0 && ::fcntl(got->memory, F_SETFD, FD_CLOEXEC) == 0)
        mine.memory = shared_memory::open(unique_fd(got->memory));
    for (int i = 0; i < got->files; ++i)
        if (::fcntl(first_file + i, F_SETFD, FD_CLOEXEC) == 0)
            mine.files.emplace_back(first_file + i);
    return mine;
}

/// Of "3" or "3:FILE_NUMBER": a program in between has kept the variable, and has closed the file or
/// has one of its own there (`exec 3>&1` in a script). So this is a child of a child.
SKEIN_INLINE bool is_taken_away(std::string_view number) {
    const auto own = fmt::format("{}", boot_file);
    const auto there = file_number(boot_file);
    if (number == own) return there == 0;
    return number.starts_with(own + ":") && number != fmt::format("{}:{}", own, there);
}

SKEIN_INLINE inherited_boot& boot_of_this_process() {
    static inherited_boot here;
    static const bool read = [] {
        adopt_last_words();
        const char* number = std::getenv(boot_variable);
        if (number == nullptr) return false;
        if (is_taken_away(number)) {
            ::unsetenv(boot_variable);
            return false;
        }
        here.is_child = true;
        auto got = [number]() -> result<boot> {
            try {
                return read_boot(number);
            } catch (const error& e) {
                return e;
            }
        }();
        if (got)
            here.mine = std::move(*got);
        else
            here.unreadable = got.error();
        ::unsetenv(boot_variable);
        return true;
    }();
    (void)read;
    return here;
}

} // namespace detail

SKEIN_INLINE bool started_as(std::string_view role) noexcept {
    static const std::string mine = [] { // the role stays known when the boot has been taken
        const auto& here = detail::boot_of_this_process();
        return here.mine ? here.mine->role : std::string();
    }();
    const auto& here = detail::boot_of_this_process();
    return here.unreadable || (here.is_child && mine == role);
}

SKEIN_INLINE std::optional<boot> take_boot(std::string_view role) {
    if (!started_as(role)) return std::nullopt;
    auto& here = detail::boot_of_this_process();
    if (here.unreadable) throw *here.unreadable;
    if (here.taken.test_and_set()) return std::nullopt;
    return std::move(here.mine);
}

} // namespace skein::proc
