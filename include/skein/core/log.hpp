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

#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include <fmt/core.h>

namespace skein::logging {

/// How grave a line is; `off` is above all of them.
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
            is_number = v - v == T(0); // finite
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

/// Quotes text for JSON; bytes that are not UTF-8 become U+FFFD each, for no reader of JSON takes
/// them.
void append_json_string(std::string& to, std::string_view text);

/// The line for people, without a line end: HH:MM:SS.mmm I component text key=value; as printable()
/// has it.
[[nodiscard]] std::string format_text(const record& r);
/// The line for machines, without a line end.
[[nodiscard]] std::string format_json(const record& r);

/// True if a line of this level would be written: ask before building something expensive.
[[nodiscard]] bool enabled(level l) noexcept;
/// Lines below this level are not written. Any thread.
void set_level(level l) noexcept;
/// The level in force: that of set_level(), or of SKEIN_LOG_LEVEL.
[[nodiscard]] level get_level() noexcept;

/// Replaces where lines go (empty: standard error again). The sink is called from any thread.
using sink = std::function<void(const record&)>;
/// See sink. Any thread.
void set_sink(sink to);

/// Writes one line.
void write(level severity, std::string_view component, std::string_view text,
           std::span<const field> with);

/// The key=value pairs of a line, as `{{"peer", name}, {"bytes", n}}`.
using fields = std::initializer_list<field>;
/// write() for what only the author of the component wants to read.
inline void trace(std::string_view component, std::string_view text, fields f = {}) {
    write(level::trace, component, text, {f.begin(), f.size()});
}
/// write() at a level that others have chosen.
inline void at(level severity, std::string_view component, std::string_view text, fields f = {}) {
    write(severity, component, text, {f.begin(), f.size()});
}
/// write() for what helps to find a fault.
inline void debug(std::string_view component, std::string_view text, fields f = {}) {
    write(level::debug, component, text, {f.begin(), f.size()});
}
/// write() for what happens in the normal course of things.
inline void info(std::string_view component, std::string_view text, fields f = {}) {
    write(level::info, component, text, {f.begin(), f.size()});
}
/// write() for what went wrong and was dealt with.
inline void warn(std::string_view component, std::string_view text, fields f = {}) {
    write(level::warn, component, text, {f.begin(), f.size()});
}
/// write() for what went wrong and was not.
inline void error(std::string_view component, std::string_view text, fields f = {}) {
    write(level::error, component, text, {f.begin(), f.size()});
}

} // namespace skein::logging

#if SKEIN_HEADER_ONLY
#include <skein/core/detail/log.ipp>
#endif
