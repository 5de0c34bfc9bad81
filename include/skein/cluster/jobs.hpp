// SPDX-License-Identifier: Apache-2.0
#pragma once
// Jobs: programs that somebody sends to a running cluster, which starts them on a node with room,
// keeps what they print, and says how they ended.
//
//     cluster::job_request what;
//     what.command = {"./train", "--workers", "2"};
//     what.demand = "cpu=2";
//     const auto id = cluster::submit(how, what).id;                    // blocks
//     cluster::job_lines said;
//     do {
//         said = cluster::follow(how, id, said.first + said.lines.size(), said.now.state);
//     } while (!said.is_all);
//
// A job has one entry process, which may be anything: a training with ranks of its own, a driver
// that asks the cluster for workers, a script. It finds the cluster by SKEIN_ADDRESS, and knows
// itself by SKEIN_JOB and SKEIN_JOB_ATTEMPT. A job that was acknowledged ends once: as succeeded,
// failed or stopped.

#include <skein/core/config.hpp>
#include <skein/cluster/messages.hpp>
#include <skein/cluster/package.hpp>
#include <skein/cluster/tools.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace skein::net {
class network;
}

namespace skein::cluster {

class digest_cache;

/// "PENDING", "STARTING", "RUNNING", "RETRYING", "SUCCEEDED", "FAILED", "STOPPED".
[[nodiscard]] std::string_view to_string(job_state state) noexcept;
/// It will not change any more.
[[nodiscard]] constexpr bool is_over(job_state state) noexcept {
    return state == job_state::succeeded || state == job_state::failed ||
           state == job_state::stopped;
}
/// The state of what a head has told. One that is not known, of a newer head, counts as running.
[[nodiscard]] constexpr job_state state_of(const job_info& job) noexcept {
    return job.state > static_cast<std::uint8_t>(job_state::stopped)
               ? job_state::running
               : static_cast<job_state>(job.state);
}

/// Sends what the head lacks of a folder; gives the id of its package, for job_request.
///   files   what scan_folder() has found there. Files whose digest is zeros are read now: once, if
///           the head has no file of that size
///   told    bytes sent, of bytes that are missing; may block
///   known   learns digests of files that are read; nullptr: nobody does. Outlives the task
///   errors  those of ask_for_status; aborted: a file has changed meanwhile; permission_denied, io;
///           exhausted, disk_full (the head's)
[[nodiscard]] task<std::string> send_folder(net::network& via, tool_options how, std::string folder,
                                            package_manifest files,
                                            std::function<void(std::uint64_t, std::uint64_t)> told,
                                            digest_cache* known = nullptr);
/// The head takes the job, and runs it when a node has room.
///   errors  those of ask_for_status; invalid_argument (what is wrong with it), already_exists (the
///           id), not_found (its package), exhausted (too many jobs wait)
[[nodiscard]] task<submit_reply> ask_to_submit(net::network& via, tool_options how,
                                               job_request what);
/// One job, or all of them, the newest first.
///   errors  those of ask_for_status; not_found: no job has this id
[[nodiscard]] task<job_list> ask_for_jobs(net::network& via, tool_options how, std::string id = {});
/// What it has printed from this line on; waits for more, or for another state than `known`, up to
/// `most`.
///   errors  those of ask_for_jobs
[[nodiscard]] task<job_lines> ask_for_lines(net::network& via, tool_options how, std::string id,
                                            std::uint64_t from, std::uint8_t known,
                                            time_span most = std::chrono::seconds(10));
/// Which lines of a job are meant.
struct log_question {
    std::uint32_t attempt = 0; ///< of this one; 0: of all
    std::uint64_t from = 1;    ///< the number of the first line
    std::uint64_t tail = 0;    ///< not 0: the last so many instead
};
/// What it has printed so far, also what the head keeps no more and a node has in a file; a part of
/// it: ask again from the next line on until is_all.
///   errors  those of ask_for_jobs; not_found: it has had no such attempt
[[nodiscard]] task<job_log> ask_for_log(net::network& via, tool_options how, std::string id,
                                        log_question which);
/// All that it prints from this line on, until it has ended; gives how. When the head does not
/// answer it is asked again for `patience`, also one that was started again, and goes on with the
/// next line.
///   each    called with each answer; may block
///   errors  those of ask_for_jobs
[[nodiscard]] task<job_info> follow_to_end(net::network& via, tool_options how, std::string id,
                                           std::uint64_t from,
                                           std::function<void(const job_lines&)> each,
                                           time_span patience = std::chrono::seconds(60));
/// Ends it: SIGTERM for all of its processes, later SIGKILL. One that has ended stays as it is.
/// `forget`: of one that has ended nothing is kept.
///   errors  those of ask_for_jobs; invalid_argument: it is to be forgotten, and runs
[[nodiscard]] task<stop_job_reply> ask_to_stop_job(net::network& via, tool_options how,
                                                   std::string id, bool forget = false);

/// send_folder(), blocking.
[[nodiscard]] std::string send_folder_now(
    const tool_options& how, const std::string& folder, const package_manifest& files,
    const std::function<void(std::uint64_t, std::uint64_t)>& told, digest_cache* known = nullptr);
/// A path at the head's address that lets the browser which opens it see the cluster, once.
///   errors  those of ask_for_status; not_supported: that head answers no browsers
[[nodiscard]] std::string get_login_path(const tool_options& how);
/// ask_to_submit(), blocking.
[[nodiscard]] submit_reply submit(const tool_options& how, const job_request& what);
/// ask_for_jobs(), blocking.
[[nodiscard]] job_list list_jobs(const tool_options& how, const std::string& id = {});
/// ask_for_lines(), blocking.
[[nodiscard]] job_lines follow(const tool_options& how, const std::string& id, std::uint64_t from,
                               std::uint8_t known, time_span most = std::chrono::seconds(10));
/// ask_for_log(), blocking.
[[nodiscard]] job_log read_log(const tool_options& how, const std::string& id,
                               const log_question& which);
/// follow_to_end(), blocking.
job_info follow_job_to_end(const tool_options& how, const std::string& id, std::uint64_t from,
                           const std::function<void(const job_lines&)>& each);
/// ask_to_stop_job(), blocking.
stop_job_reply stop_one_job(const tool_options& how, const std::string& id, bool forget = false);

} // namespace skein::cluster

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/jobs.ipp>
#endif
