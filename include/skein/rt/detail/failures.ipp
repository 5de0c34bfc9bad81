// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/rt/failures.hpp>. The text is 16 digits of codes, then '\n' and a type's name
// for each type.

#include <skein/core/type_name.hpp>
#include <skein/rt/remote_error.hpp>

#include <charconv>

#include <fmt/format.h>

namespace skein {

SKEIN_INLINE std::string failures::text() const {
    if (empty()) return {};
    auto out = fmt::format("{:016x}", codes_);
    for (std::size_t i = 0; i < count_; ++i) out += '\n' + type_name(*types_[i]);
    return out;
}

namespace rt {

SKEIN_INLINE result<known_failures> known_failures::parse(std::string_view text) {
    constexpr std::size_t digits = 16;
    known_failures out;
    const auto number = text.substr(0, digits);
    const auto [end, fault] =
        std::from_chars(number.data(), number.data() + number.size(), out.codes_, 16);
    const bool is_whole = number.size() == digits && end == number.data() + digits;
    if (fault != std::errc() || !is_whole || (text.size() > digits && text[digits] != '\n'))
        return error(errc::malformed, "the failures after which a task runs again cannot be read");
    out.text_ = text;
    return out;
}

SKEIN_INLINE bool known_failures::has(const failure& why) const {
    const auto code = static_cast<unsigned>(why.what.code());
    if (code < 64 && (codes_ >> code & 1U) != 0) return true;
    if (!why.from) return false;
    const auto wanted = '\n' + why.from->type;
    for (auto at = text_.find(wanted); at != std::string::npos; at = text_.find(wanted, at + 1)) {
        const auto end = at + wanted.size();
        if (end == text_.size() || text_[end] == '\n') return true;
    }
    return false;
}

} // namespace rt
} // namespace skein
