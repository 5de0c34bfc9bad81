// SPDX-License-Identifier: Apache-2.0
#pragma once
// What jobs leave behind, brought back: the folders of their runs and their results, as the head
// keeps them.
//
//     cluster::fetch_options what;
//     what.to = "mnist";                                  // made where it is not there
//     const auto got = cluster::fetch_results(how, "mnist", what);    // blocks
//
// A fetch that was cut off is done again: files that are there with the right content are not
// fetched, and a part of a file goes on where it ended. Nothing is written outside of the folder,
// whatever the head says: paths are checked, and no name on the way may be a link.

#include <skein/core/config.hpp>
#include <skein/cluster/jobs.hpp>
#include <skein/cluster/messages.hpp>
#include <skein/cluster/run_store.hpp>
#include <skein/cluster/tools.hpp>
#include <skein/core/task.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace skein::net {
class network;
}

namespace skein::cluster {

/// What is to be fetched, and where it goes.
struct fetch_options {
    std::string to;            ///< a folder; it and one above it may be made
    std::string path{};        ///< this file, or what is in this folder; empty: all
    std::uint32_t attempt = 0; ///< of this one; 0: of the newest that has left something
    bool force = false;        ///< files that are there and differ are replaced
    /// Told now and then: of bytes that have to be fetched, how many are there; may block.
    std::function<void(std::uint64_t, std::uint64_t)> told{};
};

/// What was fetched.
struct fetched_results {
    job_info now;            ///< the job: one that is not over may leave more
    stored_set from;         ///< an id that is empty: nothing is kept yet
    std::size_t files = 0;   ///< that were fetched
    std::size_t there = 0;   ///< that were there already
    std::uint64_t bytes = 0; ///< that came
};

/// What is kept of a job, the newest last.
///   errors  those of ask_for_jobs
[[nodiscard]] task<set_list> ask_for_results(net::network& via, tool_options how, std::string job);
/// The set of an attempt, or, for 0, the newest one that has files; one without a name: none yet.
///   errors  not_found: that attempt has none, or its files are not kept
[[nodiscard]] stored_set choose_results(const std::string& job, const set_list& all,
                                        std::uint32_t attempt);
/// Which files are in a set of it.
///   errors  not_found: its files were removed
[[nodiscard]] task<package_manifest> ask_for_result_files(net::network& via, tool_options how,
                                                          std::string job, std::string id);
/// Brings them here.
///   errors  those of ask_for_jobs; not_found: no such attempt, or path, or they were removed;
///           already_exists: files that differ are there, or a link in the way; disk_full, io
[[nodiscard]] task<fetched_results> fetch_results_of(net::network& via, tool_options how,
                                                     std::string job, fetch_options what);

/// The same, blocking.
[[nodiscard]] set_list list_results(const tool_options& how, const std::string& job);
[[nodiscard]] package_manifest list_result_files(const tool_options& how, const std::string& job,
                                                 const std::string& id);
fetched_results fetch_results(const tool_options& how, const std::string& job,
                              const fetch_options& what);

} // namespace skein::cluster

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/results.ipp>
#endif
