// SPDX-License-Identifier: Apache-2.0
#pragma once
// What an optimizer or a schedule says of itself: a name, and the settings that all ranks must have
// alike.
//
//     void describe(description& to) const { to.add("beta1", beta1).add("beta2", beta2); }

#include <skein/core/config.hpp>

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace skein::train {

/// A name, and settings in the order they were added. Numbers become the shortest text that reads
/// back as the same number.
struct description {
    std::string name{};
    std::vector<std::pair<std::string, std::string>> settings{};

    description& add(std::string what, double value);
    description& add(std::string what, std::string_view value);
    template <std::same_as<bool> T>
    description& add(std::string what, T value) {
        return add(std::move(what), std::string_view(value ? "true" : "false"));
    }
    template <std::integral T>
        requires(!std::same_as<T, bool>)
    description& add(std::string what, T value) {
        return add(std::move(what), std::string_view(std::to_string(value)));
    }
    description& add(std::string what, const char* value) {
        return add(std::move(what), std::string_view(value));
    }

    friend bool operator==(const description&, const description&) = default;
};

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/description.ipp>
#endif
