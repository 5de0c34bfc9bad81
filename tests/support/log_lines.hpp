// SPDX-License-Identifier: Apache-2.0
#pragma once
// What is logged while it lives: the warnings of one component, or of all (""), as "text key=value
// key=value".

#include <skein/core/log.hpp>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::test {

/// For tests with one thread: nothing else may log meanwhile.
struct log_lines {
    std::vector<std::string> seen;

    explicit log_lines(std::string of, logging::level least = logging::level::warn) {
        logging::set_sink([this, component = std::move(of), least](const logging::record& r) {
            if ((!component.empty() && r.component != component) || r.severity < least) return;
            std::string line(r.text);
            for (const auto& f : r.fields) line += fmt::format(" {}={}", f.key, f.value);
            seen.push_back(std::move(line));
        });
    }
    log_lines(const log_lines&) = delete;
    log_lines& operator=(const log_lines&) = delete;
    ~log_lines() { logging::set_sink(nullptr); }

    /// Lines with this in them.
    [[nodiscard]] std::size_t count(std::string_view part) const {
        return static_cast<std::size_t>(
            std::count_if(seen.begin(), seen.end(),
                          [&](const auto& line) { return line.find(part) != std::string::npos; }));
    }
    /// All of them, for INFO.
    [[nodiscard]] std::string text() const { return fmt::format("{}", fmt::join(seen, "\n")); }
};

} // namespace skein::test
