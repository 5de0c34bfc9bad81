// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/report/settings.hpp>.

#include <skein/wire/json.hpp>

namespace skein::report {

SKEIN_INLINE std::string settings::text() const {
    json object = json::object();
    for (const auto& [name, entry] : entries_)
        std::visit([&](const auto& value) { object[name] = value; }, entry.value());
    return dump_json(object);
}

} // namespace skein::report
