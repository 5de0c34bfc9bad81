// SPDX-License-Identifier: Apache-2.0
#pragma once
// Folders of jobs on a node's disk, with what the jobs have brought: packages, of which each file
// is fetched from the head once and kept.
//
//     struct node : package_source { ... };          // asks the head
//     job_folders folders(storage, source);
//     job_place place;
//     auto opening = folders.open(&place, key);      // the storage, and a file with the job's key
//     auto entering = folders.enter(&place, folder_of_job(place.storage, order), package);

#include <skein/core/config.hpp>
#include <skein/cluster/detail/job_messages.hpp>
#include <skein/cluster/detail/key_files.hpp>
#include <skein/core/event.hpp>
#include <skein/core/sha256.hpp>
#include <skein/core/task.hpp>
#include <skein/net/token.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace skein::cluster {
class job_storage;
}

namespace skein::cluster::detail {

/// Where a process of a job is on this node.
struct job_place {
    std::string storage;   ///< empty: the node keeps no files of jobs
    key_files::handle key; ///< nullptr: the same, or there is no key for it
    std::string folder;
    bool has_own_folder = false; ///< one of the storage, which is removed some day
    bool in_storage = false;     ///< what is done for it now is done with this node's own storage
};

/// Who has the packages.
class package_source {
public:
    virtual task<package_found> find_package(ask_package which) = 0;
    virtual task<blob_piece> read_blob(ask_blob which) = 0;

protected:
    package_source() = default;
    package_source(const package_source&) = default;
    package_source& operator=(const package_source&) = default;
    ~package_source() = default;
};

/// Belongs to one loop; files are read and written beside it.
class job_folders {
public:
    /// `storage` may be nullptr. `source` must outlive it.
    job_folders(std::shared_ptr<job_storage> storage, package_source& source)
        : storage_(std::move(storage)), source_(source) {}

    /// What jobs have of this node's disk, if they have something; with that key in a file.
    [[nodiscard]] task<void> open(job_place* place, std::optional<net::token> key) {
        return open_storage(this, place, key);
    }
    /// That folder, and the package in it. Several processes of one job may come at once: the first
    /// one makes it.
    [[nodiscard]] task<void> enter(job_place* place, std::string folder, std::string package) {
        return enter_folder(this, place, std::move(folder), std::move(package));
    }

private:
    static task<void> open_storage(job_folders* self, job_place* place,
                                   std::optional<net::token> key);
    static task<void> enter_folder(job_folders* self, job_place* place, std::string folder,
                                   std::string package);
    static task<void> make(job_folders* self, job_place* place, std::string package);
    static task<void> fetch_package(job_folders* self, job_place* place, std::string package);
    static task<void> fetch_blob(job_folders* self, sha256_digest digest, std::uint64_t size);

    std::shared_ptr<job_storage> storage_;
    key_files keys_;
    package_source& source_;
    std::map<std::string, std::shared_ptr<event>> being_laid_; ///< by folder, until it is
};

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/job_folders.ipp>
#endif
