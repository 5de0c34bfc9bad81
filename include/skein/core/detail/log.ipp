// SPDX-License-Identifier: Apache-2.0
#pragma once
// How log lines are made and where they go.

#include <skein/core/printable.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <mutex>
#include <string>

#include <sys/ioctl.h>
#include <unistd.h>

namespace skein::logging {

SKEIN_INLINE void append_json_string(std::string& to, std::string_view text) {
    to += '"';
    while (!text.empty()) {
        const auto bytes = skein::detail::utf8_length(text);
        const auto one = text.substr(0, std::max<std::size_t>(bytes, 1));
        text.remove_prefix(one.size());
        switch (one[0]) {
        case '"': to += "\\\""; break;
        case '\\': to += "\\\\"; break;
        case '\n': to += "\\n"; break;
        case '\r': to += "\\r"; break;
        case '\t': to += "\\t"; break;
        default:
            if (bytes == 0)
                to += "\\ufffd";
            else if (is_control(one[0]) || skein::detail::is_c1(one)) // a C1 one is its second byte
                to += fmt::format("\\u{:04x}",
                                  static_cast<unsigned>(static_cast<unsigned char>(one.back())));
            else
                to += one;
        }
    }
    to += '"';
}

SKEIN_INLINE std::string format_text(const record& r) {
    const std::time_t seconds = static_cast<std::time_t>(r.wall.count() / 1000);
    std::tm parts{};
    ::localtime_r(&seconds, &parts);
    std::string line =
        fmt::format("{:02}:{:02}:{:02}.{:03} {} {} ", parts.tm_hour, parts.tm_min, parts.tm_sec,
                    r.wall.count() % 1000, "TDIWE?"[static_cast<int>(r.severity)], r.component);
    std::string text(
        r.text); // it may come from a peer: no escape sequences for the reader's terminal
    std::replace(text.begin(), text.end(), '\n', ' ');
    line += printable(text);
    for (const auto& f : r.fields) {
        line += ' ';
        line += f.key;
        line += '=';
        if (f.value.empty() || f.value.find_first_of(" \"=") != std::string::npos ||
            printable(f.value) != f.value)
            append_json_string(line, f.value);
        else
            line += f.value;
    }
    return line;
}

SKEIN_INLINE std::string format_json(const record& r) {
    static constexpr std::string_view names[] = {"trace", "debug", "info", "warn", "error", "off"};
    std::string line =
        fmt::format("{{\"time_ms\":{},\"level\":\"{}\",\"component\":", r.wall.count(),
                    names[static_cast<int>(r.severity)]);
    append_json_string(line, r.component);
    line += ",\"text\":";
    append_json_string(line, r.text);
    for (const auto& f : r.fields) {
        line += ',';
        append_json_string(line, f.key);
        line += ':';
        if (f.is_number)
            line += f.value;
        else
            append_json_string(line, f.value);
    }
    line += '}';
    return line;
}

namespace detail {
SKEIN_INLINE level level_from_environment() noexcept {
    const char* text = std::getenv("SKEIN_LOG_LEVEL");
    const std::string_view name = text == nullptr ? "info" : text;
    if (name == "trace") return level::trace;
    if (name == "debug") return level::debug;
    if (name == "warn") return level::warn;
    if (name == "error") return level::error;
    if (name == "off") return level::off;
    return level::info;
}

struct state {
    std::atomic<level> threshold{level_from_environment()};
    std::mutex mutex; // guards `target`
    std::shared_ptr<const sink> target;
};
SKEIN_INLINE state& the_state() {
    static state* const s = new state; // never destroyed: lines may come from late destructors
    return *s;
}

/// What brings a terminal's cursor to the start of a line that is empty, wherever others have left
/// it: spaces up to the right edge go on in the next line, if something stands on this one, and
/// wipe out what is right of a carriage return.
SKEIN_INLINE std::string beginning_of_line() {
    static const bool is_terminal = [] {
        const char* const kind = std::getenv("TERM");
        return ::isatty(STDERR_FILENO) == 1 && kind != nullptr && std::string_view(kind) != "dumb";
    }();
    if (!is_terminal) return {};
    struct ::winsize now{};
    const bool is_told = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &now) == 0 && now.ws_col > 1;
    return std::string(is_told ? now.ws_col - 1U : 79U, ' ') + '\r';
}

SKEIN_INLINE void to_stderr(const record& r) {
    static const bool json = [] {
        const char* mode = std::getenv("SKEIN_LOG");
        return mode != nullptr && std::string_view(mode) == "json";
    }();
    std::string line = json ? format_json(r) : beginning_of_line() + format_text(r);
    line += '\n';
    std::string_view rest = line;
    while (!rest.empty()) {
        const auto n = ::write(STDERR_FILENO, rest.data(), rest.size());
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return; // nowhere left to complain
        rest.remove_prefix(static_cast<std::size_t>(n));
    }
}
} // namespace detail

SKEIN_INLINE bool enabled(level l) noexcept {
    return l >= detail::the_state().threshold.load(std::memory_order_relaxed) && l != level::off;
}
SKEIN_INLINE void set_level(level l) noexcept { detail::the_state().threshold = l; }
SKEIN_INLINE level get_level() noexcept { return detail::the_state().threshold; }

SKEIN_INLINE void set_sink(sink to) {
    auto next = to ? std::make_shared<const sink>(std::move(to)) : nullptr;
    auto& s = detail::the_state();
    const std::lock_guard lock(s.mutex);
    s.target.swap(next);
}

SKEIN_INLINE void write(level severity, std::string_view component, std::string_view text,
                        std::span<const field> with) {
    if (!enabled(severity)) return;
    record r;
    r.severity = severity;
    r.component = component;
    r.text = text;
    r.fields = with;
    r.wall = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::system_clock::now().time_since_epoch());
    auto& s = detail::the_state();
    std::shared_ptr<const sink> target;
    {
        const std::lock_guard lock(s.mutex);
        target = s.target;
    }
    if (target)
        (*target)(r);
    else
        detail::to_stderr(r);
}

} // namespace skein::logging
