// SPDX-License-Identifier: Apache-2.0
#pragma once
// Folders that jobs bring: taken by the head from who submits the jobs, and handed to the nodes that
// run them.
//
// A link offers a folder (its manifest), is told which files are missing, and sends these in pieces,
// several under way. Files that the head cannot have, for it has none of their size, may come before
// that, with their digests behind them. What was offered is held until the link has ended; what
// a job needs for as long as the job may start. All that touches the disk runs on the pool.
//
//     package_service packages(storage);          // nullptr: jobs that bring files are refused
//     packages.serve(service, uploads_of_link);   // for each link
//     auto holding = packages.hold(request.package);
//     job.files = co_await holding;

#include <skein/core/config.hpp>
#include <skein/cluster/detail/coming_files.hpp>
#include <skein/cluster/job_storage.hpp>
#include <skein/cluster/messages.hpp>
#include <skein/cluster/package_store.hpp>
#include <skein/core/task.hpp>
#include <skein/net/requests.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace skein::cluster::detail {

/// A file that a link is sending: piece after piece.
struct package_upload {
    std::optional<blob_writer> into; ///< of the pool while is_busy
    std::uint64_t bytes = 0;
    bool is_busy = false;
};

/// Files that a link is sending, and the folders that it has offered.
struct package_uploads {
    std::vector<package_pin> pins;
    std::map<std::string, std::shared_ptr<package_upload>> writers; ///< by digest
    std::shared_ptr<coming_files> coming = std::make_shared<coming_files>();
};

/// Belongs to one loop. Requests that it has begun may outlive it.
class package_service {
public:
    explicit package_service(std::shared_ptr<job_storage> storage) : storage_(std::move(storage)) {}

    /// Answers what a link asks of packages, as long as its uploads are there.
    void serve(net::request_service& service, const std::weak_ptr<package_uploads>& uploads) const;
    /// Holds the files of a job. Nothing for "".
    ///   errors  not_supported: nobody keeps files here; not_found: they are not here, or not all;
    ///           those of package_store
    [[nodiscard]] task<package_pin> hold(std::string package) const {
        return hold_in(storage_, std::move(package));
    }
    /// The same, blocking, of what is here: an empty pin if it is not.
    [[nodiscard]] package_pin hold_if_here(const std::string& package) const;

private:
    static task<package_pin> hold_in(std::shared_ptr<job_storage> storage, std::string package);
    static task<package_wanted> offer(std::shared_ptr<job_storage> storage,
                                      std::shared_ptr<package_uploads> uploads, offer_package m);
    static task<blob_taken> put(std::shared_ptr<job_storage> storage,
                                std::shared_ptr<package_uploads> uploads, put_blob m);
    static task<piece_taken> put_piece_of(std::shared_ptr<job_storage> storage,
                                          std::shared_ptr<package_uploads> uploads,
                                          put_package_piece m);
    static task<sizes_found> find_sizes(std::shared_ptr<job_storage> storage, ask_sizes m);
    static task<package_found> find(std::shared_ptr<job_storage> storage, std::string package);
    static task<blob_piece> read(std::shared_ptr<job_storage> storage, ask_blob m);

    std::shared_ptr<job_storage> storage_;
};

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/package_service.ipp>
#endif
