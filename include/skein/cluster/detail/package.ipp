// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/package.hpp.

#include <skein/core/printable.hpp>

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster {
namespace detail {

/// A path as a message has it: on one line, and no longer than that.
SKEIN_INLINE std::string shown_path(std::string_view path) {
    constexpr std::size_t most = 300;
    if (path.size() <= most) return fmt::format("'{}'", printable(path));
    return fmt::format("'{}...' ({} bytes)", printable(path.substr(0, most)), path.size());
}

SKEIN_INLINE error bad_path(std::string_view path, std::string_view why) {
    return error(errc::malformed, fmt::format("path {} of a package {}", shown_path(path), why));
}

SKEIN_INLINE std::string_view next_name(std::string_view& rest) noexcept {
    const auto slash = rest.find('/');
    const auto name = rest.substr(0, slash);
    rest = slash == std::string_view::npos ? std::string_view() : rest.substr(slash + 1);
    return name;
}

/// What is wrong with an entry for itself.
SKEIN_INLINE result<void> check_entry(const package_entry& e, const package_bounds& bounds) {
    const auto bad = [&](std::string_view why) -> result<void> {
        return error(errc::malformed, fmt::format("{} in a package {}", shown_path(e.path), why));
    };
    if (auto good = check_package_path(e.path, bounds); !good) return good;
    const bool is_file = e.kind == static_cast<std::uint8_t>(entry_kind::file);
    const bool is_link = e.kind == static_cast<std::uint8_t>(entry_kind::link);
    if (!is_file && !is_link && e.kind != static_cast<std::uint8_t>(entry_kind::folder))
        return bad(fmt::format("is of kind {}, which there is not", e.kind));
    if (e.mode > 0777 || (is_link && e.mode != 0))
        return bad(fmt::format("has mode {:o}: permission bits alone are kept", e.mode));
    if (!is_file && (e.size != 0 || e.digest != sha256_digest{}))
        return bad("has a size or digest and is no file");
    if (is_file && e.size == 0 && e.digest != sha256_of({}))
        return bad("is empty and has the digest of something else");
    if (!is_link)
        return e.link_to.empty() ? result<void>() : bad("points somewhere and is no link");
    return check_package_link(e.path, e.link_to, bounds);
}

/// The folders that a path needs and the one before it, in order, does not.
SKEIN_INLINE std::size_t new_folders(std::string_view path, std::string_view before) noexcept {
    const auto differ = std::mismatch(path.begin(), path.end(), before.begin(), before.end()).first;
    return static_cast<std::size_t>(std::count(differ, path.end(), '/'));
}

/// Files with one digest have one size.
SKEIN_INLINE result<void> check_sizes(const package_manifest& what) {
    std::vector<const package_entry*> files;
    for (const auto& e : what.entries)
        if (e.kind == static_cast<std::uint8_t>(entry_kind::file)) files.push_back(&e);
    std::sort(files.begin(), files.end(),
              [](const auto* a, const auto* b) { return a->digest < b->digest; });
    for (std::size_t i = 1; i < files.size(); ++i)
        if (files[i]->digest == files[i - 1]->digest && files[i]->size != files[i - 1]->size)
            return error(errc::malformed,
                         fmt::format("{} and {} in a package have one digest and two sizes",
                                     shown_path(files[i - 1]->path), shown_path(files[i]->path)));
    return {};
}

} // namespace detail

SKEIN_INLINE bool path_less(std::string_view a, std::string_view b) noexcept {
    return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
        const auto rank = [](char c) {
            return c == '/' ? 0 : static_cast<int>(static_cast<unsigned char>(c)) + 1;
        };
        return rank(x) < rank(y);
    });
}

SKEIN_INLINE result<void> check_package_path(std::string_view path, const package_bounds& bounds) {
    if (path.empty()) return detail::bad_path(path, "is empty");
    if (path.size() > bounds.path_bytes)
        return error(errc::too_large, fmt::format("path {} of a package is longer than {} bytes",
                                                  detail::shown_path(path), bounds.path_bytes));
    if (path.front() == '/') return detail::bad_path(path, "is absolute");
    if (path.back() == '/') return detail::bad_path(path, "ends with a slash");
    if (path.find('\0') != std::string_view::npos) return detail::bad_path(path, "has a zero byte");
    std::size_t depth = 0;
    for (auto rest = path; !rest.empty();) {
        const auto name = detail::next_name(rest);
        if (name.empty()) return detail::bad_path(path, "has an empty name");
        if (name == "." || name == "..")
            return detail::bad_path(path, fmt::format("has '{}' among its names", name));
        if (name.size() > bounds.name_bytes)
            return error(errc::too_large, fmt::format("a name in path {} of a package is longer "
                                                      "than {} bytes",
                                                      detail::shown_path(path), bounds.name_bytes));
        if (++depth > bounds.depth)
            return error(errc::too_large,
                         fmt::format("path {} of a package is deeper than {} names",
                                     detail::shown_path(path), bounds.depth));
    }
    return {};
}

SKEIN_INLINE result<void> check_package_link(std::string_view path, std::string_view link_to,
                                             const package_bounds& bounds) {
    const auto bad = [&](std::string_view why) {
        return error(errc::malformed,
                     fmt::format("link {} in a package points at {}, {}", detail::shown_path(path),
                                 detail::shown_path(link_to), why));
    };
    if (link_to.empty()) return bad("which is nothing");
    if (link_to.size() >= bounds.path_bytes)
        return error(errc::too_large, fmt::format("link {} in a package points at more than {} "
                                                  "bytes",
                                                  detail::shown_path(path), bounds.path_bytes - 1));
    if (link_to.find('\0') != std::string_view::npos) return bad("which has a zero byte");
    if (link_to.front() == '/') return bad("which is absolute");
    auto above = std::count(path.begin(), path.end(), '/');
    bool has_name = false;
    for (auto rest = link_to; !rest.empty();) {
        const auto name = detail::next_name(rest);
        if (name.empty() || name == ".") continue;
        if (name != "..") {
            has_name = true;
        } else if (has_name) {
            return bad("which has '..' behind a name");
        } else if (--above < 0) {
            return bad("which is outside the folder");
        }
    }
    return {};
}

SKEIN_INLINE result<void> check_package(const package_manifest& what,
                                        const package_bounds& bounds) {
    if (what.entries.size() > bounds.entries)
        return error(errc::too_large, fmt::format("a package of {} entries: {} are the most",
                                                  what.entries.size(), bounds.entries));
    std::uint64_t bytes = 0;
    std::size_t text = 0, folders = 0;
    std::string_view before;
    for (const auto& e : what.entries) {
        if (auto good = detail::check_entry(e, bounds); !good) return good;
        if (!before.empty()) {
            if (!path_less(before, e.path))
                return error(errc::malformed,
                             fmt::format("{} in a package comes twice, or not in order",
                                         detail::shown_path(e.path)));
            if (e.path.size() > before.size() && e.path[before.size()] == '/' &&
                e.path.starts_with(before))
                return error(errc::malformed,
                             fmt::format("{} in a package lies below {}, which is no folder or an "
                                         "empty one",
                                         detail::shown_path(e.path), detail::shown_path(before)));
        }
        folders += detail::new_folders(e.path, before);
        text += e.path.size() + e.link_to.size();
        if (e.size > bounds.bytes - bytes)
            return error(errc::too_large,
                         fmt::format("a package of more than {} bytes", bounds.bytes));
        bytes += e.size;
        before = e.path;
    }
    if (folders > bounds.entries)
        return error(errc::too_large, fmt::format("a package of {} folders: {} are the most",
                                                  folders, bounds.entries));
    if (text > bounds.text_bytes)
        return error(errc::too_large,
                     fmt::format("the paths of a package have {} bytes: {} are the most", text,
                                 bounds.text_bytes));
    return detail::check_sizes(what);
}

SKEIN_INLINE std::string package_manifest::id() const {
    sha256 hash;
    hash.update("skein package 1\n");
    for (const auto& e : entries) {
        hash.update(fmt::format("{} {:o} {} {} {} {}\n", e.kind, e.mode, e.size, to_hex(e.digest),
                                e.path.size(), e.link_to.size()));
        hash.update(e.path);
        hash.update(e.link_to);
    }
    const auto digest = hash.finish();
    return to_hex(digest);
}

SKEIN_INLINE std::uint64_t package_manifest::bytes() const noexcept {
    std::uint64_t sum = 0;
    for (const auto& e : entries) sum += e.size;
    return sum;
}

} // namespace skein::cluster
