// SPDX-License-Identifier: Apache-2.0
#pragma once
// The file in which a user keeps the token of a world or a cluster. Bodies in meeting.ipp.

#include <skein/core/config.hpp>
#include <skein/spmd/environment.hpp>

#include <string>

namespace skein::spmd::detail {

/// Its text.
///   errors  not_found, permission_denied (others may read it), invalid_argument (no regular file),
///           io
[[nodiscard]] std::string read_token_file(const std::string& path);
/// Makes the file with a new token, or with that text; only this user can read it. False: there is one,
/// or another process was first.
///   errors  not_found, permission_denied, disk_full, io
bool make_token_file(const std::string& path, const std::string& content = {});
/// ~/.config/skein/token, as XDG_CONFIG_HOME and HOME say; empty: neither is set.
[[nodiscard]] std::string own_token_file(const variable_reader& read);

} // namespace skein::spmd::detail
