// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where a training program runs: which rank of how many, and what connects the ranks.
//
// train::launch() makes it; user code only reads it. A program that is not launched (a test, a
// notebook, a plain binary) uses context::single(), and the same training code runs in one process.
//
//     int main(...) {
//         return skein::train::launch(config, [](skein::train::context& ctx) { ... });
//     }

#include <skein/core/config.hpp>
#include <skein/core/error.hpp>

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace skein::spmd {
class rendezvous;
}
namespace skein::dist {
class call_record;
class comm_thread;
struct comm_options;
} // namespace skein::dist
namespace skein::train::detail {
class last_screen;
}

namespace skein::train {

class elastic_place;

/// The place of this process in the training world.
struct world_info {
    int rank = 0;
    int world_size = 1;
    int local_rank = 0;
    int local_size = 1;
    /// 0 for the first start; counts restarts after a failure. > 0 resumes from the last
    /// checkpoint.
    int attempt = 0;
    std::string last_failure{}; ///< why the attempt before ended; empty: none, or not told
    std::string host{};
    /// The same for all ranks and all attempts of one job; empty when nobody gave one.
    std::string job_id{};
    /// What started the ranks ("slurm", "openmpi", ...); empty: the program itself.
    std::string launcher{};
};

/// What a context remembers of a fit(): which folder it writes, and how it ended.
struct run_note {
    std::string name{}, path{}; ///< of the run's folder, absolute; empty: it writes none
    std::string best_metric{};  ///< as its configuration has it
    bool best_is_lowest = true;
    bool has_ended = false; ///< what follows is known
    std::uint64_t steps = 0;
    double seconds = 0.0; ///< of this start
    double loss = 0.0;    ///< of the last step
    double val_loss = std::numeric_limits<double>::quiet_NaN();
    std::uint64_t val_step = 0;
    std::vector<std::pair<std::string, double>> metrics{}; ///< others at the end
    std::string stopped_by{}; ///< "SIGTERM", or what a callback says; empty: it ended as planned
};

/// What a training function gets. Pointers are not owned and outlive the context.
class context {
public:
    /// One process, no communication.
    [[nodiscard]] static context single() { return context(); }

    /// One rank of a world. comm may be null only when world_size is 1.
    context(world_info where, spmd::rendezvous* world, dist::comm_thread* comm);

    [[nodiscard]] int rank() const noexcept { return where_.rank; }
    [[nodiscard]] int world_size() const noexcept { return where_.world_size; }
    [[nodiscard]] int local_rank() const noexcept { return where_.local_rank; }
    [[nodiscard]] int local_size() const noexcept { return where_.local_size; }
    [[nodiscard]] int attempt() const noexcept { return where_.attempt; }
    [[nodiscard]] const std::string& last_failure() const noexcept { return where_.last_failure; }
    [[nodiscard]] const std::string& host() const noexcept { return where_.host; }
    [[nodiscard]] const std::string& job_id() const noexcept { return where_.job_id; }
    [[nodiscard]] const std::string& launcher() const noexcept { return where_.launcher; }
    [[nodiscard]] bool is_first() const noexcept { return where_.rank == 0; }

    /// Null in a single process.
    [[nodiscard]] spmd::rendezvous* world() const noexcept { return world_; }
    /// Null in a single process.
    [[nodiscard]] dist::comm_thread* comm() const noexcept { return comm_; }

    /// The same training goes on in another generation of its world: after ranks were lost, or came
    /// to meet again. session::rebind() follows, on every rank. What was given before has to live
    /// until it returns; control() of the old world is gone here. Job, attempt and stop flag stay.
    void rebind(world_info where, spmd::rendezvous* world, dist::comm_thread* comm);
    /// `told` is called when rebind() begins, while comm() and control() are those of before: who
    /// uses them on another thread has done with them when it returns.
    ///   result  what keeps it: when the last copy is gone, it is called no more
    [[nodiscard]] std::shared_ptr<void> before_rebind(std::function<void()> told) const;

    /// Of a job whose ranks change: a rank begins alone, and its session brings the context into
    /// one world after the other. Null in a job whose ranks stay.
    [[nodiscard]] elastic_place* elastic() const noexcept { return elastic_; }
    void use_elastic(elastic_place* place) noexcept { elastic_ = place; }

    /// A further communicator of all ranks, for small exchanges that keep out of the way of
    /// comm()'s order and deadline (checkpoints). Null in a single process. The first call makes
    /// it, on all ranks alike. comm() itself where there is no rendezvous to make one with.
    ///   errors  those of dist::make_comm_thread
    [[nodiscard]] dist::comm_thread* control() const;
    /// Fails every exchange of comm() and control(), here and at the peers. From the thread that
    /// trains.
    void abort(const error& why) const noexcept;

    /// How comm() was made: groups of its ranks are made likewise. None: by the defaults.
    void use_options(const dist::comm_options& options);
    /// Those options, for a group that is made next; `what` it is goes into its name. The same on
    /// every rank when all make theirs in the same order.
    [[nodiscard]] dist::comm_options group_options(const std::string& what) const;

    /// The calls of a communicator that does not compare those of its ranks (communicator::calls())
    /// are compared in the row of each step from the next one on, before the step is applied, for
    /// as long as somebody holds the record. Of comm() by itself. All ranks do it alike, and have
    /// waited for the tickets of those calls when a step ends: else the row finds them begun on
    /// some ranks and not on others, and a right training ends with `mismatch`.
    void watch_calls(const std::shared_ptr<const dist::call_record>& record) const;
    [[nodiscard]] std::vector<std::shared_ptr<const dist::call_record>> watched_calls() const;

    /// launch() points this at a flag that a signal sets; training then saves and ends in order.
    ///   which  the signal, when there was one; asked after the flag was set
    void watch_stop_flag(const std::atomic<bool>* flag, std::function<int()> which = {}) noexcept {
        stop_ = flag;
        which_ = std::move(which);
    }
    [[nodiscard]] bool stop_requested() const noexcept {
        return stop_ != nullptr && stop_->load(std::memory_order_relaxed);
    }
    /// SIGINT or SIGTERM after a stop request by signal, else 0.
    [[nodiscard]] int stop_signal() const { return stop_requested() && which_ ? which_() : 0; }

    /// A session tells that a first step begins: what fails before is no accident that another try
    /// mends.
    void note_begun() const noexcept { begun_ = true; }
    [[nodiscard]] bool has_begun() const noexcept { return begun_; }
    /// A session tells which folder its run has, and then how it ended.
    void note_run(run_note what) const {
        run_ = std::move(what);
        if (watch_runs_) watch_runs_(*run_);
    }
    /// Of the last fit(); nothing before the first.
    [[nodiscard]] const std::optional<run_note>& last_run() const noexcept { return run_; }
    /// Called with each note.
    void watch_runs(std::function<void(const run_note&)> told) { watch_runs_ = std::move(told); }
    /// What fit() has to say at last is printed when the context ends, behind what the program says
    /// itself. Made by train/reporter.hpp; null: nothing.
    [[nodiscard]] std::shared_ptr<detail::last_screen>& screen() const noexcept { return screen_; }

private:
    context() = default;

    world_info where_;
    spmd::rendezvous* world_ = nullptr;
    dist::comm_thread* comm_ = nullptr;
    elastic_place* elastic_ = nullptr;
    std::shared_ptr<const dist::comm_options> options_;
    mutable int groups_ = 0; // made so far
    mutable std::shared_ptr<dist::comm_thread> control_;
    const std::atomic<bool>* stop_ = nullptr;
    std::function<int()> which_;
    mutable bool begun_ = false;
    mutable std::optional<run_note> run_;
    std::function<void(const run_note&)> watch_runs_;
    mutable std::shared_ptr<detail::last_screen> screen_;
    mutable std::vector<std::weak_ptr<std::function<void()>>> before_rebind_;
    mutable std::vector<std::weak_ptr<const dist::call_record>> calls_;
};

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/context.ipp>
#endif
