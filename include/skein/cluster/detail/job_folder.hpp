// SPDX-License-Identifier: Apache-2.0
#pragma once
// What an agent has of a job on its disk: the command in its folder, and the tables that a training
// writes there.

#include <skein/core/config.hpp>
#include <skein/cluster/detail/node_messages.hpp>
#include <skein/core/bytes.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <sys/stat.h>

namespace skein::cluster::detail {

/// In the environment of all processes of an attempt.
inline constexpr const char* job_mark_variable = "SKEIN_JOB_MARK";
/// And of all attempts of one node.
inline constexpr const char* node_mark_variable = "SKEIN_JOB_NODE";

/// Of an entry process: the folder that is the same for all of its job, whatever it is on the node.
inline constexpr const char* job_folder_variable = "SKEIN_JOB_FOLDER";

/// What is to be executed for the first word of a command: as a shell finds it, in `folder`.
///   path    of its environment; empty: that of this process
///   errors  not_found, permission_denied
[[nodiscard]] std::string find_command(const std::string& word, const std::string& folder,
                                       const std::string& path);

/// A path in the folder of a job; "." is that folder.
[[nodiscard]] inline bool is_in_job(const std::string& path) {
    return !path.empty() && !path.starts_with('/');
}

/// Where a job runs; all of its attempts on a node in the same folder, which no other job has had.
[[nodiscard]] std::string folder_of_job(const std::string& storage,
                                        const start_worker_order& order);

/// Folders of jobs are kept for what the jobs have left in them; so many of one node.
inline constexpr std::size_t most_job_folders = 32;

inline constexpr std::size_t most_young_folders = 1024;

/// Removes the oldest ones, if there are more. None that was used within the last hour, as an
/// attempt may be to come, unless there are very many.
void make_room_for_jobs(const std::string& folder);
/// Makes a new one, with those above it.
///   errors  io, disk_full
void make_job_folder(const std::string& folder);
/// It is used now.
void touch(const std::string& folder) noexcept;

/// Of a table, that a head keeps.
inline constexpr std::size_t most_rows_bytes = std::size_t{4} << 20;

/// Reads what is appended to the newest NAME/metrics.csv below a folder, if that has been written
/// since this was made. Reads in bounded pieces, on the caller's thread.
class table_reader {
public:
    static constexpr std::size_t most_piece = std::size_t{256} << 10;
    static constexpr std::size_t most_told = 4096;

    explicit table_reader(std::string runs);
    /// Whole lines and where they begin; nothing: there are no new ones. Another table, and one that
    /// was written anew, begin with 0.
    [[nodiscard]] std::optional<std::pair<std::uint64_t, byte_buffer>> next();
    /// What the training says beside its table (progress.json), if it is not what it said before.
    [[nodiscard]] std::optional<std::string> told();
    /// The name of the folder that next() has read from.
    [[nodiscard]] const std::string& run() const noexcept { return run_; }
    /// The table; empty: there was none.
    [[nodiscard]] const std::string& file() const noexcept { return file_; }
    void again() noexcept {
        offset_ = 0;
        told_.clear();
    }

private:
    [[nodiscard]] bool find();

    std::string runs_, run_, file_, header_, told_;
    ino_t inode_ = 0;
    timespec since_{};
    std::uint64_t offset_ = 0;
};

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/job_folder.ipp>
#endif
