// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of core/mounted_folder.hpp.

#include <skein/core/error.hpp>

#include <climits>
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <string_view>

#include <unistd.h>

#include <fmt/core.h>

namespace skein {

namespace detail {

[[nodiscard]] SKEIN_INLINE std::atomic<const mounted_folder*>& mounted() noexcept {
    static std::atomic<const mounted_folder*> one = nullptr;
    return one;
}

/// Whether `path` is `folder`, or in it.
[[nodiscard]] inline bool is_in_folder(std::string_view path, std::string_view folder) noexcept {
    if (!path.starts_with(folder)) return false;
    return path.size() == folder.size() || path[folder.size()] == '/';
}

SKEIN_INLINE std::string absolute_path(const std::string& path) {
    const bool is_plain = path.starts_with('/') && path.find("/.") == path.npos &&
                          path.find("//") == path.npos && (path.size() == 1 || path.back() != '/');
    if (is_plain) return path;
    std::string whole = path;
    char here[PATH_MAX];
    if (!path.starts_with('/')) {
        if (::getcwd(here, sizeof here) == nullptr) return path;
        whole = std::string(here) + "/" + path;
    }
    std::string out;
    for (std::size_t begin = 0; begin < whole.size();) {
        const auto end = std::min(whole.find('/', begin), whole.size());
        const auto name = whole.substr(begin, end - begin);
        if (name == "..")
            out.resize(std::min(out.rfind('/'), out.size()));
        else if (!name.empty() && name != ".")
            out += "/" + name;
        begin = end + 1;
    }
    return out.empty() ? "/" : out;
}

} // namespace detail

SKEIN_INLINE mounted_folder::mounted_folder(std::string path, std::string alias, disk& there)
    : path_(detail::absolute_path(path)),
      alias_(alias.empty() ? std::string() : detail::absolute_path(alias)), there_(there) {
    const mounted_folder* none = nullptr;
    if (!detail::mounted().compare_exchange_strong(none, this))
        throw error(errc::already_exists,
                    fmt::format("{} cannot be another disk's: {} is already", path_, none->path_));
}

SKEIN_INLINE mounted_folder::~mounted_folder() { detail::mounted() = nullptr; }

SKEIN_INLINE disk* mounted_folder::of(const std::string& path) {
    const auto* const one = detail::mounted().load(std::memory_order_acquire);
    if (one == nullptr || path.empty()) return nullptr;
    return detail::is_in_folder(detail::absolute_path(path), one->path_) ? &one->there_ : nullptr;
}

SKEIN_INLINE bool mounted_folder::is_below(const std::string& path) {
    const auto* const one = detail::mounted().load(std::memory_order_acquire);
    if (one == nullptr || path.empty()) return false;
    const auto whole = detail::absolute_path(path);
    return whole == "/" || detail::is_in_folder(one->path_, whole);
}

SKEIN_INLINE std::string mounted_folder::name_of(const std::string& path) {
    const auto* const one = detail::mounted().load(std::memory_order_acquire);
    if (one == nullptr || one->alias_.empty()) return path;
    const auto whole = detail::absolute_path(path);
    if (!detail::is_in_folder(whole, one->alias_)) return path;
    return one->path_ + whole.substr(one->alias_.size());
}

} // namespace skein
