// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of sched/task_environment.hpp.

#include <skein/core/error.hpp>

#include <algorithm>

#include <fmt/format.h>

namespace skein::sched {

namespace detail {

[[nodiscard]] SKEIN_INLINE bool is_variable_name(std::string_view name) {
    const auto is_letter = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    };
    return !name.empty() && is_letter(name.front()) &&
           std::all_of(name.begin(), name.end(),
                       [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); });
}

/// Why a line is no variable of a task.
[[nodiscard]] SKEIN_INLINE result<void> check_variable(std::string_view line) {
    const auto name = line.substr(0, line.find('='));
    if (name.size() == line.size())
        return error(errc::invalid_argument, fmt::format(".env: \"{}\" has no =", line))
            .with_hint("a variable a line: \"NAME=VALUE\\nOTHER=VALUE\"");
    if (!is_variable_name(name))
        return error(errc::invalid_argument,
                     fmt::format(".env: \"{}\" is no name of a variable", name))
            .with_hint("letters, digits and _, no digit first");
    if (name.starts_with("SKEIN_"))
        return error(errc::invalid_argument, fmt::format(".env: {} is skein's own", name))
            .with_hint("set it where the program is started");
    if (name == "CUDA_VISIBLE_DEVICES")
        return error(errc::invalid_argument, fmt::format(".env: {} is set by skein", name))
            .with_hint(".gpus = n gives a task n gpus and shows it these alone");
    return {};
}

} // namespace detail

SKEIN_INLINE result<task_environment> parse_task_environment(std::string_view env,
                                                             std::string_view folder) {
    task_environment out;
    if (env.size() > task_environment::most_bytes)
        return error(errc::too_large, fmt::format(".env has {} bytes, at most {} are taken",
                                                  env.size(), task_environment::most_bytes));
    if (folder.size() > task_environment::most_folder_bytes)
        return error(errc::too_large,
                     fmt::format(".cwd has {} bytes, at most {} are taken", folder.size(),
                                 task_environment::most_folder_bytes));
    if (env.find('\0') != env.npos ||
        folder.find_first_of(std::string_view("\0\n", 2)) != folder.npos)
        return error(errc::invalid_argument, ".env or .cwd has a byte that cannot be in it");
    if (!folder.empty() && folder.front() != '/')
        return error(errc::invalid_argument, fmt::format(".cwd = \"{}\" is not absolute", folder))
            .with_hint("the worker may run on another host: begin with /");
    while (!env.empty()) {
        const auto line = env.substr(0, env.find('\n'));
        env.remove_prefix(std::min(line.size() + 1, env.size()));
        if (line.empty()) continue;
        if (const auto good = detail::check_variable(line); !good) return good.error();
        const auto at = line.find('=');
        out.variables.emplace_back(line.substr(0, at), line.substr(at + 1));
    }
    std::sort(out.variables.begin(), out.variables.end());
    const auto twice =
        std::adjacent_find(out.variables.begin(), out.variables.end(),
                           [](const auto& a, const auto& b) { return a.first == b.first; });
    if (twice != out.variables.end())
        return error(errc::invalid_argument, fmt::format(".env has {} twice", twice->first));
    out.folder = folder;
    return out;
}

SKEIN_INLINE std::string variables_as_text(const task_environment& of) {
    std::string out;
    for (const auto& [name, value] : of.variables)
        out += fmt::format("{}{}={}", out.empty() ? "" : "\n", name, value);
    return out;
}

} // namespace skein::sched
