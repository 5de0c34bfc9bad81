// SPDX-License-Identifier: Apache-2.0
#pragma once
// Groups of parameters that take another rate or weight decay, or none of the updates, chosen by
// name.
//
//     const auto embeds = [](const parameter_info& p) { return p.name.starts_with("embed"); };
//     const auto is_norm = [](const parameter_info& p) { return p.name.ends_with("norm.weight"); };
//     parameter_groups groups{{.match = embeds, .lr_scale = 0.1},
//                             {.match = is_norm, .weight_decay = 0.0}};
//     trainer.fit(model, {skein::AdamW{}, {.groups = groups}}, schedule, loss, data, held_out);
//
// The first group that matches counts; what no group matches is updated as the optimizer says.

#include <skein/core/config.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace skein::train {

/// What a predicate sees of a trainable parameter.
struct parameter_info {
    std::string_view name;               ///< as in named_parameters(); of tied parameters the first
    std::span<const std::int64_t> shape; ///< of all of it, also where a rank owns a part

    [[nodiscard]] std::size_t dims() const noexcept { return shape.size(); }
};

/// Parameters that a predicate chooses, and what is different for them.
struct parameter_group {
    /// Law: it depends on the parameter alone, and is equal on all ranks.
    std::function<bool(const parameter_info&)> match;
    double lr_scale = 1.0; ///< times the rate of the schedule
    /// In place of the optimizer's, for vectors too; none: the optimizer's own rule.
    std::optional<double> weight_decay{};
    /// No update, and no change of state. Its gradients are still computed and count for the norm:
    /// set requires_grad to false before fit() to save that, too.
    bool frozen = false;
};

/// In order of precedence: the first that matches a parameter counts.
using parameter_groups = std::vector<parameter_group>;

/// What the groups come to for one parameter.
struct update_effect {
    double lr_scale = 1.0;
    double weight_decay = 0.0;
    bool frozen = false;

    friend bool operator==(const update_effect&, const update_effect&) = default;
};

/// The effect on each parameter.
///   own_decay  of a parameter without a group, or whose group says none
///   errors     usage for a group without a predicate, with a senseless number, or that no
///              parameter is left for: it names the parameters there are
[[nodiscard]] std::vector<update_effect> effects_of(
    const parameter_groups& groups, std::span<const parameter_info> parameters,
    const std::function<double(const parameter_info&)>& own_decay);

} // namespace skein::train

namespace skein {
using train::parameter_group;
using train::parameter_groups;
using train::parameter_info;
} // namespace skein

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/parameter_groups.ipp>
#endif
