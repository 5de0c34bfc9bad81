// SPDX-License-Identifier: Apache-2.0
#pragma once
// Jobs: what somebody submits to a cluster, what the head says of it, and the files that go with
// it. See cluster/jobs.hpp, and cluster/messages.hpp for who sends what.

#include <skein/core/config.hpp>
#include <skein/cluster/detail/lease_messages.hpp>
#include <skein/core/bytes.hpp>
#include <skein/proc/output.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace skein::cluster {

/// Where a job is on its way. The last three never change.
enum class job_state : std::uint8_t {
    pending,   ///< it waits for a node with room
    starting,  ///< its node has been told to start it
    running,   ///< its entry process runs
    retrying,  ///< an attempt has failed, and the next one is to come
    succeeded, ///< its entry process has exited with 0
    failed,    ///< its last attempt has failed, or there was none in time
    stopped,   ///< somebody has stopped it
};

namespace detail {
inline constexpr std::uint64_t most_grace_ms = 600'000; ///< see job_request
}

/// What somebody wants to be run.
struct job_request {
    std::string id{};                   ///< empty: one is drawn; never used again
    std::vector<std::string> command{}; ///< argv of the entry process; no shell reads it
    std::vector<std::string> env{};     ///< "NAME=value", added to its environment
    std::string demand{};               ///< of its entry process: "cpu=1,gpu=1,memory=2GiB"
    std::string label{};                ///< of the node: "zone=a", "node=n1"; empty: any
    std::uint32_t retries = 0;          ///< attempts after the first one
    std::uint64_t pending_ms = 0;       ///< it fails when it has waited so long; 0: for ever
    std::uint64_t timeout_ms = 0;       ///< of each attempt; then it is ended. 0: none
    std::string package{};              ///< of its folder, see package.hpp; empty: it brings none
    std::string folder{};               ///< without a package: where it runs, on its node
    std::string by{};                   ///< "user@host", for people
    std::uint64_t grace_ms = 0;         ///< from SIGTERM to the kill; 0: as its node has it
};

/// What is known of a job. Times are in milliseconds since 1970; 0: not yet.
struct job_info {
    std::string id;
    std::uint8_t state = 0; ///< job_state
    std::string reason;     ///< why it is in this state
    std::vector<std::string> command;
    std::string by, node; ///< the node of the newest attempt
    std::uint32_t attempt = 0, retries = 0;
    std::uint32_t not_counted = 0; ///< attempts that never began: they are none of its retries
    std::int32_t exit_code = -1;   ///< of the newest attempt; -1: it has none
    std::int32_t signal = 0;       ///< that has ended it
    std::int64_t submitted = 0, started = 0, ended = 0;
    std::uint64_t lines = 0;             ///< that it has printed, as far as they came here
    std::uint64_t left_out = 0;          ///< lines that nobody will see
    std::vector<std::string> last_lines; ///< the last ones of an attempt that failed
    std::uint32_t worlds = 0;            ///< of its training, see job_progress
    std::string last_change;
    std::string workers; ///< the same: "3 of 1:4", of those that come and go
};

/// Something is to be run.
struct submit_job {
    static constexpr std::uint16_t number = 50;
    std::uint32_t version = cluster_version;
    job_request what;
    bool again = false; ///< the answer may be lost: the same job under this name is this one
};
/// It will be, under this name.
struct submit_reply {
    static constexpr std::uint16_t number = 51;
    std::string id;
    std::string not_durable; ///< why a head that is started again will not know of it
    bool has_log = false;    ///< the head writes down what it knows; without: it ends with it
};

/// Asks for job_list: of one job, or of all, the newest first.
struct ask_jobs {
    static constexpr std::uint16_t number = 52;
    std::uint32_t version = cluster_version;
    std::string id;
    std::uint32_t first = 0, most = 0; ///< of all: how many to leave out; 0: as many as may be
};
/// What there is.
struct job_list {
    static constexpr std::uint16_t number = 53;
    std::vector<job_info> jobs;
    std::uint64_t total = 0;
};

/// Asks for job_lines; waits until there are some, the job has ended, or so long.
struct follow_job {
    static constexpr std::uint16_t number = 54;
    std::uint32_t version = cluster_version;
    std::string id;
    std::uint64_t from = 1; ///< the number of the first line; 0: the last ones that are kept
    std::uint32_t wait_ms = 0;
    std::uint8_t known = 255; ///< the job_state that the asker knows; another one is news
    std::uint32_t attempt =
        0; ///< that it knows: lines of a later one are given, whatever `from` is
};
/// Lines that a job has printed.
struct job_lines {
    static constexpr std::uint16_t number = 55;
    job_info now;
    std::uint64_t first = 1; ///< the number of the first; those from `from` to it were left out
    std::vector<proc::output_line> lines;
    bool is_all = false; ///< the job has ended, and these are the last ones
};

/// A job is to end, or to be forgotten when it has.
struct stop_job {
    static constexpr std::uint16_t number = 56;
    std::uint32_t version = cluster_version;
    std::string id;
    bool forget = false;
};
/// What became of it.
struct stop_job_reply {
    static constexpr std::uint16_t number = 57;
    job_info now;
};

/// A node has started the entry process of a job.
struct entry_started {
    static constexpr std::uint16_t number = 58;
    lease_name lease;
    std::int64_t pid = 0;
};

/// Bytes of a table of numbers that a training of a job writes (metrics.csv), from its node.
struct job_rows {
    static constexpr std::uint16_t number = 59;
    lease_name lease;
    std::string run;          ///< the name of the folder that it is in
    std::uint64_t offset = 0; ///< 0: it begins anew
    byte_buffer bytes;        ///< none: the table is as it was
    std::string folder;       ///< the whole path of that folder, on the node
    std::string told;         ///< progress.json beside the table, if it is another one; else empty
};

/// Asks for a link that lets a browser in.
struct ask_login {
    static constexpr std::uint16_t number = 68;
    std::uint32_t version = cluster_version;
};
/// Its path, at the head's address.
struct login_reply {
    static constexpr std::uint16_t number = 69;
    std::string path;
    std::string host; ///< that the head listens at; empty: where it was reached
};

/// Asks for job_log: lines also from the files of nodes. Waits for none.
struct ask_log {
    static constexpr std::uint16_t number = 77;
    std::uint32_t version = cluster_version;
    std::string id;
    std::uint32_t attempt = 0; ///< of this one; 0: of all
    std::uint64_t from = 1;    ///< the number of the first line
    std::uint64_t tail = 0;    ///< not 0: the last so many instead
};
/// Some of them.
struct job_log {
    static constexpr std::uint16_t number = 78;
    job_info now;
    std::uint64_t first = 1; ///< the number of the first; those from `from` to it are gone
    std::vector<proc::output_line> lines;
    bool is_all = false; ///< there are no more at this time
};
/// The head asks a node; answered by node_log.
struct ask_node_log {
    static constexpr std::uint16_t number = 79;
    std::string job;
    std::int64_t submitted = 0; ///< that job, in milliseconds since 1970
    std::uint32_t attempt = 0;
    std::uint64_t from = 1, tail = 0;
    bool table = false; ///< not lines: the table of its newest training there
};
/// What it has; no lines: nothing from that number on.
struct node_log {
    static constexpr std::uint16_t number = 80;
    std::uint64_t first = 0;
    std::vector<proc::output_line> lines;
    std::string run, rows; ///< of the table
};

/// A folder is to be sent: what of it is missing?
struct offer_package {
    static constexpr std::uint16_t number = 60;
    std::uint32_t version = cluster_version;
    byte_buffer manifest; ///< an encoded package_manifest
};
/// The digests of the files that are.
struct package_wanted {
    static constexpr std::uint16_t number = 61;
    std::string id;
    std::vector<std::string> missing;
};
/// A piece of a file.
struct put_blob {
    static constexpr std::uint16_t number = 62;
    std::string digest;
    std::uint64_t size = 0, offset = 0; ///< of the whole file; of this piece in it
    byte_buffer bytes;
    bool is_last = false;
};
/// It is kept.
struct blob_taken {
    static constexpr std::uint16_t number = 63;
};
/// A node asks for the files of a folder.
struct ask_package {
    static constexpr std::uint16_t number = 64;
    std::string id;
};
/// Which these are.
struct package_found {
    static constexpr std::uint16_t number = 65;
    byte_buffer manifest;
};
/// A node asks for a piece of a file.
struct ask_blob {
    static constexpr std::uint16_t number = 66;
    std::string digest;
    std::uint64_t offset = 0;
};
/// The piece; less than asked for: the end.
struct blob_piece {
    static constexpr std::uint16_t number = 67;
    byte_buffer bytes;
};

} // namespace skein::cluster
