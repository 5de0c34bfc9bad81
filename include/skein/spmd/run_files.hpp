// SPDX-License-Identifier: Apache-2.0
#pragma once
// The folder for runs of a rank that runs on another host than the process that started its training:
// it is that one's, and is reached over the network (net/far_disk.hpp). To the rank it is at the path
// that it has there.
//
//     const spmd::run_files files(whole_path(config.runs_dir));   // as long as the rank lives
//
// Does nothing in all other processes. docs/design/0047-run-store.md, "Ranks on several nodes"

#include <skein/core/config.hpp>
#include <skein/core/mounted_folder.hpp>
#include <skein/net/far_disk.hpp>
#include <skein/spmd/environment.hpp>

#include <optional>
#include <string>

namespace skein::spmd {

/// What a rank is told: where the folder is served, "tcp:HOST:PORT". A host "*" is that of its group
/// or keeper.
inline constexpr const char* run_files_variable = "SKEIN_RUN_FILES";
/// And how it is called there.
inline constexpr const char* run_folder_variable = "SKEIN_RUN_FOLDER";

/// Of a process one, before it looks at files of its run.
class run_files {
public:
    ///   own  the folder for runs as this process calls it: the same one
    ///   errors  those of far_disk; invalid_argument: what it was told is no address
    explicit run_files(const std::string& own, const variable_reader& read = process_environment());
    run_files(const run_files&) = delete;
    run_files& operator=(const run_files&) = delete;

    /// Whether the folder is another host's.
    [[nodiscard]] bool are_far() const noexcept { return there_.has_value(); }

private:
    std::optional<net::far_disk> there_;
    std::optional<mounted_folder> here_;
};

} // namespace skein::spmd

#if SKEIN_HEADER_ONLY
#include <skein/spmd/detail/run_files.ipp>
#endif
