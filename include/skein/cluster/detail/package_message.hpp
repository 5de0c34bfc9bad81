// SPDX-License-Identifier: Apache-2.0
#pragma once
// Packages in messages: their bounds are those of packages, not those of small messages.

#include <skein/cluster/package.hpp>
#include <skein/cluster/run_store.hpp>
#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/core/sha256.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <string>

#include <fmt/format.h>

namespace skein::cluster::detail {

inline constexpr std::size_t most_offers = 16;  ///< folders of one session
inline constexpr std::size_t most_uploads = 64; ///< files of one session at a time

///   errors  those of wire::decode and check_package
[[nodiscard]] inline package_manifest read_manifest(byte_span text) {
    wire::limits bounds;
    bounds.max_memory = package_bounds().memory();
    auto read = wire::decode<package_manifest>(text, bounds);
    if (!read) throw read.error();
    if (const auto good = check_package(*read); !good) throw good.error();
    return std::move(*read);
}

/// What jobs leave behind: files alone, and more bytes than a job may bring.
///   errors  those of wire::decode and check_package
[[nodiscard]] inline package_manifest read_set(byte_span text) {
    const auto most = run_bounds();
    wire::limits bounds;
    bounds.max_memory = most.memory();
    auto read = wire::decode<package_manifest>(text, bounds);
    if (!read) throw read.error();
    if (const auto good = check_package(*read, most); !good) throw good.error();
    for (const auto& one : read->entries)
        if (one.kind != static_cast<std::uint8_t>(entry_kind::file))
            throw error(errc::malformed, fmt::format("{} is no file", one.path));
    return std::move(*read);
}

/// 64 hexadecimal digits.
///   errors  malformed
[[nodiscard]] inline sha256_digest read_digest(const std::string& text) {
    sha256_digest out{};
    if (!from_hex(text, out))
        throw error(errc::malformed, "a digest that is no 64 hexadecimal digits");
    return out;
}

} // namespace skein::cluster::detail
