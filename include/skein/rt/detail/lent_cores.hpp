// SPDX-License-Identifier: Apache-2.0
#pragma once
// lent_cores: cores that somebody else has for a while. A task that waits for calls that it has
// made leaves its cores to others until all of these are over; then it goes on at once, and nobody
// new gets any until that is made good. And workers lend cores to tasks with workers of their own,
// as many as the source of workers says: no task is sent to a worker that is lent.
//
//     lent_cores cores(lines, book);
//     cores.begin(id, call, worker);     // a coroutine goes to its worker
//     cores.begin_wait(worker, id);      // it has made a call: its cores are others'
//     cores.end_wait(worker, id);        // and its own again
//     cores.end(id, call);               // it has ended

#include <skein/core/id_map.hpp>
#include <skein/core/ids.hpp>
#include <skein/rt/detail/demand_lines.hpp>
#include <skein/rt/detail/lease_book.hpp>
#include <skein/rt/detail/worker_room.hpp>
#include <skein/rt/worker_source.hpp>

#include <cstdint>

namespace skein::rt::detail {

class lent_cores {
public:
    lent_cores(demand_lines& lines, lease_book& book) noexcept : lines_(lines), book_(book) {}

    /// The source that hears when a worker of one demand is blocked and when it goes on; nullptr:
    /// none.
    void tell(worker_source* source) noexcept { source_ = source; }

    /// A task goes to a worker; none that has a worker as a whole.
    void begin(call_id id, call_base& call, worker_room& at);
    /// The task has made a call from this worker, and waits for it.
    void begin_wait(const worker_room& at, call_id id);
    /// One of the task's calls is over.
    void end_wait(const worker_room& at, call_id id);
    /// The task leaves its worker. True: it held its cores until now.
    [[nodiscard]] bool end(call_id id, const call_base& call);
    /// Forgets the tasks of a worker that is lost.
    void forget(const worker_room& at);

    /// Sets how many cores of common workers are lent to other demands.
    void lend(std::uint32_t cores);
    /// Takes as many workers out of the scheduler as were asked for, those with the least to do
    /// first.
    void lend_now();
    /// The cores that are lent are free, as far as there are so many.
    [[nodiscard]] bool are_free() const;

private:
    /// A coroutine task at a worker. While calls that it has made have no outcome it may wait for
    /// them, and holds no core.
    struct parent {
        call_base* call = nullptr;
        worker_room* at = nullptr;
        std::uint32_t children = 0;
        explicit operator bool() const noexcept { return call != nullptr; }
    };

    /// Others hold their worker's loop until they return.
    [[nodiscard]] static bool may_wait(const call_base& call) noexcept {
        return demand_lines::is_leased(call) && demand_lines::is_coroutine(call);
    }
    [[nodiscard]] std::uint32_t cores_of(const call_base& call) const;
    void set_blocked(worker_room& at, const call_base& call, bool on);
    void turn(worker_room& worker, bool on);

    demand_lines& lines_;
    lease_book& book_;
    worker_source* source_ = nullptr;
    id_map<call_id, parent> parents_;
    std::uint32_t lent_ = 0;    ///< cores that were asked for
    std::uint32_t blocked_ = 0; ///< cores of tasks at workers of their own that wait for others
};

} // namespace skein::rt::detail
