// SPDX-License-Identifier: Apache-2.0
#pragma once
// Steps of trainings between attempts of a job whose nodes share no folder: each checkpoint goes to
// the head while the training runs on, and the next attempt's node gets the newest one before it
// starts.
//
//     step_sender steps(link, storage);
//     auto bringing = steps.bring(order, place);            // before the entry process starts
//     beside.spawn(steps.watch(order, place));              // while it runs, until it is cancelled
//
// A step is a folder RUN/checkpoints/step-N below the folder for runs. It gets its name when it is
// whole and durable, so one that is seen is complete; the files of the run beside it (tables, its
// configuration) go along as they are. What is sent are links and copies beside the job's folder:
// the training may write on, and remove the step.

#include <skein/core/config.hpp>
#include <skein/cluster/detail/fetched_files.hpp>
#include <skein/cluster/detail/head_link.hpp>
#include <skein/cluster/detail/job_folders.hpp>
#include <skein/cluster/detail/run_messages.hpp>
#include <skein/cluster/detail/start_order.hpp>
#include <skein/cluster/package.hpp>
#include <skein/cluster/run_store.hpp>
#include <skein/core/semaphore.hpp>
#include <skein/core/task.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace skein::cluster {
class job_storage;
}

namespace skein::cluster::detail {

/// A checkpoint in a folder for runs.
struct found_step {
    std::string run;    ///< the name of its run's folder
    std::string folder; ///< "step-00000120"
    std::uint64_t step = 0;
    std::int64_t when = 0;  ///< of its last change, in nanoseconds
    bool is_newest = false; ///< of its run
    [[nodiscard]] std::string set_name() const { return run + "/" + folder; }
};

inline constexpr std::size_t most_watched_runs = 64;
inline constexpr std::uint64_t most_run_file = std::uint64_t{16} << 20; ///< beside steps

/// The steps in a folder for runs: the newest of each run at the end, of these and of the others
/// what has changed last.
struct steps_there {
    std::vector<found_step> steps;
    std::string left_out; ///< why not all are among them: links, or too many runs; "": all are
};

/// No name below the job's folder is followed if it is a link. Blocks.
///   runs  where they are below the folder of the job
///   most  runs that are looked at, those that have changed last
///   errors  io, exhausted
[[nodiscard]] steps_there find_steps(const std::string& folder, const std::string& runs,
                                     std::size_t most);

/// Where a step that comes is to be, below the folder of a job.
struct coming_step {
    std::string inside; ///< "runs/RUN/checkpoints"
    std::string name;   ///< "step-00000120"
    std::string part;   ///< until it is whole: a name that a training removes
};

/// The name of a part, as a training gives it to a save that has begun. The same set has the same.
[[nodiscard]] std::string part_of_step(const std::string& name, const std::string& id);
/// The same files, those of the step in its part.
[[nodiscard]] package_manifest step_in_part(package_manifest files, const coming_step& step);
/// A part whose files are whole is the step, and durable. Blocks.
///   errors  already_exists: something has its name; disk_full, io
void place_step(const std::string& folder, const coming_step& step, const package_manifest& files);
void drop_part(const std::string& folder, const coming_step& step) noexcept;
/// The step that a set is; a run that is empty: it is none.
[[nodiscard]] found_step step_of_set(const std::string& name);
/// Links the files of a step, and copies those of its run, below `into`; the same paths from there
/// as from `folder`. Blocks.
///   runs    below `folder`
///   errors  not_found: the step has gone; disk_full, io
void snap_step(const std::string& folder, const std::string& runs, const found_step& step,
               const std::string& into);

/// Of one agent. Belongs to one loop.
class step_sender {
public:
    /// `head` must outlive it; `storage` may be nullptr.
    step_sender(head_link& head, std::shared_ptr<job_storage> storage)
        : head_(head), storage_(std::move(storage)) {}

    /// Sends steps that appear, until it is cancelled. What has no room at the head is one line, and
    /// the training goes on.
    [[nodiscard]] task<void> watch(const start_worker_order& order, const job_place& place);
    /// Fetches the newest step of each run that this node has none of, or an older one. Of a first
    /// attempt nothing.
    ///   errors  those of the way to the head; disk_full, io
    [[nodiscard]] task<void> bring(const start_worker_order& order, const job_place& place);

private:
    struct attempt {
        std::string job, folder, runs, beside;
        lease_name lease;
        std::uint32_t number = 0;
        std::set<std::string> sent, told;         ///< sets; lines that were said
        std::map<std::string, std::size_t> turns; ///< when a step of a run was sent last
    };
    [[nodiscard]] static attempt attempt_of(const start_worker_order& order,
                                            const job_place& place);
    static task<void> watch_each(step_sender* self, attempt of);
    static task<void> send_step(step_sender* self, const attempt* of, found_step step,
                                std::vector<std::string> keeps);
    static task<void> bring_each(step_sender* self, attempt of);
    [[nodiscard]] static const found_step* next_of(const attempt& of, const steps_there& there);
    static task<bool> learn_sent(step_sender* self, attempt* of, std::vector<std::string> there);
    static void say_left_out(attempt& of, const std::string& why);
    static task<void> bring_file(run_store* from, std::shared_ptr<fetched_folder> to,
                                 package_entry entry, std::string id, std::uint32_t number);
    static task<void> bring_set(step_sender* self, const attempt* of, stored_set set);

    head_link& head_;
    std::shared_ptr<job_storage> storage_;
    semaphore turns_{2};    ///< steps under way
    bool is_clean_ = false; ///< what an agent before has left is removed
};

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/step_sender.ipp>
#endif
