// SPDX-License-Identifier: Apache-2.0
#pragma once
// A run store on a disk: what a head keeps of the runs and results of jobs.
//
//     run_shelf shelf("/data/head/results", std::uint64_t{8} << 30);
//     const auto hold = shelf.files().pin(manifest);
//     ...                                              // its blobs come
//     shelf.commit("mnist-19aef", set, true);          // durable when it returns
//     for (const auto& set : shelf.sets_of("mnist-19aef")) ...
//
// Contents lie in a package_store of its own, so that files that jobs bring and what they leave
// behind do not take each other's room. A set whose contents were removed for newer ones is still
// named, and says so. What is held is not removed: of each job that lives the results of the newest
// attempt, and steps.
//
// Calls block and are safe on several threads at once.

#include <skein/core/config.hpp>
#include <skein/cluster/detail/run_messages.hpp>
#include <skein/cluster/package_store.hpp>
#include <skein/cluster/run_store.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace skein::cluster {

/// What is said of a set whose files are no more.
inline constexpr const char* set_is_gone = "its files were removed: newer ones needed their room";

/// Sets of many jobs, by keys that may be names of files.
class run_shelf {
public:
    /// Of one job; when there are more, the oldest that are not held are no more named.
    static constexpr std::size_t most_sets = 64;

    /// Makes the folder where there is none, and takes over what is in it.
    ///   errors  those of package_store
    run_shelf(std::string folder, std::uint64_t byte_budget);
    run_shelf(const run_shelf&) = delete;
    run_shelf& operator=(const run_shelf&) = delete;

    [[nodiscard]] package_store& files() noexcept { return files_; }
    /// A set whose id is empty has no files, and says why by its trouble.
    ///   holds   it is not removed before keep(), forget(), or, without a slash in its name, another
    ///           such set of its job
    ///   errors  not_found: not all of its files are here; exhausted: most_sets are held already;
    ///           disk_full, io
    void commit(const std::string& key, stored_set what, bool holds);
    /// The newest last.
    [[nodiscard]] std::vector<stored_set> sets_of(const std::string& key);
    /// Whether one of that job's sets has this id.
    [[nodiscard]] bool has_set(const std::string& key, const std::string& id);
    /// What a file of a set is; the sets that were asked for last are remembered.
    ///   errors  not_found: its manifest was removed, or has no such entry
    [[nodiscard]] sha256_digest digest_of(const std::string& id, std::uint32_t entry);
    /// Drops a set; its files go when their room is needed.
    void drop(const std::string& key, const std::string& name);
    /// Of the sets whose names begin with `run` those go that are neither in `keeps` nor one of the
    /// two newest.
    void keep_steps(const std::string& key, const std::string& run,
                    const std::vector<std::string>& keeps);
    /// All of a job.
    void forget(const std::string& key);
    /// Holds again what an earlier process held for those that live, lets go of what is held for
    /// others, and forgets jobs that nobody knows.
    ///   lives   is asked with the shelf's lock held
    ///   as_of   when they were true, of now(): jobs with a later commit are left alone
    void keep(const std::function<bool(const std::string& key)>& lives,
              const std::function<bool(const std::string& key)>& is_known,
              std::uint64_t as_of = std::numeric_limits<std::uint64_t>::max());
    /// A moment between two commits, for keep(). Does not block.
    [[nodiscard]] static std::uint64_t now() noexcept { return last_moment(); }

private:
    struct of_job {
        std::vector<stored_set> sets;
        std::map<std::string, package_pin> held; ///< by name
        bool is_held = false;                    ///< what is to be held is, since this start
        std::uint64_t moment = 0;                ///< of its last commit, since this start
    };
    [[nodiscard]] static std::atomic<std::uint64_t>& last_moment() noexcept;
    void hold_again(of_job& job);
    [[nodiscard]] std::string path_of(const std::string& key) const;
    void write(const std::string& key, const std::vector<stored_set>& sets) const;
    void take_over();

    const std::string folder_;
    package_store files_;
    std::mutex mutex_; // guards jobs_ and the files that say what is in it
    std::map<std::string, of_job> jobs_;
    std::string read_last_; // and the digests of its files
    std::vector<sha256_digest> digests_;
};

} // namespace skein::cluster

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/run_shelf.ipp>
#endif
