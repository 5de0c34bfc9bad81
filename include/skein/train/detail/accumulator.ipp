// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/accumulator.hpp>.

#include <skein/core/error.hpp>
#include <skein/core/known_names.hpp>
#include <skein/core/printable.hpp>

#include <fmt/core.h>

namespace skein::train {

SKEIN_INLINE double epoch_totals::operator[](std::string_view name) const {
    if (const auto found = sums_.find(std::string(name)); found != sums_.end())
        return found->second;
    name_list list;
    for (const auto& [known, sum] : sums_) list.add(known);
    throw error(errc::not_found,
                fmt::format("nothing was added to '{}' in epoch {}", printable(name), epoch_))
        .with_hint(list.text("there are no sums"));
}

SKEIN_INLINE double epoch_totals::get(std::string_view name, double otherwise) const {
    const auto found = sums_.find(std::string(name));
    return found != sums_.end() ? found->second : otherwise;
}

namespace detail {
[[noreturn]] SKEIN_INLINE void left_epoch(std::uint64_t number) {
    throw error(errc::usage, fmt::format("epoch {} was left before its last step", number))
        .with_hint("end the run with session.request_stop(), or leave both loops");
}
} // namespace detail

} // namespace skein::train
