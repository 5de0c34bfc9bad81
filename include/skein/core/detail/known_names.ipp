// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of core/known_names.hpp.

namespace skein {

SKEIN_INLINE void name_list::add(std::string_view name) {
    if (++count_ > shown) return;
    list_ += count_ == 1 ? "\"" : ", \"";
    for (const char c : name) list_ += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
    list_ += '"';
}

SKEIN_INLINE std::string name_list::text(std::string_view none) const {
    if (count_ == 0) return std::string(none);
    auto out = "there are: " + list_;
    if (count_ > shown) out += " and " + std::to_string(count_ - shown) + " more";
    return out;
}

} // namespace skein
