// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of proc/gpus.hpp.

#include <skein/core/error.hpp>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <system_error>

#include <glob.h>

#include <fmt/format.h>

namespace skein::proc {

namespace detail {

/// Files of NVIDIA's driver, one a gpu.
[[nodiscard]] SKEIN_INLINE std::size_t gpu_files() {
    ::glob_t found{};
    const auto there =
        ::glob("/dev/nvidia[0-9]*", 0, nullptr, &found) == 0 ? found.gl_pathc : std::size_t{0};
    ::globfree(&found);
    return there;
}

/// As strtol reads it: what follows the digits is not looked at. Nothing: no number, or a negative
/// one.
[[nodiscard]] SKEIN_INLINE std::optional<std::size_t> gpu_number(std::string_view text) {
    text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
    if (text.starts_with('+')) text.remove_prefix(1);
    std::size_t n = 0;
    const auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), n);
    if (bad != std::errc()) return std::nullopt;
    return n;
}

} // namespace detail

SKEIN_INLINE std::vector<std::string> gpus_of_variable(std::string_view text, std::size_t there) {
    std::vector<std::string> names;
    if (there == 0) return names;
    std::string_view kind; // of all of them
    for (const std::string_view one : {"GPU-", "MIG-"})
        if (text.starts_with(one)) kind = one;
    while (!text.empty() && names.size() < sched::gpu_set::most) {
        const auto end = std::min(text.find(','), text.size());
        std::string name(text.substr(0, end));
        text.remove_prefix(std::min(end + 1, text.size()));
        if (kind.empty()) {
            const auto number = detail::gpu_number(name);
            if (!number || *number >= there) break;
            name = std::to_string(*number);
        } else if (!name.starts_with(kind)) {
            break;
        }
        if (std::find(names.begin(), names.end(), name) != names.end()) return {};
        names.push_back(std::move(name));
    }
    return names;
}

SKEIN_INLINE std::vector<std::string> visible_gpus() {
    const auto there = std::min<std::size_t>(detail::gpu_files(), sched::gpu_set::most);
    if (const char* const seen = std::getenv(gpus_variable)) return gpus_of_variable(seen, there);
    std::vector<std::string> names;
    for (std::size_t i = 0; i < there; ++i) names.push_back(std::to_string(i));
    return names;
}

SKEIN_INLINE std::vector<std::string> gpus_to_offer(std::optional<sched::amount> asked,
                                                    std::string_view by) {
    auto names = visible_gpus();
    if (!asked) return names;
    sched::resources wanted;
    wanted.gpu = *asked;
    if (const auto good = check_total(wanted); !good) throw good.error();
    const auto n = static_cast<std::size_t>(asked->in_steps() / sched::amount::steps);
    const char* const seen = std::getenv(gpus_variable);
    if (names.empty() && seen == nullptr && detail::gpu_files() == 0) // others than NVIDIA's
        for (std::size_t i = 0; i < n; ++i) names.push_back(std::to_string(i));
    if (n > names.size()) {
        const auto said =
            seen != nullptr ? fmt::format(": {}={}", gpus_variable, seen) : std::string();
        throw error(errc::usage, fmt::format("{} offers {} gpus, but of {} on this host this "
                                             "process sees {}{}",
                                             by, n, detail::gpu_files(), names.size(), said))
            .with_hint("offer as many as there are, or none by name: those that can be seen are "
                       "offered");
    }
    names.resize(n);
    return names;
}

SKEIN_INLINE std::string gpus_by_name(sched::gpu_set gpus, const std::vector<std::string>& names) {
    if (names.empty()) return to_string(gpus);
    std::string out;
    for (int i = 0; i < sched::gpu_set::most; ++i)
        if (gpus.has(i) && static_cast<std::size_t>(i) < names.size())
            out += (out.empty() ? "" : ",") + names[static_cast<std::size_t>(i)];
    return out;
}

SKEIN_INLINE result<void> check_gpus_together(sched::amount asked,
                                              const std::vector<std::string>& names) {
    if (asked <= sched::amount(1) || names.empty() || !names.front().starts_with("MIG-")) return {};
    return error(
               errc::invalid_argument,
               fmt::format(".gpus = {}: the gpus here are parts of gpus (MIG), of which a process "
                           "sees one only",
                           to_string(asked)))
        .with_hint("ask for .gpus = 1 in each of several tasks, or offer whole gpus");
}

SKEIN_INLINE error with_gpu_reason(error why, sched::amount asked,
                                   const std::vector<std::string>& names) {
    const char* const seen = std::getenv(gpus_variable);
    const auto offered =
        sched::amount::of_steps(sched::amount::steps * static_cast<std::int64_t>(names.size()));
    if (asked > offered && seen != nullptr)
        why.with_hint(fmt::format("{}={} leaves this process {} of the gpus of this host",
                                  gpus_variable, seen, names.size()));
    return why;
}

} // namespace skein::proc
