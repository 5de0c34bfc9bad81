// SPDX-License-Identifier: Apache-2.0
#pragma once
// What git says of a folder's files. Blocks until git has answered.

#include <skein/core/config.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace skein::cluster::detail {

/// How git answered.
struct git_answer {
    int code = 0; ///< as git exits
    std::string output, errors;
};

/// Runs git there; nothing: it is not installed.
///   input   its standard input
///   errors  io: it could not be run, or was killed
[[nodiscard]] std::optional<git_answer> run_git(const std::string& folder,
                                                std::vector<std::string> arguments,
                                                std::string_view input = {});

/// Whether the folder, or one above it, has a `.git`.
[[nodiscard]] bool is_below_git(const std::string& folder);

/// The files that git tracks in the folder or does not ignore, relative to it; a repository inside
/// is one name with a slash behind it, or one that is a folder. Nothing: git's rules do not count
/// there, for there is no git or no work tree, or the folder as a whole is ignored.
///   errors  io: git says no
[[nodiscard]] std::optional<std::vector<std::string>> git_files(const std::string& folder);

/// Those of the paths that git ignores.
///   errors  io
[[nodiscard]] std::vector<std::string> git_ignored(const std::string& folder,
                                                   const std::vector<std::string>& paths);

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/git_files.ipp>
#endif
