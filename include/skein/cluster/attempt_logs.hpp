// SPDX-License-Identifier: Apache-2.0
#pragma once
// What jobs print, in files of their node: two halves for each attempt, the older one of which goes
// when the newer one is full, and a bound for all of them, by which attempts that have ended lose
// theirs, the oldest first. Lines keep the numbers that they have in their job.
//
//     cluster::attempt_logs kept("/data/n1/logs");
//     auto log = kept.begin({"train", submitted, 2}, 101);     // its first line is 101 of the job
//     log->add(some);                                          // blocks, as all of these do
//     auto some = kept.read({"train", submitted, 0}, 57, 256 << 10);
//
// A file is text: "1 " or "2 " for output and error, the line, its end; "- N" where N are missing.

#include <skein/core/config.hpp>
#include <skein/core/unique_fd.hpp>
#include <skein/proc/output.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace skein::cluster {

/// Which attempt of which job.
struct attempt_name {
    std::string job;            ///< letters, digits, -, _ and .
    std::int64_t submitted = 0; ///< in milliseconds since 1970: another job may have had that name
    std::uint32_t attempt = 0;  ///< from 1 on; 0, where one is asked for: any
};

/// How much is kept.
struct attempt_log_bounds {
    std::uint64_t half = std::uint64_t{32} << 20; ///< bytes of a file; an attempt has two
    std::uint64_t all = std::uint64_t{1} << 30; ///< of all files; those of attempts that run count
};

/// Lines on their way into a file, in order and without a gap; bounded by `most`: what comes then is
/// not taken until these are written.
struct log_piece {
    static constexpr std::size_t most = std::size_t{8} << 20;
    std::uint64_t first = 1, count = 0;
    std::string text;

    void add(std::uint64_t number, bool is_error, std::string_view line);
};

/// Lines that a node has.
struct logged_lines {
    /// The number of the first: that asked for, or the next that is there.
    std::uint64_t first = 0;
    std::vector<proc::output_line> lines;
};

/// The files below one folder. All calls block; safe on several threads.
class attempt_logs : public std::enable_shared_from_this<attempt_logs> {
public:
    class writer;

    explicit attempt_logs(std::string folder, attempt_log_bounds bounds = {});

    /// A file for an attempt that runs; as long as the writer lives nothing of it is removed for the
    /// sake of others.
    ///   errors  io, disk_full
    [[nodiscard]] std::shared_ptr<writer> begin(const attempt_name& name, std::uint64_t first);
    /// Lines from that number on, as far as none is missing; all attempts that were here, or one.
    ///   tail   not 0: the last so many instead
    ///   bytes  of the lines, line_cost included; at least one is given, if there is one
    [[nodiscard]] logged_lines read(const attempt_name& name, std::uint64_t from, std::size_t bytes,
                                    std::uint64_t tail = 0);
    /// Beside the lines: a table of the attempt, for who asks when its folder has gone.
    void keep_table(const attempt_name& name, const std::string& run, const std::string& path);
    /// The newest one of a job: the run, and its bytes; nothing: "".
    [[nodiscard]] std::pair<std::string, std::string> table(const attempt_name& name) const;

private:
    struct file {
        std::string path;
        std::uint32_t attempt = 0;
        std::uint64_t first = 0; ///< the number of its first line
    };
    struct place { ///< where a reader has stopped
        std::string path;
        std::uint64_t number = 0, offset = 0;
    };
    [[nodiscard]] std::vector<file> files_of(const attempt_name& name) const;
    [[nodiscard]] std::uint64_t end_of(const file& of) const;
    [[nodiscard]] bool read_file(const file& of, std::uint64_t from, std::size_t& left,
                                 logged_lines& into);
    void make_room();

    std::string folder_;
    attempt_log_bounds bounds_;
    std::mutex mutex_;                   // guards the two below
    std::map<std::string, int> running_; ///< folders of attempts
    place last_;
};

/// Writes one attempt's lines; by one thread at a time.
class attempt_logs::writer {
public:
    writer(std::shared_ptr<attempt_logs> of, std::string folder, std::uint64_t first);
    writer(const writer&) = delete;
    writer& operator=(const writer&) = delete;
    ~writer();

    ///   errors  io, disk_full: the piece is missing then, and counted when there is room again
    void add(const log_piece& piece);

private:
    void open(std::uint64_t first);

    std::shared_ptr<attempt_logs> of_;
    std::string folder_;
    unique_fd file_;
    std::uint64_t next_, bytes_ = 0;
    std::string current_, before_; ///< paths
};

} // namespace skein::cluster

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/attempt_logs.ipp>
#endif
