// SPDX-License-Identifier: Apache-2.0
#pragma once
// A head's side of what jobs leave behind: sets are taken from the nodes that run attempts, kept on
// a shelf (cluster/run_shelf.hpp), and given to who asks. All that touches the disk runs on the pool.
//
//     run_service runs(storage, book);              // nullptr: nothing is kept here
//     runs.serve_nodes(service, uploads, job_of);   // for each link
//     runs.serve_tools(service);
//     looking.spawn(runs.tidy());                   // until it is cancelled

#include <skein/core/config.hpp>
#include <skein/cluster/detail/coming_files.hpp>
#include <skein/cluster/detail/job_book.hpp>
#include <skein/cluster/detail/package_service.hpp>
#include <skein/cluster/detail/run_messages.hpp>
#include <skein/cluster/job_storage.hpp>
#include <skein/cluster/package_store.hpp>
#include <skein/cluster/run_shelf.hpp>
#include <skein/core/task.hpp>
#include <skein/net/requests.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace skein::cluster::detail {

/// What a link is sending.
struct run_uploads {
    std::map<lease_name, package_pin> pins; ///< what it has offered last of each attempt
    std::shared_ptr<coming_files> coming = std::make_shared<coming_files>();
};

/// The shelf in a storage, opened when something is first kept or asked for. Safe on several threads.
class shelf_in_storage {
public:
    /// `storage` may be nullptr.
    shelf_in_storage(std::shared_ptr<job_storage> storage, std::uint64_t byte_budget)
        : storage_(std::move(storage)), budget_(byte_budget) {}

    [[nodiscard]] bool is_there() const noexcept { return storage_ != nullptr; }
    /// Blocks.
    ///   errors  not_supported: there is no storage; those of job_storage and run_shelf
    [[nodiscard]] run_shelf& get();
    /// nullptr: it is not open.
    [[nodiscard]] run_shelf* if_open();

private:
    std::mutex mutex_; // guards shelf_
    std::shared_ptr<job_storage> storage_;
    std::uint64_t budget_;
    std::unique_ptr<run_shelf> shelf_;
};

/// The attempt of a job that a node runs.
struct running_attempt {
    job_ptr job;
    std::string node;
};

/// Belongs to one loop. Requests that it has begun may outlive it.
class run_service {
public:
    /// The attempt whose lease that is, if the asking link is its node.
    ///   errors  malformed, not_found
    using attempt_of = std::function<running_attempt(const lease_name& lease)>;

    /// `book` must outlive it.
    run_service(loop& on, std::shared_ptr<job_storage> storage, std::uint64_t byte_budget,
                job_book& book)
        : loop_(on), shelf_(std::make_shared<shelf_in_storage>(std::move(storage), byte_budget)),
          book_(book) {}

    /// Answers what nodes send, as long as the uploads of their link are there.
    void serve_nodes(net::request_service& service, const std::weak_ptr<run_uploads>& uploads,
                     const attempt_of& who) const;
    /// Answers what tools ask.
    void serve_tools(net::request_service& service) const;
    /// What is kept of a job, the newest last. Of one without a storage nothing.
    [[nodiscard]] task<std::vector<stored_set>> sets_of(std::string id) const;
    /// Lets go of what jobs need no more, now and then, until it is cancelled.
    [[nodiscard]] task<void> tidy() { return tidy_up(this); }

    /// How the shelf calls a job.
    [[nodiscard]] static std::string key_of(const submitted_job& job);

private:
    using shelf_ptr = std::shared_ptr<shelf_in_storage>;
    using tidier = std::function<void(run_shelf&)>; ///< blocks; of the jobs as they are now
    static task<set_wanted> offer(shelf_ptr shelf, std::shared_ptr<run_uploads> uploads,
                                  offer_set m, tidier tidies);
    static task<piece_taken> put(shelf_ptr shelf, std::shared_ptr<run_uploads> uploads,
                                 put_run_piece m);
    static task<set_committed> commit(shelf_ptr shelf, std::shared_ptr<run_uploads> uploads,
                                      std::string key, commit_set m);
    static task<set_list> list(shelf_ptr shelf, job_info now, std::string key);
    static task<set_found> find(shelf_ptr shelf, std::string key, std::string id);
    static task<blob_piece> read(shelf_ptr shelf, std::string key, ask_run_piece m);
    static task<void> tidy_up(run_service* self);
    [[nodiscard]] static tidier tidier_of(const job_book& book);

    loop& loop_;
    shelf_ptr shelf_;
    job_book& book_;
};

/// Files of jobs at a head: those that they bring, and what they leave behind.
struct job_files {
    package_service packages;
    run_service results;
};

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/run_service.ipp>
#endif
