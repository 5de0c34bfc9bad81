// SPDX-License-Identifier: Apache-2.0
#pragma once
// lease_book: who holds what of which worker. A lease is room on a worker that the scheduler grants
// to the tasks of one demand; a task goes over a lease that is held without asking anybody, and the
// scheduler is asked once per lease.
//
// A line has at most one request at the scheduler, so that lines take turns; when it is granted the
// book has one more lease of the line. Nothing here looks at all workers for each task: the leases
// of a line are in lists by the room they have, and change their list when a task goes or ends.
//
//     lease_book book(lines);
//     book.add(worker, "worker-3 (pid 7 at here)");
//     if (book.ask(line)) to = book.choose(line);   // a worker over whose lease a task may go
//     book.sent(*to, call);                         // it goes
//     book.settled(*to, call, true);                // it has ended; the line keeps the lease

#include <skein/core/event.hpp>
#include <skein/core/intrusive_list.hpp>
#include <skein/rt/detail/call.hpp>
#include <skein/rt/detail/demand_lines.hpp>
#include <skein/rt/detail/lease_line.hpp>
#include <skein/rt/detail/worker_room.hpp>
#include <skein/sched/scheduler.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace skein::rt::detail {

class lease_book {
public:
    explicit lease_book(demand_lines& lines) noexcept : lines_(lines) {}

    // Workers.

    /// A worker is there: a place of the scheduler, or, if it serves one demand only, a lease of
    /// that line.
    void add(worker_room& worker, std::string_view who);
    /// What it had is gone with it. False: it was not there.
    bool remove(worker_room& worker);
    /// Whether new leases are granted there, as it says itself; it gives back those without a task.
    void update(worker_room& worker);
    void set_labels(worker_room& worker, const std::vector<std::string>& labels);
    /// All of them, in the order in which they came.
    [[nodiscard]] const std::vector<worker_room*>& workers() const noexcept { return workers_; }
    /// How many workers serve all demands.
    [[nodiscard]] std::size_t places() const noexcept { return at_place_.size(); }
    /// Cores of the largest of these; 0: there is none.
    [[nodiscard]] std::uint32_t largest() const noexcept { return largest_; }
    [[nodiscard]] bool any_has(const std::string& label) const;
    /// Workers have more tasks than cores.
    [[nodiscard]] bool is_crowded() const noexcept { return crowded_ != 0; }
    /// Set when a worker whose cores are lent has become idle, or is lent no more.
    [[nodiscard]] event& lent_changed() noexcept { return lent_changed_; }

    // Leases of lines.

    [[nodiscard]] static lease_share* share_of(const worker_room& at,
                                               const lease_line& line) noexcept;
    /// A line wants one more lease. True: it has one more; else its request waits in the scheduler,
    /// or there was no room before and nothing has changed.
    [[nodiscard]] bool ask(lease_line& line);
    /// The line's request waits for the next room that there is.
    void stand(lease_line& line);
    void withdraw(lease_line& line);
    /// Books what the scheduler grants. True: there are new leases.
    bool take();
    /// Whether ask() or take_whole() have found leases for other lines since this was asked before.
    [[nodiscard]] bool has_news() noexcept { return std::exchange(has_news_, false); }
    /// One more lease on this worker. False: it has no room for it.
    [[nodiscard]] bool lease_on(worker_room& worker, lease_line& line);
    /// A worker with nothing to do that could have this, all of whose cores belong to the next task
    /// there; nullptr: there is none.
    [[nodiscard]] worker_room* take_whole(const sched::demand& need);
    void release_unused(worker_room& worker);
    /// A line waits: the others give back what they do not use. True: there was something.
    bool reclaim();
    /// Lines that have nothing go when there are many.
    void forget_idle_lines();
    [[nodiscard]] bool is_asking() const noexcept { return asking_ > 0; }
    /// Another line waits: this one gets no more than its turn.
    [[nodiscard]] bool others_wait(const lease_line& line) const noexcept {
        return asking_ > (line.asked ? 1U : 0U);
    }

    // Which worker a task goes to.

    /// The least busy of the workers that a line's next task may go to now.
    [[nodiscard]] worker_room* pick(lease_line& line, lease_line::list among) const;
    /// Over a lease that has no task; rather to a worker whose loop nobody needs.
    [[nodiscard]] worker_room* choose(lease_line& line);
    /// Where a task of the only line that there is may go past no other one; nullptr: nowhere.
    [[nodiscard]] worker_room* straight(lease_line& line);

    // What becomes of tasks.

    /// Before a task goes. A suspect has its worker as a whole.
    void sent(worker_room& to, call_base& call);
    /// had_cores: until now, see lent_cores.
    void settled(worker_room& from, const call_base& call, bool had_cores);
    /// Tasks ask for this many cores of a worker.
    void occupy(worker_room& at, std::uint32_t cores) noexcept;
    /// A task leaves its cores to others for a while, or (false) goes on.
    void set_blocked(worker_room& at, const call_base& call, bool on);
    /// An actor goes to a worker that is for it alone.
    void settle_in(worker_room& at);
    /// The actor has ended: nobody follows it there.
    void spend(worker_room& at);
    /// What a worker has to do has changed.
    void note_use(worker_room& at) noexcept;

private:
    [[nodiscard]] sched::request_id request_lease(const lease_line& line,
                                                  const sched::constraint& where);
    void book(const sched::grant& g);
    void release_unused(lease_share& share);
    [[nodiscard]] worker_room* pick_free(lease_line& line);
    [[nodiscard]] bool may_be_free(const lease_line& line) const noexcept;
    /// Notes that there may be room where there was none.
    void note_room() noexcept {
        ++version_;
        is_changed_ = true;
    }

    demand_lines& lines_;
    sched::scheduler places_{sched::scheduler_options{sched::placement::spread, 16}};
    std::vector<worker_room*> workers_;
    std::unordered_map<sched::place_id, worker_room*> at_place_;
    std::uint32_t largest_ = 0;
    std::size_t crowded_ = 0;   ///< workers with more tasks than cores
    std::uint64_t version_ = 1; ///< changes when room may have come
    std::size_t asking_ = 0;    ///< lines that ask for a lease
    bool is_changed_ = false;   ///< take() has something to look at
    bool has_news_ = false;
    std::uint64_t freed_ = 0; ///< changes when a worker becomes free:
    intrusive_list<worker_room, worker_room>
        free_; ///< with nothing to do, and nobody needs its loop
    event lent_changed_;
};

} // namespace skein::rt::detail
