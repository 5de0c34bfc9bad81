// SPDX-License-Identifier: Apache-2.0
#pragma once
// One line in which tasks wait for cores, and the leases that it holds at workers. Part of
// detail/demand_lines.hpp and detail/lease_book.hpp.

#include <skein/core/counted_ptr.hpp>
#include <skein/core/intrusive_list.hpp>
#include <skein/rt/detail/call.hpp>
#include <skein/sched/demands.hpp>
#include <skein/sched/scheduler.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace skein::rt {

namespace detail {

struct lease_line;
struct worker_room; // in detail/worker_room.hpp

// Leases: room on a worker that the scheduler grants to the tasks with one demand. A task goes over
// a lease that is held without asking anybody; the scheduler is asked once per lease.

/// The leases of one line on one worker. In one of the lists of its line, as far as a task may go
/// over it.
struct lease_share : list_node<lease_share> {
    worker_room* at = nullptr;
    lease_line* line = nullptr;
    std::vector<sched::request_id> leases;
    std::uint32_t out = 0;  ///< tasks that were sent over them and have no outcome
    std::uint32_t turn = 0; ///< tasks that may still be sent while another line waits
};

/// The tasks with one demand: those that wait, and where they may go.
struct lease_line {
    enum list : std::uint8_t {
        unused,  ///< a lease without a task
        beside,  ///< the same, but something is at its worker that the scheduler knows nothing of
        ahead,   ///< each lease has a task, and the worker takes more ahead of time
        nowhere, ///< not in a list
    };
    std::deque<counted_ptr<call_base>>
        inner; ///< made by calls: a task that has begun waits for them
    std::deque<counted_ptr<call_base>> waiting;
    intrusive_list<lease_share, lease_share> with[nowhere];
    std::size_t held = 0;    ///< leases
    std::size_t parents = 0; ///< of its tasks at workers, see lent_cores
    sched::request_id
        asked; ///< the request that waits in the scheduler: one at a time, so that lines take turns
    std::uint64_t full_at = 0;      ///< the version of the lease_book when there was no room for it
    std::uint64_t none_free_at = 0; ///< the same for a worker whose loop nobody needs
    const sched::demand* need = nullptr;
    sched::demand_id demand; ///< its number
    std::uint16_t cpus = 0;  ///< of the demand
    /// Who serves it: any worker with room, or those that are started for it alone and are no
    /// places of the scheduler.
    enum class service : std::uint8_t { undecided, shared, own } by = service::undecided;
    bool stands = false;    ///< it has waited there for some time
    std::size_t out = 0;    ///< tasks at workers of its own
    std::size_t wanted = 0; ///< as the source of workers was told

    /// Those that go first.
    [[nodiscard]] auto& next() noexcept { return inner.empty() ? waiting : inner; }
    [[nodiscard]] bool is_empty() const noexcept { return inner.empty() && waiting.empty(); }
};

} // namespace detail
} // namespace skein::rt
