// SPDX-License-Identifier: Apache-2.0
#pragma once
// What becomes of submitted jobs: room for an attempt is asked for, its entry process is ordered,
// runs and ends, and another attempt begins, until the job has succeeded, failed, or was stopped.
//
//     pending   its attempt waits for room; or no node could start it, and a pause has to end
//     starting  it has room on a node, which is told once the log says where
//     running   its node says that the entry process runs
//     retrying  an attempt has failed; the next one begins after a pause, and never while the last
//               one may run on a node that was given up
//     succeeded, failed, stopped
//
// An attempt is a lease of a driver that nobody is: its number is drawn. The book has what is known
// of jobs, the runner decides what happens to them.
//
//     struct head : attempt_events { ... };            // makes that driver, tells nodes
//     job_runner runner(loop, parts, head, options);
//     runner.serve(service);                           // submit_job and stop_job, for each link
//     runner.placed("mnist", place);                   // its attempt has room
//     runner.runs("mnist", attempt, pid);
//     runner.ended("mnist", end, is_ordered);          // the lease of its attempt is over
//     runner.look();                                   // what time brings, now and then

#include <skein/core/config.hpp>
#include <skein/cluster/detail/head_memory.hpp>
#include <skein/cluster/detail/head_silence.hpp>
#include <skein/cluster/detail/job_book.hpp>
#include <skein/cluster/detail/lease_table.hpp>
#include <skein/cluster/detail/node_messages.hpp>
#include <skein/cluster/detail/package_service.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/net/requests.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace skein::cluster::detail {

/// What a runner of jobs asks of the head that has it. An attempt is named by its driver's number.
class attempt_events {
public:
    /// The driver of an attempt, which nobody is: it is made.
    [[nodiscard]] virtual lease_holder& make_attempt(std::uint64_t attempt,
                                                     const std::string& job) = 0;
    virtual void send_order(std::uint64_t node, const start_worker_order& order) = 0;
    /// Somebody follows a job, and has not heard all of it.
    [[nodiscard]] virtual bool has_followers() const = 0;

protected:
    attempt_events() = default;
    attempt_events(const attempt_events&) = default;
    attempt_events& operator=(const attempt_events&) = default;
    ~attempt_events() = default;
};

struct job_runner_options {
    std::string runs; ///< a folder that all nodes see, for runs of trainings; "": there is none
    duration lost_after{}; ///< see head_options
    time_constants times{};
    logging::level news = logging::level::info;
};

/// The lease of an attempt, with what its processes are told of its room.
struct entry_place {
    lease_name lease;
    std::string demand;
    std::uint64_t gpus = 0; ///< bits of sched::gpu_set
    std::uint64_t node = 0; ///< its incarnation
    std::string node_name;
};

/// Belongs to one loop. It must be joined before it is destroyed.
class job_runner {
public:
    /// The parts below it.
    struct parts {
        job_book& book;
        head_memory& memory;
        package_service& packages;
        left_attempts& given_up;
        lease_table& leases;
    };

    /// All must outlive it.
    job_runner(loop& on, const parts& below, attempt_events& events, job_runner_options options);

    /// Answers submit_job and stop_job over one link.
    void serve(net::request_service& service);
    [[nodiscard]] task<submit_reply> submit(submit_job asked) {
        return take(this, std::move(asked));
    }
    /// Ends it; ended() comes when nothing of it runs any more.
    void stop(submitted_job& job, job_state as, std::string reason);
    /// Ends its attempt, which counts neither as a failure nor as a retry; the next one begins where
    /// there is room then.
    void move(submitted_job& job, std::string why);
    /// Takes the jobs that the log has: those that wait begin anew, those that ran are expected with
    /// their nodes. False: none is expected.
    bool remember();
    void look();
    /// Ends all jobs. Running ones are asked to end, and say what they have to say.
    [[nodiscard]] task<void> end_all() { return end_each(this); }
    /// The head ends: followers of a job have a moment to ask for its end, since there will be no
    /// other head to ask.
    [[nodiscard]] task<void> show_all_ends() { return show_each_end(this); }
    void cancel() noexcept { writing_.cancel(); }
    [[nodiscard]] task<void> join() { return writing_.join(); }

    // ---- what happens to attempts
    void placed(const std::string& id, const entry_place& place);
    void runs(const std::string& id, std::uint64_t attempt, std::int64_t pid);
    ///   is_ordered  its node was told to start it
    void ended(const std::string& id, bool started, const std::string& why, const ended_lease& end,
               bool is_ordered);
    /// A node holds the entry process of a job. False: of none that is expected.
    [[nodiscard]] bool claims(const held_lease& held);
    /// A node is given up that may run what it ran: the next attempts wait.
    void leave(const lease_node& n, std::uint64_t alone_ms, time_point heard_at);
    /// A driver that came out of a job has a rank on a node: pages show it, also once it has ended.
    void rank_placed(const std::string& id, const rank_order& rank, const std::string& node);

    // ---- what is told
    /// From the last word of a node until it has surely ended an attempt.
    ///   alone_ms  so long the node waits for a head
    [[nodiscard]] duration fence(std::uint64_t alone_ms, const job_request& job) const;
    /// Where runs of trainings go that all nodes are to see; "": there is no such folder.
    [[nodiscard]] std::string runs_of(const submitted_job* job) const;
    /// The environment of a job's entry process, and of all that comes from it.
    [[nodiscard]] std::vector<std::string> variables_of(const submitted_job& job) const;
    [[nodiscard]] job_course course_of(const submitted_job& job) const;

private:
    static task<submit_reply> take(job_runner* self, submit_job asked);
    static task<stop_job_reply> on_stop(job_runner* self, stop_job asked, std::string peer);
    static task<void> order_when_kept(job_runner* self, std::uint64_t attempt,
                                      start_worker_order order);
    static task<void> end_when_kept(job_runner* self, std::uint64_t attempt);
    void moved(submitted_job& job);
    static task<void> end_each(job_runner* self);
    static task<void> show_each_end(job_runner* self);
    [[nodiscard]] job_ptr add(job_request what, package_pin files);
    void begin(submitted_job& job);
    void begin_again(submitted_job& job);
    void put_off(submitted_job& job, const std::string& why);
    void over(submitted_job& job, job_state as, std::string reason);
    [[nodiscard]] start_worker_order order_at(const entry_place& place, const submitted_job& job);
    void stop_entry(std::uint64_t attempt);
    void end_ranks_of(const std::string& job);
    [[nodiscard]] std::vector<job_ptr> open_jobs() const;

    loop& loop_;
    job_book& book_;
    head_memory& memory_;
    package_service& packages_;
    left_attempts& given_up_;
    lease_table& leases_;
    attempt_events& events_;
    job_runner_options options_;
    scope writing_; ///< what waits until the log has something of a job
};

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/job_runner.ipp>
#endif
