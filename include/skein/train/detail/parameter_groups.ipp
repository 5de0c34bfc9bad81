// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/parameter_groups.hpp>.

#include <skein/core/error.hpp>

#include <cmath>

#include <fmt/format.h>

namespace skein::train {

namespace detail {

SKEIN_INLINE void check_group(const parameter_group& group, std::size_t number) {
    const auto refuse = [&](const std::string& what, const char* hint) {
        throw error(errc::usage, fmt::format("parameter group {} {}", number, what))
            .with_hint(hint);
    };
    if (!group.match) refuse("has no predicate", "set .match");
    if (!(group.lr_scale >= 0) || !std::isfinite(group.lr_scale))
        refuse(fmt::format("has lr_scale {}", group.lr_scale),
               "use a finite number that is not negative");
    if (group.weight_decay && (!(*group.weight_decay >= 0) || !std::isfinite(*group.weight_decay)))
        refuse(fmt::format("has weight decay {}", *group.weight_decay),
               "use a finite number that is not negative");
}

/// "a, b, c and 5 more"
SKEIN_INLINE std::string some_names(std::span<const parameter_info> parameters) {
    constexpr std::size_t most = 20;
    std::string names;
    for (std::size_t i = 0; i < parameters.size() && i < most; ++i)
        names += fmt::format("{}{}", i > 0 ? ", " : "", parameters[i].name);
    if (parameters.size() > most) names += fmt::format(" and {} more", parameters.size() - most);
    return names;
}

} // namespace detail

SKEIN_INLINE std::vector<update_effect> effects_of(
    const parameter_groups& groups, std::span<const parameter_info> parameters,
    const std::function<double(const parameter_info&)>& own_decay) {
    for (std::size_t g = 0; g < groups.size(); ++g) detail::check_group(groups[g], g + 1);
    std::vector<std::size_t> matched(groups.size(), 0), taken(groups.size(), 0);
    std::vector<update_effect> effects;
    for (const auto& p : parameters) {
        update_effect effect{.weight_decay = own_decay(p)};
        bool found = false;
        for (std::size_t g = 0; g < groups.size(); ++g) {
            if (!groups[g].match(p)) continue;
            matched[g] += 1;
            if (found) continue;
            found = true;
            taken[g] += 1;
            effect = {groups[g].lr_scale, groups[g].weight_decay.value_or(effect.weight_decay),
                      groups[g].frozen};
        }
        effects.push_back(effect);
    }
    for (std::size_t g = 0; g < groups.size(); ++g) {
        if (taken[g] > 0) continue;
        if (matched[g] > 0)
            throw error(
                errc::usage,
                fmt::format("all that parameter group {} matches belongs to groups before it",
                            g + 1))
                .with_hint("the first group that matches counts: put the narrower one first");
        throw error(errc::usage, fmt::format("parameter group {} matches none of the {} parameters",
                                             g + 1, parameters.size()))
            .with_hint("there are " + detail::some_names(parameters));
    }
    return effects;
}

} // namespace skein::train
