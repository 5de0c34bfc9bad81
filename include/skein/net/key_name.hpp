// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which key a peer has proven in its handshake: the token of the world itself, or one that was
// derived from it and opens less. What each of them opens is up to who listens.
//
//     const auto& from = link->peer().key;
//     if (from.kind == net::key_kind::attempt) ... from.number

#include <skein/core/config.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace skein::net {

/// What a key is for. The numbers are on the wire: they keep their meaning.
enum class key_kind : std::uint16_t {
    cluster = 0, ///< the token itself
    node,
    attempt,      ///< of a job; its number is that of the attempt's driver
    space_server, ///< of a namespace; its number is that of its driver
    submit,       ///< jobs
    view,         ///< look at things
};

/// Their names, by number; in the text of a key, too.
inline constexpr std::array<std::string_view, 6> key_kind_names = {
    "cluster", "node", "attempt", "space-server", "submit", "view"};

/// A key without what is secret of it.
struct key_name {
    key_kind kind = key_kind::cluster; ///< a newer release may have others
    std::uint64_t number = 0;          ///< which of its kind

    friend bool operator==(const key_name&, const key_name&) = default;
};

[[nodiscard]] constexpr bool is_known(key_kind kind) noexcept {
    return static_cast<std::size_t>(kind) < key_kind_names.size();
}

/// "a view key", "the cluster's token", "a key of kind 77".
[[nodiscard]] inline std::string to_string(key_kind kind) {
    if (kind == key_kind::cluster) return "the cluster's token";
    if (!is_known(kind)) return fmt::format("a key of kind {}", static_cast<unsigned>(kind));
    const bool vowel = kind == key_kind::attempt;
    return fmt::format("{} {} key", vowel ? "an" : "a",
                       key_kind_names[static_cast<std::size_t>(kind)]);
}

} // namespace skein::net
