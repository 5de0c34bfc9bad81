// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which of skein's flags somebody may have meant: --adress runs a program on this host, and nobody
// would know why.

#include <skein/core/config.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

namespace skein::program::detail {

/// Letters to be added, left out, changed, or swapped with their neighbour, to make one word of the
/// other.
[[nodiscard]] inline std::size_t letters_apart(std::string_view a, std::string_view b) {
    std::vector<std::size_t> last, row(b.size() + 1), next(b.size() + 1);
    for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
        next[0] = i;
        for (std::size_t j = 1; j <= b.size(); ++j) {
            const std::size_t changed = row[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
            next[j] = std::min({row[j] + 1, next[j - 1] + 1, changed});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                next[j] = std::min(next[j], last[j - 2] + 1);
        }
        last = std::exchange(row, next);
    }
    return row[b.size()];
}

/// The flag that an argument is nearly; empty: none. Short words are near to too many others: one
/// letter of them may be wrong, and never the first. `is_cluster`: those that are skein's beside
/// --head, --join and --address are, too.
[[nodiscard]] inline std::string_view near_flag(std::string_view argument, bool is_cluster) {
    constexpr std::array<std::string_view, 9> flags = {
        "--workers",    "--address",          "--join",       "--head",  "--prefix-output",
        "--skein-help", "--no-prefix-output", "--token-file", "--listen"};
    constexpr std::size_t always = 7;
    const auto word = argument.substr(0, argument.find('='));
    for (std::size_t i = 0; i < (is_cluster ? flags.size() : always); ++i) {
        const auto flag = flags[i];
        if (!word.starts_with(flag.substr(0, 3)) && !flag.substr(1).starts_with(word)) continue;
        const std::size_t most = flag.size() < 9 ? 1 : 2;
        if (word != flag && letters_apart(word, flag) <= most) return flag;
    }
    return {};
}

} // namespace skein::program::detail
