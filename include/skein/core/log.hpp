// SPDX-License-Identifier: Apache-2.0
#pragma once
// Structured log lines: one event, one line, text for people and JSON for machines.
//
//     logging::info("net", "connection accepted", {{"peer", name}, {"bytes", n}});
//     12:30:01.250 I net connection accepted peer=tcp:10.0.0.2:6380 bytes=120
//
// SKEIN_LOG_LEVEL = trace | debug | info | warn | error | off (default info), SKEIN_LOG = json for
// JSON lines. A line goes to standard error in one write, so that lines of several processes do not
// mix. Thread-safe.

#include <skein/core/config.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include <fmt/core.h>
#include <unistd.h>

namespace skein::logging {

enum class level : std::uint8_t { trace, debug, info, warn, error, off };

/// key=value of a line. Numbers stay numbers in JSON; everything else is text.
struct field {
    std::string key, value;
    bool is_number = false;

    template <class T>
    field(std::string_view name, const T& v) : key(name) {
        if constexpr (std::same_as<T, bool>) {
            value = v ? "true" : "false";
            is_number = true;
        } else if constexpr (std::is_floating_point_v<T>) {
            value = fmt::format("{}", v);
            is_number = std::isfinite(v);
        } else if constexpr (std::is_arithmetic_v<T> && !std::same_as<T, char>) {
            value = fmt::format("{}", v);
            is_number = true;
        } else if constexpr (std::convertible_to<const T&, std::string_view>) {
            value = std::string_view(v);
        } else if constexpr (requires { std::chrono::duration<double>(v); }) {
            value = fmt::format("{:.6g}s", std::chrono::duration<double>(v).count());
        } else {
            value = fmt::format("{}", v);
        }
    }
};

/// One event, as a sink gets it. Views live for the call only.
struct record {
    level severity = level::info;
    std::string_view component, text;
    std::span<const field> fields;
    std::chrono::milliseconds wall{}; ///< since 1970-01-01 UTC
};

/// A byte that a terminal may take for a command.
[[nodiscard]] constexpr bool is_control(char c) noexcept {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
}

/// Quotes text for JSON; bytes that are not UTF-8 are passed on as they are.
inline void append_json_string(std::string& to, std::string_view text) {
    to += '"';
    for (const char c : text) {
        switch (c) {
        case '"': to += "\\\""; break;
        case '\\': to += "\\\\"; break;
        case '\n': to += "\\n"; break;
        case '\r': to += "\\r"; break;
        case '\t': to += "\\t"; break;
        default:
            if (is_control(c))
                to += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
            else
                to += c;
        }
    }
    to += '"';
}

/// The line for people, without a line end: HH:MM:SS.mmm I component text key=value.
[[nodiscard]] inline std::string format_text(const record& r) {
    const std::time_t seconds = static_cast<std::time_t>(r.wall.count() / 1000);
    std::tm parts{};
    ::localtime_r(&seconds, &parts);
    std::string line =
        fmt::format("{:02}:{:02}:{:02}.{:03} {} {} ", parts.tm_hour, parts.tm_min, parts.tm_sec,
                    r.wall.count() % 1000, "TDIWE?"[static_cast<int>(r.severity)], r.component);
    for (const char c : r.text) {
        if (c == '\n' || !is_control(c))
            line += c == '\n' ? ' ' : c;
        else // text may come from a peer: no escape sequences for the reader's terminal
            line += fmt::format("\\x{:02x}", static_cast<unsigned>(c));
    }
    for (const auto& f : r.fields) {
        line += ' ';
        line += f.key;
        line += '=';
        if (f.value.empty() || f.value.find_first_of(" \"=") != std::string::npos ||
            std::any_of(f.value.begin(), f.value.end(), is_control))
            append_json_string(line, f.value);
        else
            line += f.value;
    }
    return line;
}

/// The line for machines, without a line end.
[[nodiscard]] inline std::string format_json(const record& r) {
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

using sink = std::function<void(const record&)>;

namespace detail {
inline level level_from_environment() noexcept {
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
inline state& the_state() {
    static state* const s = new state; // never destroyed: lines may come from late destructors
    return *s;
}

inline void to_stderr(const record& r) {
    static const bool json = [] {
        const char* mode = std::getenv("SKEIN_LOG");
        return mode != nullptr && std::string_view(mode) == "json";
    }();
    std::string line = json ? format_json(r) : format_text(r);
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

/// True if a line of this level would be written: ask before building something expensive.
[[nodiscard]] inline bool enabled(level l) noexcept {
    return l >= detail::the_state().threshold.load(std::memory_order_relaxed) && l != level::off;
}
inline void set_level(level l) noexcept { detail::the_state().threshold = l; }
[[nodiscard]] inline level get_level() noexcept { return detail::the_state().threshold; }

/// Replaces where lines go (empty: standard error again). The sink is called from any thread.
inline void set_sink(sink to) {
    auto next = to ? std::make_shared<const sink>(std::move(to)) : nullptr;
    auto& s = detail::the_state();
    const std::lock_guard lock(s.mutex);
    s.target.swap(next);
}

/// Writes one line.
inline void write(level severity, std::string_view component, std::string_view text,
                  std::span<const field> fields) {
    if (!enabled(severity)) return;
    record r;
    r.severity = severity;
    r.component = component;
    r.text = text;
    r.fields = fields;
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

using fields = std::initializer_list<field>;
inline void trace(std::string_view component, std::string_view text, fields f = {}) {
    write(level::trace, component, text, {f.begin(), f.size()});
}
inline void debug(std::string_view component, std::string_view text, fields f = {}) {
    write(level::debug, component, text, {f.begin(), f.size()});
}
inline void info(std::string_view component, std::string_view text, fields f = {}) {
    write(level::info, component, text, {f.begin(), f.size()});
}
inline void warn(std::string_view component, std::string_view text, fields f = {}) {
    write(level::warn, component, text, {f.begin(), f.size()});
}
inline void error(std::string_view component, std::string_view text, fields f = {}) {
    write(level::error, component, text, {f.begin(), f.size()});
}

} // namespace skein::logging
