// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/detail/key_files.hpp.

#include <skein/core/error.hpp>
#include <skein/core/file_beside.hpp>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

namespace skein::cluster::detail {

struct key_files::state {
    std::mutex mutex; // guards the other two
    std::map<std::string, std::weak_ptr<const file>> by_path;
    std::set<std::string> cleared; ///< folders
};

SKEIN_INLINE key_files::key_files() : state_(std::make_shared<state>()) {}

SKEIN_INLINE key_files::handle key_files::keep(const std::string& folder, const net::token& key) {
    const auto keys = folder + "/keys";
    const auto path = fmt::format("{}/{}.{:x}", keys,
                                  net::key_kind_names.at(static_cast<std::size_t>(key.name().kind)),
                                  key.name().number);
    const std::lock_guard held(state_->mutex);
    if (auto there = state_->by_path[path].lock()) return there;
    std::error_code none;
    if (state_->cleared.insert(folder).second) {
        std::filesystem::remove_all(keys, none);
        std::filesystem::remove(folder + "/token", none);
    }
    std::filesystem::create_directories(keys, none);
    (void)::chmod(keys.c_str(), 0700);
    file_beside fresh(path + ".new", 0600, left_over::removed);
    if (!fresh || ::fchmod(fresh.get(), 0600) != 0 || !fresh.append(as_bytes(key.to_text())) ||
        !fresh.take_place(path))
        throw error(errc::io, fmt::format("{} cannot be written: {}", path, errno_text(errno)));
    auto made = std::make_shared<const file>(state_, path);
    state_->by_path[path] = made;
    return made;
}

SKEIN_INLINE key_files::file::file(std::shared_ptr<state> of, std::string path)
    : of_(std::move(of)), path_(std::move(path)) {}
SKEIN_INLINE key_files::file::~file() {
    const std::lock_guard held(of_->mutex);
    const auto found = of_->by_path.find(path_);
    if (found == of_->by_path.end() || !found->second.expired())
        return; // another one has its place
    of_->by_path.erase(found);
    (void)::unlink(path_.c_str());
}

} // namespace skein::cluster::detail
