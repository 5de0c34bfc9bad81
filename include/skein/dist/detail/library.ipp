// SPDX-License-Identifier: Apache-2.0
#pragma once
// The door to dlopen.

#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <dlfcn.h>
#include <link.h>

namespace skein::dist {

namespace detail {

SKEIN_INLINE std::string path_of(void* handle, const std::string& name) {
    struct link_map* map = nullptr;
    const bool known = ::dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr &&
                       map->l_name != nullptr && map->l_name[0] != '\0';
    return known ? map->l_name : name;
}

} // namespace detail

SKEIN_INLINE result<shared_library> shared_library::find(const std::vector<std::string>& names) {
    for (const auto& name : names) {
        if (void* const handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE))
            return shared_library(handle, detail::path_of(handle, name), true);
    }
    std::vector<std::string> said;
    for (const auto& name : names) {
        if (void* const handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE))
            return shared_library(handle, detail::path_of(handle, name), false);
        const char* const why = ::dlerror();
        said.emplace_back(why != nullptr ? why : name + ": cannot be loaded");
    }
    return error(errc::not_found, fmt::format("no library called {}", fmt::join(names, " or ")))
        .with_cause(fmt::format("{}", fmt::join(said, "; ")));
}

SKEIN_INLINE bool shared_library::is_loaded(const std::string& name) noexcept {
    void* const handle = ::dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (handle != nullptr) (void)::dlclose(handle); // the count that this look has added
    return handle != nullptr;
}

SKEIN_INLINE void* shared_library::symbol(const char* name) const noexcept {
    return ::dlsym(handle_, name);
}

} // namespace skein::dist
