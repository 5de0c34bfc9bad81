// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/description.hpp>.

#include <fmt/format.h>

namespace skein::train {

SKEIN_INLINE description& description::add(std::string what, double value) {
    return add(std::move(what), std::string_view(fmt::format("{}", value)));
}

SKEIN_INLINE description& description::add(std::string what, std::string_view value) {
    settings.emplace_back(std::move(what), value);
    return *this;
}

} // namespace skein::train
