// SPDX-License-Identifier: Apache-2.0
#pragma once
// Settings of a program by name: what its run writes into config.json beside its own.
//
//     trainer.describe({{"text", "docs"}, {"layers", 4}, {"lr", 3e-3}});

#include <skein/core/config.hpp>

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace skein::report {

/// One value: a truth, a number or a text.
class setting {
public:
    template <std::same_as<bool> T>
    setting(T truth) : value_(truth) {}
    template <std::signed_integral T>
    setting(T number) : value_(static_cast<std::int64_t>(number)) {}
    template <std::unsigned_integral T>
        requires(!std::same_as<T, bool>)
    setting(T number) : value_(static_cast<std::uint64_t>(number)) {}
    template <std::floating_point T>
    setting(T number) : value_(static_cast<double>(number)) {}
    template <std::convertible_to<std::string_view> T>
    setting(const T& text) : value_(std::string(std::string_view(text))) {}

    using value_type = std::variant<bool, std::int64_t, std::uint64_t, double, std::string>;
    [[nodiscard]] const value_type& value() const noexcept { return value_; }

private:
    value_type value_;
};

/// Names and values in the order given; of a name given twice the last counts.
class settings {
public:
    settings() = default;
    settings(std::initializer_list<std::pair<std::string, setting>> entries) : entries_(entries) {}

    settings& set(std::string name, setting value) {
        entries_.emplace_back(std::move(name), std::move(value));
        return *this;
    }
    /// What `more` names counts in place of an entry of the same name.
    settings& append(const settings& more) {
        entries_.insert(entries_.end(), more.entries_.begin(), more.entries_.end());
        return *this;
    }
    [[nodiscard]] bool empty() const noexcept { return entries_.empty(); }
    /// The text of one JSON object.
    [[nodiscard]] std::string text() const;

private:
    std::vector<std::pair<std::string, setting>> entries_;
};

} // namespace skein::report

#if SKEIN_HEADER_ONLY
#include <skein/report/detail/settings.ipp>
#endif
