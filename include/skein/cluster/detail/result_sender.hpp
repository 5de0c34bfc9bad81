// SPDX-License-Identifier: Apache-2.0
#pragma once
// What an attempt has left in its folder goes to the head, before that hears of the attempt's end:
// whoever waits for the end finds it there.
//
//     result_sender results(link, storage);
//     auto sending = results.send(order, place, stop, until);   // never fails; the head has a line
//     co_await sending;

#include <skein/core/config.hpp>
#include <skein/cluster/detail/head_link.hpp>
#include <skein/cluster/detail/job_folders.hpp>
#include <skein/cluster/detail/result_files.hpp>
#include <skein/cluster/detail/start_order.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/event.hpp>
#include <skein/core/semaphore.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>

#include <memory>
#include <stop_token>
#include <string>
#include <utility>

namespace skein::cluster {
class job_storage;
}

namespace skein::cluster::detail {

/// How long it is tried.
struct results_deadline {
    duration patience{};           ///< while the head is away
    duration moment{};             ///< when the agent ends
    event* stopping = nullptr;     ///< the agent is to end
    const bool* leaving = nullptr; ///< it has no link any more, for good
};

/// Of one agent. Belongs to one loop.
class result_sender {
public:
    /// `head` must outlive it; `storage` may be nullptr.
    result_sender(head_link& head, std::shared_ptr<job_storage> storage)
        : head_(head), storage_(std::move(storage)) {}

    ///   stop  gives it up
    [[nodiscard]] task<void> send(const start_worker_order& order, const job_place& place,
                                  cancel_token stop, results_deadline until);

    /// Where the results of an attempt are. A folder for runs that is not in the job's own is one
    /// that others see, or its user's business.
    [[nodiscard]] static result_question question_of(const start_worker_order& order,
                                                     const job_place& place);

private:
    struct attempt {
        std::string job, name, package;
        lease_name lease;
        result_question question;
        std::stop_source reading{};
    };
    static task<void> try_in_time(result_sender* self, attempt of, cancel_token stop,
                                  results_deadline until);
    static task<void> try_often(result_sender* self, attempt of, cancel_token stop,
                                cancel_token late, results_deadline until);
    static task<std::string> send_once(result_sender* self, attempt of);

    head_link& head_;
    std::shared_ptr<job_storage> storage_;
    semaphore turns_{2}; ///< attempts that send: what is under way over one link is bounded
};

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/result_sender.ipp>
#endif
