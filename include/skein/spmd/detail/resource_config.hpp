// SPDX-License-Identifier: Apache-2.0
#pragma once
// What SageMaker tells of the hosts of a job: SM_HOSTS, a list of names, and SM_RESOURCE_CONFIG, an
// object with groups of like hosts.

#include <skein/core/error.hpp>
#include <skein/wire/json.hpp>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::spmd::detail {

/// Like hosts.
struct host_group {
    std::string name{};
    std::vector<std::string> hosts{};
};

/// Of SM_RESOURCE_CONFIG what says who does what.
struct resource_config {
    std::string current_host{}, current_group{}; ///< empty: it does not say
    std::vector<std::string> hosts{};
    std::vector<host_group> groups{};
};

/// A text; "" where it may be missing and is.
[[nodiscard]] inline std::string name_in(const json& object, const char* key) {
    if (!object.contains(key)) return {};
    return json_string(object, key).value();
}

/// ["algo-1", "algo-2"]
///   errors  malformed
[[nodiscard]] inline std::vector<std::string> names_of(const json& list) {
    if (!list.is_array()) throw error(errc::malformed, "a list of names was expected");
    std::vector<std::string> out;
    for (const auto& name : list) {
        if (!name.is_string()) throw error(errc::malformed, "a name that is no text");
        out.push_back(name.get<std::string>());
        const auto is_of_name = [](unsigned char c) { return c > ' ' && c != 0x7f; };
        if (!std::ranges::all_of(out.back(), is_of_name))
            throw error(errc::malformed, "a name with a character that hosts have not");
    }
    return out;
}

///   errors  malformed, too_large
[[nodiscard]] inline resource_config read_resource_config(std::string_view text) {
    const auto object = parse_json(text).value();
    if (!object.is_object()) throw error(errc::malformed, "an object was expected");
    const auto hosts_of = [](const json& one) {
        return one.contains("hosts") ? names_of(one.at("hosts")) : std::vector<std::string>();
    };
    resource_config out{name_in(object, "current_host"), name_in(object, "current_group_name"),
                        hosts_of(object)};
    if (!object.contains("instance_groups")) return out;
    const auto& groups = object.at("instance_groups");
    if (!groups.is_array()) throw error(errc::malformed, "instance_groups is no list");
    for (const auto& group : groups) {
        if (!group.is_object()) throw error(errc::malformed, "an instance group is no object");
        out.groups.push_back({name_in(group, "instance_group_name"), hosts_of(group)});
        if (out.groups.back().name.empty())
            throw error(errc::malformed, "an instance group has no instance_group_name");
    }
    return out;
}

} // namespace skein::spmd::detail
