// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/wrap.hpp>.

#include <skein/core/error.hpp>
#include <skein/core/type_name.hpp>
#include <skein/torch/torch.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include <fmt/core.h>

namespace skein::train::detail {

SKEIN_INLINE std::string types_of(torch::nn::Module& root) {
    std::map<std::string, int> found;
    for (const auto& each : root.modules(/*include_self=*/false)) {
        const auto& module = *each;
        found[type_name(typeid(module))] += 1;
    }
    std::string all;
    for (const auto& [name, times] : found)
        all += fmt::format("{}{} ({})", all.empty() ? "" : ", ", name, times);
    return all.empty() ? std::string("no submodule at all") : all;
}

SKEIN_INLINE unit_plan plan_blocks(torch::nn::Module& root,
                                   const std::vector<plan_parameter>& parameters,
                                   const std::function<bool(const torch::nn::Module&)>& is_block,
                                   const std::vector<const std::type_info*>& wanted) {
    unit_plan plan{{""}, {}};
    std::vector<std::string> prefixes{""}; // by unit
    for (const auto& item : root.named_modules(std::string(), /*include_self=*/false))
        if (is_block(*item.value())) {
            plan.names.push_back(item.key());
            prefixes.push_back(item.key() + ".");
        }
    if (plan.names.size() == 1) {
        std::string names;
        for (const auto* type : wanted) names += (names.empty() ? "" : ", ") + type_name(*type);
        throw error(errc::invalid_argument,
                    fmt::format("the model has no module of type {}", names))
            .with_hint("give auto_wrap the types of its blocks; there are: " + types_of(root));
    }
    const auto innermost = [&](std::string_view name) {
        std::size_t best = 0;
        for (std::size_t u = 1; u < prefixes.size(); ++u)
            if (name.starts_with(prefixes[u]) && prefixes[u].size() > prefixes[best].size())
                best = u;
        return best;
    };
    for (const auto& p : parameters) {
        std::set<std::size_t> units{innermost(p.name)};
        for (const auto& alias : p.aliases) units.insert(innermost(alias));
        plan.unit_of.push_back(units.size() == 1 ? *units.begin() : 0);
    }
    return plan;
}

SKEIN_INLINE unit_plan plan_runs(const std::vector<plan_parameter>& parameters,
                                 std::int64_t elements) {
    unit_plan plan;
    std::int64_t have = elements;
    for (const auto& p : parameters) {
        if (have >= elements) {
            plan.names.push_back(p.name);
            have = 0;
        }
        plan.unit_of.push_back(plan.names.size() - 1);
        have += p.count;
    }
    return plan;
}

SKEIN_INLINE unit_plan plan_buckets(const std::vector<plan_parameter>& parameters,
                                    std::size_t first_bytes, std::size_t bytes) {
    unit_plan plan;
    std::size_t buckets = 0, have = 0;
    plan.unit_of.resize(parameters.size());
    for (std::size_t i = parameters.size(); i-- > 0;) {
        if (buckets == 0 || have >= (buckets == 1 ? first_bytes : bytes)) {
            buckets += 1;
            have = 0;
        }
        plan.unit_of[i] = buckets - 1;
        have += static_cast<std::size_t>(padded_count(parameters[i].count)) * sizeof(float);
    }
    plan.names.resize(buckets);
    for (std::size_t i = parameters.size(); i-- > 0;) {
        plan.unit_of[i] = buckets - 1 - plan.unit_of[i];
        plan.names[plan.unit_of[i]] = parameters[i].name; // of the first, in the end
    }
    return plan;
}

} // namespace skein::train::detail
