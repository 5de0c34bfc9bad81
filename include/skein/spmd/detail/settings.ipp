// SPDX-License-Identifier: Apache-2.0
#pragma once
// Comparing settings: few of them, so that a plain search will do.

#include <skein/core/fnv.hpp>
#include <skein/proc/build_id.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace skein::spmd {

SKEIN_INLINE std::uint64_t hash_of(const std::vector<setting>& settings) {
    fnv1a hash;
    for (const auto& s : settings) {
        for (const auto* text : {&s.name, &s.value}) {
            hash.number(text->size()); // "ab" "c" is not "a" "bc"
            hash.text(*text);
        }
    }
    return hash.value();
}

namespace detail {

[[nodiscard]] SKEIN_INLINE const setting* find_setting(const std::vector<setting>& in,
                                                       const std::string& name) {
    const auto at =
        std::find_if(in.begin(), in.end(), [&](const auto& s) { return s.name == name; });
    return at == in.end() ? nullptr : &*at;
}

inline constexpr const char* build_name = "build";

} // namespace detail

SKEIN_INLINE setting build_setting() {
    return {detail::build_name, fmt::format("{:016x}", proc::build_id())};
}

SKEIN_INLINE std::optional<error> difference(int rank, const std::vector<setting>& theirs,
                                             int reference, const std::vector<setting>& ours) {
    if (theirs == ours) return std::nullopt;
    constexpr std::size_t most = 4; // named in one line
    std::vector<std::string> found;
    bool is_build = true;
    const auto compare = [&](const std::string& name) {
        const auto* left = detail::find_setting(theirs, name);
        const auto* right = detail::find_setting(ours, name);
        if (left != nullptr && right != nullptr && left->value == right->value) return;
        found.push_back(fmt::format(
            "rank {} has {} {}, {} {}", rank, name, left != nullptr ? left->value : "not at all",
            reference < 0 ? "the others have" : fmt::format("rank {} has", reference),
            right != nullptr ? right->value : "none"));
        is_build = is_build && name == detail::build_name;
    };
    for (const auto& s : ours) compare(s.name);
    for (const auto& s : theirs) {
        if (detail::find_setting(ours, s.name) == nullptr) compare(s.name);
    }
    if (found.empty()) {
        found.push_back(fmt::format("rank {} has them in another order", rank));
        is_build = false;
    }
    std::string text = "the ranks' settings differ: ";
    for (std::size_t i = 0; i < found.size() && i < most; ++i)
        text += (i > 0 ? "; " : "") + found[i];
    if (found.size() > most) text += fmt::format("; and {} more", found.size() - most);
    return error(errc::mismatch, std::move(text))
        .with_hint(is_build ? "start the same file of the program on every host; a job that runs "
                              "while its program is built anew is started again"
                            : "start every rank with the same options");
}

SKEIN_INLINE void require_same(rendezvous& world, std::string_view key,
                               const std::vector<setting>& mine) {
    if (world.world_size() == 1) return;
    const auto all = world.exchange(key, wire::encode(mine));
    const auto first = wire::decode<std::vector<setting>>(all.front()).value();
    for (std::size_t r = 1; r < all.size(); ++r) {
        if (all[r] == all.front()) continue;
        const auto other = wire::decode<std::vector<setting>>(all[r]).value();
        if (auto why = difference(static_cast<int>(r), other, 0, first)) throw *why;
    }
}

} // namespace skein::spmd
